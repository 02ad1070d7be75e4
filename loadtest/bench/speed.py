"""Measures scenarios and reports them: messages per second, and CPU microseconds of the daemon per
message.

Owns the building blocks for scenarios: settings, rounds, results, teams for the usual load.
Contains no scenario; those are in loadtest/bench/scenarios.

The daemon's CPU time includes all of its processes. On a machine with few cores, the load competes
with the daemon: compare CPU time per message between runs, and rates only within one run. A machine
may be twice as fast a minute later, so compared runs take turns in every round, and a ratio is the
median of the rounds' ratios.
"""

import mmap
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.bench import daemon, floor, load
from loadtest.bench.daemon import Daemon, NotOffered

IN_MEMORY = 1_000_000_000  # messages; more than in any run
MEMORY, OVERFLOW, UNKNOWN = "memory", "overflow", "as it was set up"  # durability classes
BATCH = 200
READY = 2500


@dataclass
class Result:
    """One run. Times are in seconds, and memory is in bytes, over all processes of the daemon."""

    scenario: str
    messages: int
    seconds: float
    daemon_cpu: float
    load_cpu: float
    rss: int = 0
    pss: int = 0
    note: str = ""
    durability: str = MEMORY
    workers: int = 0  # number of workers; 0: unknown, because nsqd was already running
    busiest_cpu: float = 0.0  # CPU time of the daemon's busiest process
    floor_cpu: float = 0.0  # CPU time of the floor for the same number of messages; 0: not measured
    figures: dict[str, float] = field(default_factory=dict)  # other measurements
    order: str = ""  # the figure that selects the median run; "": CPU per message

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def daemon_us(self) -> float:
        return self.daemon_cpu / self.messages * 1e6

    @property
    def load_us(self) -> float:
        return self.load_cpu / self.messages * 1e6

    @property
    def busiest_us(self) -> float:
        return self.busiest_cpu / self.messages * 1e6

    @property
    def floors(self) -> float:
        """The daemon's CPU time as a multiple of the floor's; 0 if the floor was not measured."""
        return self.daemon_cpu / self.floor_cpu if self.floor_cpu else 0.0

    @property
    def rank(self) -> float:
        return self.figures[self.order] if self.order else self.daemon_us


