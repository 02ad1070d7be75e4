"""Memory per message, topic, connection and straggler.

Bytes are the growth of the proportional set size summed over all processes of the daemon, so that
shared pages count once.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.bench import daemon, load, speed
from loadtest.bench.daemon import Daemon

BODY = b"x" * 200
RECORD = 240  # bytes per record with such a body
REST = 15.0  # seconds until unused memory has been freed


@dataclass
class Figure:
    what: str
    things: int
    grown: int  # bytes
    maximum: float  # maximum bytes per item; 0: no limit
    note: str = ""

    @property
    def each(self) -> float:
        return self.grown / self.things

    @property
    def good(self) -> bool:
        return not self.maximum or self.each <= self.maximum


def pss(nsqd: Daemon) -> int:
    return nsqd.memory()["Pss"]


def warm_up(nsqd: Daemon) -> None:
    """Make the daemon import the modules that the first client needs, and free unused memory."""
    settings = speed.Settings()
    speed.publish(settings, nsqd, "warm_up", speed.BATCH * 4)
    speed.consume(nsqd, "warm_up", speed.BATCH * 4)
    time.sleep(REST)


def messages(workers: int, scale: float) -> Iterator[Figure]:
    settings = speed.Settings(scale=scale)
    count = settings.count(2_000_000)
    with daemon.private(workers, mem_queue_size=speed.IN_MEMORY) as nsqd:
        warm_up(nsqd)
        before = pss(nsqd)
        speed.publish(settings, nsqd, "bench", count)
        yield Figure("message of 200 bytes, queued", count, pss(nsqd) - before, 0)


def topics(workers: int, scale: float) -> Iterator[Figure]:
    count = int(10_000 * scale)
    with daemon.private(workers) as nsqd:
        warm_up(nsqd)
        before = pss(nsqd)
        with load.Team(1) as team:
            names = [f"bench_{number}" for number in range(count)]
            team.add(load.one_each, nsqd.tcp, names, BODY)
            team.ready()
            team.run()
        wait_for_calm(nsqd)
        yield Figure("topic with one message", count, pss(nsqd) - before, 16384)


def connections(workers: int, scale: float) -> Iterator[Figure]:
    count = int(10_000 * scale)
    with daemon.private(workers) as nsqd:
        warm_up(nsqd)
        before = pss(nsqd)
        with load.Team(1) as team:
            team.add(load.idle, nsqd.tcp, "bench", count, 65.0)
            team.ready()
            wait_for_calm(nsqd)
            yield Figure("idle subscribed connection", count, pss(nsqd) - before, 6144)
            (report,) = team.run()
            note = f"{report['lost']} lost, {report['beats']} heartbeats"
            grown = pss(nsqd) - before
            yield Figure("... a minute later", count, grown, 6144, note)
            if report["lost"]:
                raise RuntimeError(f"{report['lost']} idle connections were lost")


def stragglers(workers: int, scale: float, **options: Any) -> Iterator[Figure]:
    settings = speed.Settings(scale=scale)
    rounds = 5
    part = settings.count(1_000_000)
    with daemon.private(workers, **options) as nsqd:
        warm_up(nsqd)
        before = pss(nsqd)
        put_off = 0
        for _ in range(rounds):
            speed.publish(settings, nsqd, "bench", part)
            with load.Team(1) as team:
                team.add(load.deferring, nsqd.tcp, "bench", part, 1000)
                team.ready()
                put_off += team.run()[0]["put_off"]
        time.sleep(REST)
        note = (
            f"{put_off * RECORD / 1e6:.1f} MB of live records, {nsqd.disk() / 1e6:.1f} MB on disk"
        )
        where = "in memory" if options else "through the disk"
        grown = pss(nsqd) - before
        yield Figure(f"deferred 1 of 1000, {where}", put_off, grown, 10 * RECORD, note)


def stragglers_in_memory(workers: int, scale: float) -> Iterator[Figure]:
    yield from stragglers(workers, scale, mem_queue_size=speed.IN_MEMORY)


def wait_for_calm(nsqd: Daemon) -> None:
    """Wait until the daemon has done its work and no longer uses CPU time."""
    used = -1.0
    while nsqd.cpu_seconds() - used > 0.05:
        used = nsqd.cpu_seconds()
        time.sleep(1.0)


SCENARIOS: dict[str, Callable[[int, float], Iterator[Figure]]] = {
    "messages": messages,
    "topics": topics,
    "connections": connections,
    "disk": stragglers,
    "stragglers": stragglers_in_memory,
}

HEADER = f"{'what':34} {'how many':>10} {'bytes each':>11} {'at maximum':>8}"


def row(figure: Figure) -> str:
    maximum = f"{figure.maximum:,.0f}" if figure.maximum else "-"
    mark = "" if figure.good else "  TOO MUCH"
    return (
        f"{figure.what:34} {figure.things:>10,} {figure.each:>11,.0f} {maximum:>8}{mark}"
        f"{'  ' + figure.note if figure.note else ''}"
    )


def run(
    workers: int, scale: float, wanted: list[str], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows = []
    say(HEADER)
    for name in wanted:
        for figure in SCENARIOS[name](workers, scale):
            say(row(figure))
            rows.append(asdict(figure) | {"workers": workers, "each": figure.each})
    return rows
