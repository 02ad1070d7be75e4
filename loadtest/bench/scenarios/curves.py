"""Curves: what a message costs while one quantity grows by orders of magnitude.

Each point has its own nsqd. Cheap points are repeated, for at most POINT_SECONDS; the others have
one round.
"""

import dataclasses
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice

from loadtest.bench import growth, load, speed
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.scenarios.many import PROCESSES, SETTLE, warmed_up
from loadtest.bench.scenarios.scaling import both_ways
from loadtest.bench.speed import BATCH, READY, Result, Settings, consume, measure, publish
from nsqcy.process.limits import available_memory

POINT_SECONDS = 8.0
SPARE_FILES = 500  # descriptors that a process with the maximum number of connections keeps free
TOPICS = 16  # for workers
ENOUGH = 400_000  # number of messages that gives a precise figure
QUEUED_SIZE = 300  # bytes of memory for a queued message of 200 bytes


def waiting(settings: Settings, x: int) -> Result:
    messages = settings.count(x)
    with settings.nsqd() as nsqd:
        speed.touch_memory(min(x * QUEUED_SIZE, available_memory() // 2))
        before = warmed_up(settings, nsqd)
        turns = []
        for _ in range(max(1, settings.some(ENOUGH) // x)):
            with settings.topic(nsqd) as topic:
                published = publish(settings, nsqd, topic, messages)
                on_disk = nsqd.disk()
                turns += [published, consume(nsqd, topic, messages)]
    result = published
    result.figures["bytes"] = (result.pss - before) / messages
    result.seconds = sum(turn.seconds for turn in turns)
    result.daemon_cpu = sum(turn.daemon_cpu for turn in turns)
    result.load_cpu = sum(turn.load_cpu for turn in turns)
    result.messages = sum(turn.messages for turn in turns) // 2
    result.note = "all in memory"
    if on_disk > messages * settings.size // 100:
        result.note = f"{on_disk / 1e9:.1f} GB on disk"
        result.durability = speed.OVERFLOW
    return result


def topics(settings: Settings, x: int) -> Result:
    with settings.nsqd() as nsqd, settings.topics(nsqd, x) as names:
        before = warmed_up(settings, nsqd)
        created = one_each(settings, nsqd, names)
        grown = (created.pss - before) / x
        result = one_each(settings, nsqd, list(islice(cycle(names), max(x, settings.some(ENOUGH)))))
    result.figures["bytes"] = grown
    if x >= growth.MANY:
        result.note = f"{created.daemon_us:,.0f} us of CPU for a new topic"
    return result


def one_each(settings: Settings, nsqd: Daemon, names: list[str]) -> Result:
    with load.Team(1) as team:
        team.add(load.one_each, nsqd.tcp, names, settings.body)
        return measure("", nsqd, team)[0]


def channels(settings: Settings, x: int) -> Result:
    messages = max(2 * BATCH, settings.count(ENOUGH) // x // (2 * BATCH) * 2 * BATCH)
    with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
        before = warmed_up(settings, nsqd)
        used = nsqd.cpu_seconds()
        names = [f"channel{number}" for number in range(x)]
        for name in names:
            load.consumer(nsqd.tcp, topic, name, 0).close()
        created = (nsqd.cpu_seconds() - used) / x * 1e6
        time.sleep(settings.seconds(SETTLE))
        grown = (nsqd.memory()["Pss"] - before) / x
        published = publish(settings, nsqd, topic, messages)
        processes = min(x, PROCESSES)
        with load.Team(processes) as team:
            for number in range(processes):
                places = [(topic, name) for name in names[number::processes]]
                slots = slice(0, processes)
                team.add(load.crowd, nsqd.tcp, places, READY, messages * x, slots, 0)
            result = measure("", nsqd, team)[0]
    result.seconds += published.seconds
    result.daemon_cpu += published.daemon_cpu
    result.load_cpu += published.load_cpu
    result.messages = messages
    result.figures["bytes"] = grown
    result.note = f"{result.daemon_us / x:.2f} us for a copy"
    if x >= growth.MANY:
        result.note += f"; {created:,.0f} us of CPU for a new channel"
    return result


def connections(settings: Settings, x: int) -> Result:
    """A crowd in several processes, each with its own loopback address: an address has only as many
    ports as net.ipv4.ip_local_port_range."""
    messages = settings.count(ENOUGH // 4)
    with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
        load.consumer(nsqd.tcp, topic, "bench", 0).close()
        before = publish(settings, nsqd, topic, messages).pss
        processes = min(x, PROCESSES)
        slots = slice(0, processes)
        with load.Team(processes) as team:
            for number in range(processes):
                places = [(topic, "bench")] * len(range(number, x, processes))
                work = partial(load.crowd, open=partial(load.consumer_at, f"127.0.0.{number + 2}"))
                team.add(work, nsqd.tcp, places, 1, messages, slots, 0)
            team.ready()
            grown = (nsqd.memory()["Pss"] - before) / x
            result = measure("", nsqd, team)[0]
    result.figures["bytes"] = grown
    return result


def workers(settings: Settings, x: int) -> Result:
    with settings.nsqd(x) as nsqd:
        return both_ways(settings, nsqd, TOPICS, settings.count(3 * ENOUGH))


def sizes(settings: Settings, x: int) -> Result:
    settings = dataclasses.replace(settings, size=x)
    batch = max(1, min(BATCH, 100_000 // x))
    commands = settings.some(min(ENOUGH, 500_000_000 // x), 4) // batch + 1
    with settings.nsqd() as nsqd, settings.topic(nsqd) as topic, load.Team(2) as team:
        ready, messages = min(READY, max(100, 10_000_000 // x)), commands * batch
        team.add(load.finishing, nsqd.tcp, topic, ready, messages, slice(0, 1), 0)
        one = load.mpub(topic, [settings.body] * batch)
        team.add(load.pipelined, nsqd.tcp, one, batch, commands, 8)
        result = measure("", nsqd, team, slice(0, 1))[0]
    result.note = f"{result.rate * x / 1e6:,.0f} MB/s"
    return result


def most_connections() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_FILES


Points = Sequence[int]
PLAN: dict[growth.Curve, tuple[Callable[[Settings, int], Result], Points]] = {
    growth.WAITING: (waiting, (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000)),
    growth.TOPICS: (topics, (1, 10, 100, 1_000, 10_000, 100_000)),
    growth.CHANNELS: (channels, (1, 10, 100, 1_000, 10_000)),
    growth.CONNECTIONS: (connections, (1, 10, 100, 1_000, 10_000, 100_000)),
    growth.WORKERS: (workers, (1, 2, 4)),
    growth.SIZE: (sizes, (10, 100, 1_000, 10_000, 100_000, 1_000_000)),
}


def curves(settings: Settings) -> Iterator[Result]:
    if settings.target is not None:
        raise NotOffered("each point needs an nsqd of its own")
    for curve, (run, points) in PLAN.items():
        maximum = points[-1] * settings.scale
        if curve is growth.CONNECTIONS:
            maximum = min(maximum, most_connections())
        some = [x for x in points if x < maximum] + [int(maximum)]
        for x in some if settings.scale >= 1 else points[:2]:
            point = dataclasses.replace(settings, deadline=time.monotonic() + POINT_SECONDS)
            for _ in point.rounds():
                result = run(point, x)
                result.scenario = curve.point(x)
                result.figures["x"] = x
                yield result