@dataclass
class Settings:
    workers: int = 1
    size: int = 200
    scale: float = 1.0
    repeat: int = 3
    target: Daemon | None = None
    deadline: float = float("inf")  # after the first round, no round begins that would end later

    def rounds(self) -> Iterator[int]:
        """Yield as many rounds as were requested, while there is time."""
        longest = 0.0
        for number in range(self.repeat):
            began = time.monotonic()
            if number and began + longest > self.deadline:
                return
            yield number
            longest = max(longest, time.monotonic() - began)

    def count(self, messages: int) -> int:
        return max(BATCH * 4, int(messages * self.scale) // (BATCH * 4) * BATCH * 4)

    def some(self, things: int, minimum: int = 1) -> int:
        return max(minimum, int(things * self.scale))

    def seconds(self, usual: float) -> float:
        """Return a duration, shortened if the scale is below 1."""
        return usual * min(1.0, self.scale)

    @property
    def body(self) -> bytes:
        return body(self.size)

    def numbers(self, *workers: int) -> list[int]:
        """Return the numbers of workers to compare; a target keeps its own number."""
        return [0] if self.target else list(workers)

    @contextmanager
    def nsqd(self, workers: int = 0, **options: Any) -> Iterator[Daemon]:
        if self.target is not None:
            yield self.target
            return
        options.setdefault("mem_queue_size", IN_MEMORY)
        with daemon.private(workers or self.workers, **options) as one:
            yield one

    @contextmanager
    def nsqds(self, *workers: int) -> Iterator[dict[int, Daemon]]:
        """An nsqd for each number of workers, at the same time, so that runs can alternate."""
        with ExitStack() as stack:
            numbers = self.numbers(*workers)
            yield {each: stack.enter_context(self.nsqd(each)) for each in numbers}

    @contextmanager
    def topics(self, nsqd: Daemon, count: int) -> Iterator[list[str]]:
        """Yield names of new topics; on a target, they are deleted afterwards."""
        stem = topic_name()
        names = [f"{stem}_{number:05}" for number in range(count)]
        yield names
        if self.target is not None and nsqd.http is not None:
            for name in names:
                nsqd.web.do("delete", name)

    @contextmanager
    def topic(self, nsqd: Daemon) -> Iterator[str]:
        with self.topics(nsqd, 1) as names:
            yield names[0]

    @contextmanager
    def floor(self) -> Iterator[Daemon]:
        with floor.running(self.size) as one:
            yield one


def touch_memory(size: int) -> None:
    """Touch this number of bytes, so that the host has already provided the memory. On a virtual
    machine whose host provides memory on first use, that use costs up to a microsecond per
    message."""
    piece = bytes(1 << 20)
    with mmap.mmap(-1, size) as memory:
        while memory.tell() <= size - len(piece):
            memory.write(piece)


def body(size: int) -> bytes:
    return bytes(range(33, 33 + 64)) * (size // 64) + b"." * (size % 64)


def measure(
    scenario: str, nsqd: Daemon, team: load.Team, counted: slice = slice(None)
) -> tuple[Result, list[load.Report]]:
    """Run a team. `counted`: the members whose messages and times make up the result."""
    team.ready()
    before = nsqd.cpu_of_each()
    reports = team.run()
    cpu = [now - then for now, then in zip(nsqd.cpu_of_each(), before, strict=True)]
    those = reports[counted]
    result = Result(
        scenario,
        messages=sum(report["messages"] for report in those),
        seconds=max(r["ended"] for r in those) - min(r["started"] for r in those),
        daemon_cpu=sum(cpu),
        load_cpu=sum(report["cpu"] for report in reports),
        busiest_cpu=max(cpu, default=0.0),
        workers=nsqd.workers,
        durability=MEMORY if nsqd.workers else UNKNOWN,
    )
    if nsqd.pids:
        memory = nsqd.memory()
        result.rss, result.pss = memory["Rss"], memory["Pss"]
    return result, reports


def topic_name() -> str:
    return f"bench_{time.time_ns():x}"


def on(nsqd: Daemon) -> str:
    """Return the suffix of a scenario's name, for scenarios that compare numbers of workers."""
    return f", {nsqd.workers} worker{'s' * (nsqd.workers > 1)}" if nsqd.workers else ""


def beside(result: Result, floor: Result) -> Result:
    """Return a result with the floor's cost for the same number of messages."""
    result.floor_cpu = floor.daemon_cpu * result.messages / floor.messages
    return result


# -- teams


def add_mpub(settings: Settings, nsqd: Daemon, team: load.Team, topic: str, messages: int) -> None:
    command = load.mpub(topic, [settings.body] * BATCH)
    for _ in range(2):
        team.add(load.pipelined, nsqd.tcp, command, BATCH, messages // BATCH // 2, 8)


def publish(
    settings: Settings, nsqd: Daemon, topic: str, messages: int, scenario: str = "MPUB x200, 2 conn"
) -> Result:
    with load.Team(2) as team:
        add_mpub(settings, nsqd, team, topic, messages)
        return measure(scenario, nsqd, team)[0]


def consume(
    nsqd: Daemon, topic: str, messages: int, scenario: str = "SUB+FIN RDY 2500, 2 conn"
) -> Result:
    with load.Team(2) as team:
        for _ in range(2):
            team.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 2), 0)
        return measure(scenario, nsqd, team)[0]


# -- figures


def percentiles(nanoseconds: list[int]) -> dict[str, float]:
    """Return p50, p99 and p99.9 in microseconds."""
    ordered = sorted(nanoseconds) or [0]
    last = len(ordered) - 1
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {name: ordered[round(last * share)] / 1e3 for name, share in shares.items()}


def told(name: str, figures: dict[str, float], unit: float = 1.0, digits: int = 0) -> str:
    """Format percentiles for a note."""
    p50, p99, p999 = (figures[each] / unit for each in ("p50", "p99", "p999"))
    return f"{name} p50 {p50:.{digits}f}, p99 {p99:.{digits}f}, p99.9 {p999:.{digits}f}"


def row(name: str, runs: list[Result]) -> dict[str, Any]:
    """Summarise a scenario's runs under one title: the median of each figure separately. The note
    and other measurements are from the median run."""
    shown = sorted(runs, key=lambda one: one.rank)[(len(runs) - 1) // 2]

    def of(figure: Callable[[Result], float]) -> float:
        return statistics.median_low(figure(one) for one in runs)

    return {
        "name": name,
        "scenario": shown.scenario,
        "workers": shown.workers,
        "durability": shown.durability,
        "messages": shown.messages,
        "rounds": len(runs),
        "rate": of(lambda one: one.rate),
        "daemon_us": of(lambda one: one.daemon_us),
        "busiest_us": of(lambda one: one.busiest_us),
        "floors": of(lambda one: one.floors),
        "load_us": of(lambda one: one.load_us),
        "rss": of(lambda one: one.rss),
        "pss": of(lambda one: one.pss),
        "figures": shown.figures,
        "note": shown.note,
        "runs": [asdict(one) for one in runs],
    }


def rows(name: str, results: list[Result]) -> list[dict[str, Any]]:
    """Return one row for each title in a scenario's results."""
    titles = dict.fromkeys(each.scenario for each in results)
    return [row(name, [each for each in results if each.scenario == title]) for title in titles]


HEADER = (
    f"{'scenario':34} {'msg/s':>10} {'CPU us/msg':>10} {'x floor':>7} {'load us/msg':>11} "
    f"{'RSS MB':>7} {'PSS MB':>7}"
)


def line(row: dict[str, Any]) -> str:
    floors = f"{row['floors']:.2f}" if row["floors"] else ""
    return (
        f"{row['scenario']:34} {row['rate']:>10,.0f} {row['daemon_us']:>10.3f} {floors:>7} "
        f"{row['load_us']:>11.3f} {row['rss'] / 1e6:>7.0f} {row['pss'] / 1e6:>7.0f}"
        f"{'  ' + row['note'] if row['note'] else ''}"
    )


# -- all scenarios


Runs = Callable[[Settings], Iterator[Result]]


@dataclass(frozen=True)
class Scenario:
    runs: Runs
    about: str
    quick: bool = False  # whether it runs by default
    seconds: float = 10.0  # duration of three rounds; determines its share of a limited time
    long: bool = False  # whether only full runs of all benchmarks contain it


@dataclass
class Found:
    """The rows of scenarios, and the scenarios that failed."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)


def failure(what: str, error: Exception) -> dict[str, str]:
    """Return the last line of an error, for readers."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return {"what": what, "why": lines[-1]}


def run(
    settings: Settings,
    chosen: dict[str, Scenario],
    say: Callable[[str], None],
    end: float = float("inf"),
) -> Found:
    """Run the chosen scenarios and report each. If one fails, the others still run.

    Each scenario has its share of the remaining time, plus the time that previous scenarios have
    not used.
    """
    found = Found()
    say(HEADER)
    shares = sum(each.seconds for each in chosen.values())
    for name, scenario in chosen.items():
        now = time.monotonic()
        settings.deadline = now + (end - now) * scenario.seconds / shares
        shares -= scenario.seconds
        results: list[Result] = []
        try:
            for result in scenario.runs(settings):
                results.append(result)
        except NotOffered as error:
            say(f"{name}: left out, {error}")
        except Exception as error:
            say(f"{name}: failed, {error}")
            found.failed.append(failure(name, error))
        for each in rows(name, results):
            say(line(each))
            found.rows.append(each)
    return found
