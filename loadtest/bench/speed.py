"""Messages a second, CPU microseconds of the daemon for each, and latency, by scenario.

The daemon's CPU time is that of all its processes. On a machine with few cores the load competes
with the daemon: compare the CPU a message between runs, and rates only within one.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.bench import daemon, load
from loadtest.bench.daemon import Daemon

IN_MEMORY = 1_000_000_000  # messages: more than any run has
BATCH = 200
READY = 2500


@dataclass
class Result:
    scenario: str
    messages: int
    seconds: float
    daemon_cpu: float
    load_cpu: float
    rss: int = 0
    pss: int = 0
    note: str = ""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def daemon_us(self) -> float:
        return self.daemon_cpu / self.messages * 1e6

    @property
    def load_us(self) -> float:
        return self.load_cpu / self.messages * 1e6


@dataclass
class Settings:
    workers: int = 1
    size: int = 200
    scale: float = 1.0
    repeat: int = 3
    target: Daemon | None = None

    def count(self, messages: int) -> int:
        return max(BATCH * 4, int(messages * self.scale) // (BATCH * 4) * BATCH * 4)

    @property
    def body(self) -> bytes:
        return bytes(range(33, 33 + 64)) * (self.size // 64) + b"." * (self.size % 64)

    @contextmanager
    def nsqd(self, **options: Any) -> Iterator[Daemon]:
        if self.target is not None:
            yield self.target
            return
        options.setdefault("mem_queue_size", IN_MEMORY)
        with daemon.private(self.workers, **options) as one:
            yield one


def measure(
    scenario: str, nsqd: Daemon, team: load.Team, counted: slice = slice(None)
) -> tuple[Result, list[load.Report]]:
    """Run a team. `counted`: the members whose messages and times are those of the result."""
    team.ready()
    before = nsqd.cpu_seconds()
    reports = team.run()
    cpu = nsqd.cpu_seconds() - before
    those = reports[counted]
    result = Result(
        scenario,
        messages=sum(report["messages"] for report in those),
        seconds=max(r["ended"] for r in those) - min(r["started"] for r in those),
        daemon_cpu=cpu,
        load_cpu=sum(report["cpu"] for report in reports),
    )
    if nsqd.pids:
        memory = nsqd.memory()
        result.rss, result.pss = memory["Rss"], memory["Pss"]
    return result, reports


def topic_name() -> str:
    return f"bench_{time.time_ns():x}"


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


# -- scenarios


def batches(settings: Settings) -> Iterator[Result]:
    """Publish and consume in turns: from the second round on memory is recycled."""
    messages = settings.count(1_000_000)
    topic = topic_name()
    with settings.nsqd() as nsqd:
        yield publish(settings, nsqd, topic, messages, "MPUB x200, 2 conn, memory new")
        yield consume(nsqd, topic, messages)
        for _ in range(settings.repeat):
            yield publish(settings, nsqd, topic, messages)
            yield consume(nsqd, topic, messages)


def single_pipelined(settings: Settings) -> Iterator[Result]:
    messages = settings.count(500_000)
    topic = topic_name()
    command = load.pub(topic, settings.body)
    with settings.nsqd() as nsqd:
        for _ in range(settings.repeat):
            with load.Team(1) as team:
                team.add(load.pipelined, nsqd.tcp, command, 1, messages, 100)
                yield measure("PUB, 100 in the pipe, 1 conn", nsqd, team)[0]
            consume(nsqd, topic, messages)


def single_waiting(settings: Settings) -> Iterator[Result]:
    messages = settings.count(100_000)
    topic = topic_name()
    command = load.pub(topic, settings.body)
    with settings.nsqd() as nsqd:
        for _ in range(settings.repeat):
            with load.Team(2) as team:
                for _ in range(2):
                    team.add(load.waiting, nsqd.tcp, command, messages // 2, 25)
                yield measure("PUB, wait for OK, 50 conn", nsqd, team)[0]
            consume(nsqd, topic, messages)


def through(settings: Settings) -> Iterator[Result]:
    messages = settings.count(1_000_000)
    with settings.nsqd() as nsqd:
        for _ in range(settings.repeat):
            topic = topic_name()
            with load.Team(4) as team:
                for _ in range(2):
                    team.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 2), 0)
                add_mpub(settings, nsqd, team, topic, messages)
                yield measure("MPUB and SUB+FIN at once", nsqd, team, slice(0, 2))[0]


def latency(settings: Settings) -> Iterator[Result]:
    rate = 20_000
    messages = max(rate // 10, int(rate * 5 * settings.scale))
    with settings.nsqd() as nsqd:
        for _ in range(settings.repeat):
            topic = topic_name()
            with load.Team(2) as team:
                team.add(
                    load.finishing,
                    nsqd.tcp, topic, READY, messages, slice(0, 1), settings.size,
                )  # fmt: skip
                team.add(load.paced, nsqd.tcp, topic, settings.size, rate, messages)
                result, (received, sent) = measure("latency at 20 k msg/s", nsqd, team, slice(0, 1))
            p50, p99 = percentiles(received["latencies"])
            late = percentiles(sent["late"])[1]
            result.note = f"p50 {p50:.0f} us, p99 {p99:.0f} us (sender late p99 {late:.0f} us)"
            yield result


def overflow(settings: Settings) -> Iterator[Result]:
    messages = settings.count(1_000_000)
    topic = topic_name()
    # The budget is small, so that what was written is read back.
    with settings.nsqd(mem_queue_size=10_000, memory_bytes=32 << 20) as nsqd:
        for _ in range(settings.repeat):
            yield publish(settings, nsqd, topic, messages, "MPUB x200, to disk")
            yield consume(nsqd, topic, messages, "SUB+FIN, from disk")


def idle_connections(settings: Settings) -> Iterator[Result]:
    connections = max(100, int(5000 * settings.scale))
    with settings.nsqd() as nsqd:
        topic = topic_name()
        with load.Team(1) as team:
            team.add(load.idle, nsqd.tcp, topic, 1, 0.0)
            before = measure("", nsqd, team)[0]
        with load.Team(1) as team:
            team.add(load.idle, nsqd.tcp, topic, connections, 3.0)
            result, reports = measure("idle subscribed connections", nsqd, team)
        result.messages = connections
        each = (result.pss - before.pss) / connections
        result.note = f"{each:.0f} bytes of PSS each, {reports[0]['lost']} lost"
        yield result


SCENARIOS: dict[str, Callable[[Settings], Iterator[Result]]] = {
    "batches": batches,
    "pipe": single_pipelined,
    "wait": single_waiting,
    "through": through,
    "latency": latency,
    "disk": overflow,
    "idle": idle_connections,
}


# -- figures


def percentiles(nanoseconds: list[int]) -> tuple[float, float]:
    """p50 and p99 in microseconds."""
    ordered = sorted(nanoseconds)
    return ordered[len(ordered) // 2] / 1e3, ordered[len(ordered) * 99 // 100] / 1e3


def medians(results: list[Result]) -> list[Result]:
    """One result for each scenario: the run with the median CPU a message."""
    found = []
    for name in dict.fromkeys(result.scenario for result in results):
        runs = sorted(
            (result for result in results if result.scenario == name),
            key=lambda result: result.daemon_us,
        )
        found.append(runs[(len(runs) - 1) // 2])
    return found


HEADER = (
    f"{'scenario':32} {'msg/s':>10} {'CPU us/msg':>10} {'load us/msg':>11} "
    f"{'RSS MB':>7} {'PSS MB':>7}"
)


def row(result: Result) -> str:
    return (
        f"{result.scenario:32} {result.rate:>10,.0f} {result.daemon_us:>10.3f} "
        f"{result.load_us:>11.3f} {result.rss / 1e6:>7.0f} {result.pss / 1e6:>7.0f}"
        f"{'  ' + result.note if result.note else ''}"
    )


def run(settings: Settings, wanted: list[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """The medians of the scenarios wanted, told one by one."""
    rows = []
    say(HEADER)
    for name in wanted:
        results = list(SCENARIOS[name](settings))
        for result in medians(results):
            say(row(result))
            runs = [each for each in results if each.scenario == result.scenario]
            rows.append(
                asdict(result)
                | {
                    "workers": settings.workers,
                    "rate": result.rate,
                    "daemon_us": result.daemon_us,
                    "load_us": result.load_us,
                    "runs_daemon_us": [each.daemon_us for each in runs],
                    "median_rate": statistics.median(each.rate for each in runs),
                }
            )
    return rows
