"""Writes the figures as docs/BENCHMARKS.md, a chart and JSON. Measures nothing.

Its input is the JSON that it writes: `figures`, a dict of

    date, machine, settings     facts about the run, for a reader
    contestants                 for each: name, version, durability, settings, publishes, consumes
    skipped                     missing peers, each with the reason
    peers                       rows of loadtest.bench.peers.work.run
    nsqd                        rows of loadtest.bench.speed.run
    separate                    scenarios of `nsqd` from another run: their names, and when
    failed                      for each figure that was not measured: its name, and why

The file has a further key, `recorded`: tables of separate runs of other commands, for other pages
(release/figures.py). They are kept until they are replaced by hand.
"""

import datetime
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench import bars, chart, grouped, growth, stored
from loadtest.bench.markdown import table

OURS = "nsqcy"
PAGE, CHART, DATA = "BENCHMARKS.md", "benchmarks.svg", "benchmarks.json"
BUSY = 0.9  # a load process that is busier than this limited the daemon
IDLE = 1.5  # load average; above it, the machine was busy
CHARTED = 4  # scenarios
OWN_SECTION = ("durable", "copies", "curves", "keys", "tenants", *stored.SECTIONS)
TITLES = {  # of scenarios whose names are not descriptive
    "peers": "comparison with other brokers",
    "copies": "copies on other machines",
    "synced": "waiting for a sync",
    "recovery": "recovery after kill -9",
    "queues": "many queues",
    "clients": "many connections",
    "keys": "rules for keys",
    "tenants": "keys, beside other brokers",
    "hot": "one hot topic",
}
MET, MISSED = "met", "**missed**"

Figures = dict[str, Any]
Row = dict[str, Any]

HEAD = """# Benchmarks

`make bench` writes this page from one run on one machine. It installs, starts and stops the other
brokers. `make bench FULL=1` covers more message sizes, more workers and more rounds, and draws the
curves. `make bench ARGS="all --only=curves"` measures one part again and keeps the others. All
figures are in [{data}]({data}). Compare figures only within this page, because they differ between
machines.
"""

BARS = """## Targets

nsqd met {met} of its {all} targets in this run; the tables below show the results. Bodies are
200 bytes long, and nsqd has one worker, unless a row says otherwise. The class is the durability
class of the messages. The figures for Go's nsqd 1.3.0 are not from this run: they were recorded
once on a two-core machine under the same load. `make bench ARGS="all --target=HOST:PORT"` also
measures a running Go nsqd. A machine that is half as fast handles half as many messages per second:
to compare machines, use the ratios (×). The floor is a server that makes the same system calls for
the same load but contains no broker.

"""

AHEAD = """
The next table compares consumption with one acknowledgement per message, which is what each
broker's own client libraries send. Each figure is nsqd's value as a multiple of the other broker's.
The target is met if nsqd is better in both columns.

"""

FAILED = """## Failures

The following figures are missing or cover fewer rounds.

"""

PEERS = """## Comparison with other brokers

All brokers do the same work on the same machine, one at a time: every round restarts each broker
and runs it alone. All messages stay **in memory**, and no broker syncs anything to disk.
Figures are medians of {rounds}. "× nsqcy" is the median ratio of a figure to nsqcy's figure in the
same round.

![Throughput and CPU time of each broker]({chart})
"""

READING = """
CPU is the user and system time of all broker processes, per message. "load" is the CPU time of
all load-generator processes, per message, and "load busy" is the share of time for which the
busiest of them was running: near 100 %, the load generator limits the broker (marked †). The load
generator shares the cores with the broker. On a machine with few cores, throughput therefore
depends on both, so compare the CPU time per message instead.
"""

