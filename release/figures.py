"""Blocks of measured figures from docs/benchmarks.json, each with its conditions.

Pages contain these blocks, and repeat no figure by hand (tests/meta/test_figures.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.bench import bars
from loadtest.bench.markdown import table
from loadtest.bench.report import OURS, times
from loadtest.bench.results import RESULTS, alone, beside, separate


def conditions() -> str:
    """Return a sentence about the run: date, machine, versions."""
    machine = RESULTS["machine"]
    facts = [f"{machine['CPU']} with {machine['cores']} cores", machine["memory"]]
    facts += [machine["system"], f"Python {machine['Python']}"]
    facts.append(f"nsqcy {RESULTS['settings']['nsqcy']}")
    return f"One run of `make bench` on {RESULTS['date']} ({', '.join(facts)})"


# --- README: Go's nsqd, other brokers -----------------------------------------------------------

AGAINST_GO = (
    ("publish in batches of 200, 2 connections", bars.MPUB, bars.CPU),
    ("deliver and finish, up to 2,500 in flight, 2 connections", bars.SUB_FIN, bars.CPU),
    (
        "publish one by one, 50 clients, 2 worker processes of nsqd",
        f"{bars.PUB_WAIT}, 2 workers",
        bars.CPU,
    ),
    ("publish over HTTP, 32 clients", bars.HTTP, bars.THOUSANDS),
    ("from publish to delivery, at 20,000 messages per second", bars.AT_20_K, bars.P50),
    ("a queued message, after a warm-up", "a queued message", bars.BYTES),
    ("an idle connection with a subscription", "an idle subscribed connection", bars.BYTES),
)
SHARED = (
    "publish, batches of 200",
    "publish one by one, 50 waiting clients",
    "consume, acknowledging each",
    "consume one by one, 50 waiting clients",
)
MEMORY = "memory of queued messages"


def comparison() -> str:
    return f"{against_go()}\n{against_brokers()}"


def against_go() -> str:
    """Return nsqd's figures next to those recorded for Go's nsqd, including the worse ones."""
    rows = []
    for name, work, figure in AGAINST_GO:
        (bar,) = [each for each in bars.BARS if (each.work, each.figure) == (work, figure)]
        row = bar.find(RESULTS["nsqd"])
        assert row
        about = figure.about.replace("p50", "median")
        rows.append([f"{name}: {about}", figure.told(figure.of(row)), bar.go])
    kept = [bar.kept(row) for bar in bars.BARS if (row := bar.find(RESULTS["nsqd"]))]
    new = alone("MPUB x200, 2 conn, new memory")
    again = ["the same, while a backlog grows and the kernel provides new memory"]
    rows.insert(1, [*again, f"{new['daemon_us']:.2f} µs", rows[0][-1]])
    text = (
        f"{conditions()}; 200-byte bodies, everything in memory, one worker process of nsqd unless "
        "stated. Go's figures are not from this run: they were recorded once on a two-core machine "
        f"under the same load. nsqd met {sum(kept)} of its {len(kept)} own targets in this run. "
        f"[Benchmarks](docs/BENCHMARKS.md#targets) marks the {len(kept) - sum(kept)} that it "
        "missed, marks the missed targets of the comparison with other brokers, and lists all "
        "conditions, figures and latencies.\n"
    )
    return table(["", OURS, "Go's nsqd 1.3.0"], rows) + f"\n{text}"


def against_brokers() -> str:
    """Return nsqd's rate as a multiple of each broker's, and the memory of each."""
    head = ["publish: batches of 200", "publish: one by one, 50 clients"]
    head += ["consume: many in flight", "consume: one by one, 50 clients"]
    rows, memory = [], [_memory(OURS)]
    for each in RESULTS["contestants"]:
        name, version = each["name"], each["version"].partition("-")[0]
        if name != OURS:
            ratios = [f"{times(_in_memory(name, scenario))} ×" for scenario in SHARED]
            rows.append([f"{name} {version}", *ratios])
            memory.append(_memory(name))
    run = separate("peers")
    return table(["nsqd's messages per second, divided by those of", *head], rows) + (
        f"\n{run[0].upper()}{run[1:]}: each broker ran alone, with the load generator on the same "
        "machine; 200-byte bodies, **everything in memory, no sync, no copies**. If publishes wait "
        f"for a sync or for copies, the ratios of publishing change ({_changes()}): see [from "
        "other brokers](docs/guides/from-other-brokers.md#how-fast). Memory at startup (RSS) and "
        f"per queued message, without a warm-up: {'; '.join(memory)}.\n"
    )


def _in_memory(broker: str, scenario: str) -> float:
    """Return nsqd's rate as a multiple of the broker's, with everything in memory."""
    return 1 / float(beside(broker, scenario)["rate_times"])


def _memory(broker: str) -> str:
    row = beside(broker, MEMORY)
    name = "nsqd" if broker == OURS else broker
    return f"{name} {row['idle_rss'] / 1e6:,.0f} MB and {row['bytes_each']:,.0f} B"


def _changes() -> str:
    """Return which ratios of publishing are smaller if publishes are safer, and which larger."""
    smaller: dict[str, list[bool]] = {}
    for each in SAFER:
        smaller.setdefault(each.broker, []).append(each.ratio < each.in_memory)
    parts = {
        "smaller": [broker for broker, found in smaller.items() if all(found)],
        "larger": [broker for broker, found in smaller.items() if not any(found)],
        "some smaller and some larger": [
            broker for broker, found in smaller.items() if any(found) and not all(found)
        ],
    }
    return "; ".join(f"{change} for {_list(names)}" for change, names in parts.items() if names)


def _list(names: list[str]) -> str:
    """Return "A", "A and B" or "A, B and C"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True)
