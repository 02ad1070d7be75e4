"""How a scenario is measured and told: messages a second, CPU microseconds of the daemon for each.

Owns what scenarios are made of: settings, results, teams of the usual load. Knows no scenario;
those are in loadtest/bench/scenarios.

The daemon's CPU time is that of all its processes. On a machine with few cores the load competes
with the daemon: compare the CPU a message between runs, and rates only within one.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.bench import daemon, floor, load
from loadtest.bench.daemon import Daemon, NotOffered

IN_MEMORY = 1_000_000_000  # messages: more than any run has
MEMORY, OVERFLOW, UNKNOWN = "memory", "overflow", "as it was set up"  # classes of durability
BATCH = 200
READY = 2500


@dataclass
class Result:
    """One run. Times are seconds, and memory is bytes, over all processes of the daemon."""

    scenario: str
    messages: int
    seconds: float
    daemon_cpu: float
    load_cpu: float
    rss: int = 0
    pss: int = 0
    note: str = ""
    durability: str = MEMORY
    workers: int = 0  # 0: those of an NSQ that ran already
    busiest_cpu: float = 0.0  # of that process of the daemon that used most
    floor_cpu: float = 0.0  # of the floor for as many messages; 0: it was not run
    figures: dict[str, float] = field(default_factory=dict)  # what else was measured
    order: str = ""  # the figure that tells which run is the median; "": CPU a message

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
        """The daemon's CPU as a multiple of the floor's; 0 when that was not run."""
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

    def count(self, messages: int) -> int:
        return max(BATCH * 4, int(messages * self.scale) // (BATCH * 4) * BATCH * 4)

    def some(self, things: int, least: int = 1) -> int:
        return max(least, int(things * self.scale))

    @property
    def body(self) -> bytes:
        return body(self.size)

    def numbers(self, *workers: int) -> list[int]:
        """The numbers of workers to compare; a target has those it has."""
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
        """An nsqd for each number of workers, side by side, so that runs can alternate."""
        with ExitStack() as stack:
            numbers = self.numbers(*workers)
            yield {each: stack.enter_context(self.nsqd(each)) for each in numbers}

    @contextmanager
    def topics(self, nsqd: Daemon, count: int) -> Iterator[list[str]]:
        """Names of topics to come, that a target does not keep."""
        stem = topic_name()
        names = [f"{stem}_{number:05}" for number in range(count)]
        yield names
        if self.target is not None and nsqd.http is not None:
            for name in names:
                nsqd.post(f"/topic/delete?topic={name}")

    @contextmanager
    def topic(self, nsqd: Daemon) -> Iterator[str]:
        with self.topics(nsqd, 1) as names:
            yield names[0]

    @contextmanager
    def floor(self) -> Iterator[Daemon]:
        with floor.running(self.size) as one:
            yield one


def body(size: int) -> bytes:
    return bytes(range(33, 33 + 64)) * (size // 64) + b"." * (size % 64)


def measure(
    scenario: str, nsqd: Daemon, team: load.Team, counted: slice = slice(None)
) -> tuple[Result, list[load.Report]]:
    """Run a team. `counted`: the members whose messages and times are those of the result."""
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
    """The end of a scenario's name, where numbers of workers are compared."""
    return f", {nsqd.workers} worker{'s' * (nsqd.workers > 1)}" if nsqd.workers else ""


def beside(result: Result, floor: Result) -> Result:
    """A result with what the floor took for as many messages."""
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
    """p50, p99 and p99.9 in microseconds."""
    ordered = sorted(nanoseconds) or [0]
    last = len(ordered) - 1
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    return {name: ordered[round(last * share)] / 1e3 for name, share in shares.items()}


def told(name: str, figures: dict[str, float], unit: float = 1.0, digits: int = 0) -> str:
    """Percentiles for a note."""
    p50, p99, p999 = (figures[each] / unit for each in ("p50", "p99", "p999"))
    return f"{name} p50 {p50:.{digits}f}, p99 {p99:.{digits}f}, p99.9 {p999:.{digits}f}"


def medians(results: list[Result]) -> list[Result]:
    """One result for each scenario: the median run. The floor is the median of its runs."""
    found = []
    for name in dict.fromkeys(result.scenario for result in results):
        runs = sorted(
            (result for result in results if result.scenario == name), key=lambda one: one.rank
        )
        median = runs[(len(runs) - 1) // 2]
        if floors := [each.floor_cpu / each.messages for each in runs if each.floor_cpu]:
            median.floor_cpu = statistics.median(floors) * median.messages
        found.append(median)
    return found


HEADER = (
    f"{'scenario':34} {'msg/s':>10} {'CPU us/msg':>10} {'x floor':>7} {'load us/msg':>11} "
    f"{'RSS MB':>7} {'PSS MB':>7}"
)


def row(result: Result) -> str:
    floors = f"{result.floors:.2f}" if result.floor_cpu else ""
    return (
        f"{result.scenario:34} {result.rate:>10,.0f} {result.daemon_us:>10.3f} {floors:>7} "
        f"{result.load_us:>11.3f} {result.rss / 1e6:>7.0f} {result.pss / 1e6:>7.0f}"
        f"{'  ' + result.note if result.note else ''}"
    )


Runs = Callable[[Settings], Iterator[Result]]


def run(
    settings: Settings, chosen: dict[str, Runs], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The medians of the scenarios chosen, told one by one."""
    rows = []
    say(HEADER)
    for name, scenario in chosen.items():
        try:
            results = list(scenario(settings))
        except NotOffered as error:
            say(f"{name}: left out, {error}")
            continue
        for result in medians(results):
            say(row(result))
            runs = [each for each in results if each.scenario == result.scenario]
            rows.append(
                asdict(result)
                | {
                    "name": name,
                    "rate": result.rate,
                    "daemon_us": result.daemon_us,
                    "load_us": result.load_us,
                    "busiest_us": result.busiest_us,
                    "floors": result.floors,
                    "runs_daemon_us": [each.daemon_us for each in runs],
                    "median_rate": statistics.median(each.rate for each in runs),
                }
            )
    return rows