FAIRNESS = """### Differences between the brokers

- The load generator sends prepared bytes to every broker and only counts responses. No client
  library is involved; real clients take more CPU time.
- Redis streams keep acknowledged entries until they are trimmed; here they are deleted between
  measurements, outside the measured time. All other brokers delete a message when it is
  acknowledged.
- `LREM` finds its message immediately here, because all messages are acknowledged in order. With
  thousands of messages in flight and out-of-order acknowledgements, it would have to search.
- JetStream uses a work-queue stream, which deletes acknowledged messages as the other queues do;
  consuming from a stream with limits-based retention takes about a seventh less CPU time.
- JetStream, beanstalkd and RabbitMQ have no batch command: they receive the same number of single
  commands in one write. RabbitMQ confirms several messages with one response.
- Every broker receives one acknowledgement command per message, although `XACK` accepts several
  ids and `basic.ack` has a `multiple` flag.
- nsqd, JetStream and RabbitMQ do not respond to an acknowledgement; Redis and beanstalkd do.
- Redis and beanstalkd use one core; nsqd uses as many as it has workers; nats-server and RabbitMQ
  use all cores.
- The number of messages for each broker (the "messages" column) is chosen so that a measurement
  takes a few seconds.
"""

DURABLE = """
## Cost of durability classes

nsqd acknowledges a publish when its messages are in memory (memory), would survive the death of
every process (os), or would survive a power loss (fsync). Each class runs on its own nsqd, whose
files are on disk. The classes take turns, and all messages are consumed in between. Ratios
compare figures from the same round. These figures vary on a shared disk.

"""

COPIES = """
## Copies on other machines

Three nsqds and one etcd run on this machine. Every topic keeps its messages on one, two or three of
the nsqds, and a publish is acknowledged when all of them have the messages. All clients use the
same nsqd. NATS JetStream and RabbitMQ run as clusters of three servers, one cluster at a
time, and clients use the server that leads the stream or queue. Both brokers acknowledge a publish
when a majority of the servers has the message. JetStream stores messages in files and syncs every
two minutes, so it is compared with class os. RabbitMQ's quorum queues sync before they acknowledge,
so they are compared with class fsync. CPU is the time of all nodes, without etcd. Nodes compete for
the cores and the disk of one machine, and there is no network between them: compare the ratios.

For the last row, the nsqd that owns a topic with 3 copies is killed while consumers wait on the
other two nsqds. The time begins with the kill, so it includes the lease.

"""

KEYED = """
## Rules for keys

Channels with rules for keys, beside a channel without rules in the same round. The messages have
their key in a header, and belong to 10,000 keys unless a row says otherwise. Publishing includes
the work for the index. "To FIN" is the time from when a message was due until it was finished,
including the 50 ms for which its consumer works. Memory is the difference to the same work
without the rule. A restart begins with the new process.

"""

ALONE = """## nsqd alone

The class is the durability class of the messages. In class memory, messages are queued in memory;
in class overflow, messages beyond the memory limit go to disk, but publishers do not wait for the
disk. "× floor" is the CPU time as a multiple of the floor's in the same round, if the floor was
measured. Each figure is the median over the number of rounds given in the table; each note is from
the median round. "load" is the CPU time of the load generator, which shares the cores with nsqd.

"""