class Safer:
    """Publishes that both brokers acknowledge only once they are on disk or on other machines."""

    ours: str
    broker: str
    how: str
    scenario: str
    durability: str
    shared: str  # the comparison in memory

    @property
    def ratio(self) -> float:
        return float(alone(self.scenario, self.durability)["ratio"])

    @property
    def in_memory(self) -> float:
        return _in_memory(self.broker, self.shared)


SAFER = [
    Safer(
        "batches of 100, 16 clients",
        broker,
        "`appendfsync always`",
        f"{broker} x100, 16 waiting clients",
        "fsync",
        SHARED[0],
    )
    for broker in ("Redis streams", "Redis lists")
] + [
    Safer(
        f"{ours}, 3 copies", broker, "3 replicas", f"{broker} {load}, 3 replicas", durability, each
    )
    for broker, durability in (("NATS JetStream", "os"), ("RabbitMQ", "fsync"))
    for ours, load, each in (
        ("batches of 200", "x200, 2 conn", SHARED[0]),
        ("one by one, 50 clients", "x1, 50 waiting clients", SHARED[1]),
    )
]


def on_disk() -> str:
    """Return what safer publishes cost, and how they compare with other brokers'."""
    rows = []

    def add(ours: str, other: str, ratio: float, durability: str, in_memory: str = "") -> None:
        rows.append([f"{ours}, class `{durability}`", other, f"{times(ratio)} ×", in_memory])

    for durability in ("os", "fsync"):
        ratio = alone(f"MPUB x200, 2 conn, {durability}", durability)["ratio"]
        add("batches of 200", "nsqd, class `memory`", ratio, durability)
    for copies in (2, 3):
        ratio = alone(f"MPUB x200, 2 conn, {copies} copies", "os")["ratio"]
        add(f"batches of 200, {copies} copies", "nsqd, 1 copy", ratio, "os")
    for each in SAFER:
        other = f"{each.broker}, {each.how}"
        add(each.ours, other, each.ratio, each.durability, f"{times(each.in_memory)} ×")
    run = separate("copies")
    head = ["nsqd publishes", "in comparison with", "ratio of messages per second"]
    return _texts([*head, "the same ratio in memory, without copies"], rows) + (
        f"\n{conditions()}. Each ratio is the median of the rounds' ratios, so it may differ from "
        "the ratio of two medians. "
        "For Redis, the ratio in memory is for batches of 200 from 2 clients. "
        f"The figures for waiting clients are {separate('synced')}. "
        f"The figures for copies and replicas are {run}: all servers and clients shared this one "
        "machine, without a network between them.\n"
    )


# --- PERFORMANCE, and pages with a separate run -------------------------------------------------

LIMITED_BY = (
    (
        "MPUB of 200",
        ("MPUB x200, 2 conn", "memory"),
        "memory: each body is written once, to memory that is no longer in a cache",
    ),
    (
        "SUB and FIN",
        ("SUB+FIN RDY 2500, 2 conn", "memory"),
        "the frame and its copy; the entry of a message in flight",
    ),
    (
        "PUB, waiting for its OK, 50 connections",
        ("PUB, wait for OK, 50 conn, 1 worker", "memory"),
        "a receive, a send and a share of a poll for each message",
    ),
    (
        "HTTP `/pub`, 32 connections",
        ("HTTP /pub, keep-alive, 32 conn", "memory"),
        "the same as PUB, plus a longer header and response",
    ),
    (
        "MPUB of 200 to disk",
        ("MPUB x200, to disk", "overflow"),
        "the page cache's copy, the checksum, and the I/O thread on another core",
    ),
    ("MPUB of 200, class `os`", ("MPUB x200, 2 conn, os", "os"), "the same as MPUB of 200 to disk"),
    (
        "MPUB of 200, memory that the process has not used before",
        ("MPUB x200, 2 conn, new memory", "memory"),
        "the kernel, which clears each page, and a virtual machine's host, which provides it",
    ),
)


def microseconds() -> str:
    rows = []
    for work, (scenario, durability), limit in LIMITED_BY:
        row = alone(scenario, durability)
        share = f"{1 / row['floors']:.0%}" if row["floors"] else ""
        rows.append([work, f"{row['daemon_us']:.2f} µs", share, limit])
    return _texts(["per message", "nsqd's CPU time", "the floor's share", "limited by"], rows)


def recorded(name: str) -> str:
    """Return the table of a separate run."""
    run = RESULTS["recorded"][name]
    head = f"Measured on {run['date']} with `{run['command']}`, {run['conditions']}.\n\n"
    return head + _texts(run["columns"], run["rows"])


def _texts(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in which few columns are figures."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