def machine() -> dict[str, str]:
    """Return facts on which figures depend, excluding any that identify the machine."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return {
        "CPU": models[0] if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{pages / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "system": release.get("PRETTY_NAME", "unknown"),
        "Python": platform.python_version(),
    }


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def condition(load: float) -> str:
    """Return when a run took place, and how busy the machine was before it."""
    state = "busy" if load > IDLE else "quiet"
    return f"{today()}, on a {state} machine (load average {load:.1f} before it)"


def read(folder: Path) -> Figures | None:
    """Return the figures of the page in a directory; None if there is no page."""
    return json.loads((folder / DATA).read_text()) if (folder / DATA).exists() else None


def joined(figures: Figures, rows: Sequence[Row], runs: dict[str, str]) -> Figures:
    """Return figures with rows of scenarios from other runs, and when these took place."""
    order = list(dict.fromkeys(row["name"] for row in [*figures["nsqd"], *rows]))
    kept = [row for row in figures["nsqd"] if row["name"] not in runs]
    nsqd = sorted([*kept, *rows], key=lambda row: order.index(row["name"]))
    return figures | {"nsqd": nsqd, "separate": figures.get("separate", {}) | runs}


def kept(before: Figures, figures: Figures, peers: str) -> Figures:
    """Return figures of a run, with the parts that it did not measure from an earlier page.

    peers: when the run measured only the other brokers; empty if it measured nsqd alone, too.
    """
    separate = before.get("separate", {})
    if peers:
        new = {key: figures[key] for key in ("contestants", "skipped", "peers", "failed")}
        return before | new | {"separate": separate | {"peers": peers}}
    names = {row["name"] for row in before["nsqd"]} - {row["name"] for row in figures["nsqd"]}
    rows = [row for row in before["nsqd"] if row["name"] in names]
    return joined(figures, rows, {name: separate.get(name, before["date"]) for name in names})


def write(figures: Figures, folder: Path) -> Path:
    """Write page, charts and data to a directory; return the path to the page."""
    folder.mkdir(parents=True, exist_ok=True)
    if before := read(folder):
        figures = figures | {"recorded": before["recorded"]}
    (folder / DATA).write_text(json.dumps(figures, indent=1) + "\n")
    (folder / CHART).write_text(picture(figures["peers"]))
    (folder / growth.CHART).write_text(growth.picture(_named(figures["nsqd"], "curves")))
    (folder / PAGE).write_text(page(figures))
    return folder / PAGE


# -- the chart


def picture(rows: Sequence[Row]) -> str:
    sizes = _distinct(rows, "size")
    rows = [row for row in rows if row["size"] in sizes[:1]]
    groups = []
    for scenario in _distinct(rows, "scenario")[:CHARTED]:
        bars = [
            chart.Bar(row["contestant"], (row["rate"], row["daemon_us"]))
            for row in rows
            if row["scenario"] == scenario
        ]
        groups.append(chart.Group(scenario, bars))
    return chart.svg(groups, ("messages per second", "µs of CPU per message"), OURS)


# -- the page


def page(figures: Figures) -> str:
    parts = [
        HEAD.format(data=DATA),
        _conditions(figures),
        _bars(figures),
        _failed(figures["failed"]),
        _peers(figures),
        stored.section(figures["nsqd"]),
        _nsqd(figures["nsqd"]),
        grouped.section(_named(figures["nsqd"], "tenants")),
        growth.section(_named(figures["nsqd"], "curves")),
    ]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _conditions(figures: Figures) -> str:
    facts = {"date": figures["date"]} | figures["machine"] | figures["settings"]
    for name, when in figures.get("separate", {}).items():
        facts[TITLES.get(name, name)] = f"from a separate run on {when}"
    lines = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    return f"## Conditions\n\n| | |\n| --- | --- |\n{lines}"


def _bars(figures: Figures) -> str:
    if not figures["nsqd"]:
        return ""
    head = ["work", "", "class", "Go nsqd 1.3.0", "target", "this run", ""]
    rows = [_bar(bar, bar.find(figures["nsqd"])) for bar in bars.BARS]
    results = [row[-1] for row in rows if row[-1] in (MET, MISSED)]
    text = BARS.format(met=results.count(MET), all=len(results))
    return text + table(head, rows) + _rivals(figures["peers"])


def _bar(bar: bars.Bar, row: Row | None) -> list[str]:
    about, recorded = [bar.work, bar.figure.about], [bar.go, bar.promise]
    if row is None:
        return [*about, "", *recorded, "", "not measured"]
    found = bar.figure.told(bar.figure.of(row))
    return [*about, row["durability"], *recorded, found, MET if bar.kept(row) else MISSED]


def _rivals(peers: Sequence[Row]) -> str:
    rows = [
        [
            f"{rival.name}: {rival.scenario}",
            f"{times(rival.rate)} ×",
            f"{times(rival.cpu)} ×",
            MET if rival.ahead else MISSED,
        ]
        for rival in bars.rivals(peers, OURS)
    ]
    return AHEAD + table(["", "messages per second", "CPU per message", ""], rows) if rows else ""


def _failed(failed: Sequence[Row]) -> str:
    lines = [f"- {each['what']}: {each['why']}\n" for each in failed]
    return FAILED + "".join(lines) if failed else ""


def _peers(figures: Figures) -> str:
    rows = figures["peers"]
    if not rows:
        return ""
    maximum = max(row["rounds"] for row in rows)
    rounds = "one round" if maximum == 1 else f"{maximum} rounds"
    parts = [PEERS.format(rounds=rounds, chart=CHART), READING, "### Brokers and settings\n"]
    parts.append(_contestants(figures["contestants"]))
    parts += [f"Not in this run: {reason}.\n" for reason in figures["skipped"].values()]
    for size in _distinct(rows, "size"):
        those = [row for row in rows if row["size"] == size]
        for scenario in _distinct(those, "scenario"):
            runs = [row for row in those if row["scenario"] == scenario]
            title = f"### {scenario[0].upper()}{scenario[1:]}, {size:,} bytes each\n"
            parts += [title, _memory(runs) if "bytes_each" in runs[0] else _work(runs)]
    return "\n".join([*parts, FAIRNESS])


def _contestants(contestants: Sequence[Row]) -> str:
    keys = ["name", "version", "durability", "settings", "publishes", "consumes"]
    rows = "".join("| " + " | ".join(each[key] for key in keys) + " |\n" for each in contestants)
    head = ["", "version", "class", "settings", "publishing", "consuming"]
    return "| " + " | ".join(head) + " |\n" + "| --- " * len(keys) + "|\n" + rows


def _work(rows: Sequence[Row]) -> str:
    head = ["", "class", "msg/s", "× nsqcy", "CPU µs/msg", "× nsqcy"]
    head += ["load µs/msg", "load busy", "RSS MB", "messages"]
    return table(head, [_work_row(row) for row in rows])


def _work_row(row: Row) -> list[str]:
    return [
        row["contestant"],
        row["durability"],
        f"{row['rate']:,.0f}" + (" †" if row["load_busy"] > BUSY else ""),
        times(row["rate_times"]),
        f"{row['daemon_us']:.2f}",
        times(row["cpu_times"]),
        f"{row['load_us']:.2f}",
        f"{row['load_busy']:.0%}",
        f"{row['rss'] / 1e6:,.0f}",
        f"{row['messages']:,}",
    ]


def _memory(rows: Sequence[Row]) -> str:
    head = ["", "class", "RSS MB at startup", "bytes per queued message", "messages"]
    return table(
        head,
        [
            [
                row["contestant"],
                row["durability"],
                f"{row['idle_rss'] / 1e6:,.0f}",
                f"{row['bytes_each']:,.0f}",
                f"{row['messages']:,}",
            ]
            for row in rows
        ],
    )


def _nsqd(rows: Sequence[Row]) -> str:
    parts = []
    for head, those in (
        (ALONE, [row for row in rows if row["name"] not in OWN_SECTION]),
        (DURABLE, _named(rows, "durable")),
        (COPIES, _named(rows, "copies")),
        (KEYED, _named(rows, "keys")),
    ):
        parts += [head + _own(those)] if those else []
    return "".join(parts)


def _named(rows: Iterable[Row], name: str) -> list[Row]:
    return [row for row in rows if row["name"] == name]


def _own(rows: Sequence[Row]) -> str:
    head = [
        "",
        "workers",
        "class",
        "msg/s",
        "CPU µs/msg",
        "× floor",
        "load µs/msg",
        "RSS MB",
        "rounds",
        "note",
    ]
    body = [
        [
            row["scenario"],
            str(row["workers"] or ""),
            row["durability"],
            f"{row['rate']:,.0f}",
            f"{row['daemon_us']:.3f}",
            times(row["floors"]),
            f"{row['load_us']:.3f}",
            f"{row['rss'] / 1e6:,.0f}",
            str(row["rounds"]),
            row["note"],
        ]
        for row in rows
    ]
    return table(head, body)


def times(multiple: float) -> str:
    """Format a multiple; an unknown value becomes an empty string."""
    if not multiple:
        return ""
    if multiple < 0.01:
        return f"{multiple:.3f}"
    return f"{multiple:.2f}" if multiple < 10 else f"{multiple:.0f}"


def _distinct(rows: Iterable[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))
