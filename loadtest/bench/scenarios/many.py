"""Cost, including memory, of large numbers of channels, topics, connections or messages."""

import resource
import time
from collections.abc import Iterator

from loadtest.bench import load, procfs
from loadtest.bench.daemon import Daemon
from loadtest.bench.speed import Result, Settings, consume, measure, publish, touch_memory

SETTLE = 1.0  # seconds in which a daemon frees a client's memory
IDLE = 3.0  # how long connections stay idle, in seconds
MANY_IDLE, HEARTBEATS = 200_000, 30.0  # connections; seconds between their heartbeats
SPARE_FILES = 1_000  # of a process that has as many connections as it can open files
STALLED = 60.0  # seconds without a new connection: no more will arrive
PROCESSES = 2


def warmed_up(settings: Settings, nsqd: Daemon) -> int:
    """Return the memory, in bytes, of a daemon that has served its first clients."""
    messages = settings.count(0)
    with settings.topic(nsqd) as topic:
        publish(settings, nsqd, topic, messages)
        consume(nsqd, topic, messages)
    time.sleep(settings.seconds(SETTLE))
    return nsqd.memory()["Pss"]


def each(result: Result, before: int, what: str, things: int) -> Result:
    """Return a result whose note shows the memory growth per object."""
    grown = (result.pss - before) / things
    result.figures["bytes"] = grown
    result.order = "bytes"
    result.note = f"{grown:,.0f} B per {what}"
    return result


def queued(settings: Settings) -> Iterator[Result]:
    messages = settings.count(2_000_000)
    for _ in settings.rounds():
        with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
            before = warmed_up(settings, nsqd)
            result = publish(settings, nsqd, topic, messages, "messages queued")
            yield each(result, before, "message", messages)


def fanout(settings: Settings) -> Iterator[Result]:
    """Channels without consumers: every copy stays queued."""
    messages = settings.count(500_000)
    for _ in settings.rounds():
        for channels in (1, 10, 50):
            with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
                before = warmed_up(settings, nsqd)
                for number in range(channels):
                    load.consumer(nsqd.tcp, topic, f"channel{number}", 0).close()
                touch_memory(2 * messages * settings.size)
                title = f"1 topic to {channels} channel{'s' if channels > 1 else ''}"
                result = publish(settings, nsqd, topic, messages, title)
                yield each(result, before, "message", messages)


def topics(settings: Settings) -> Iterator[Result]:
    """Measure topics that are created by one message and then receive a second one."""
    count = settings.some(10_000, 100)
    for _ in settings.rounds():
        with settings.nsqd() as nsqd, settings.topics(nsqd, count) as names:
            before = warmed_up(settings, nsqd)
            for what in ("new topics", "topics, one message each"):
                with load.Team(1) as team:
                    team.add(load.one_each, nsqd.tcp, names, settings.body)
                    result = measure(f"{count:,} {what}", nsqd, team)[0]
                yield each(result, before, "topic", count)


def idle(settings: Settings) -> Iterator[Result]:
    connections = settings.some(5_000, 100)
    with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
        warmed_up(settings, nsqd)
        with load.Team(1) as team:
            team.add(load.idle, nsqd.tcp, topic, 1, 0.0)
            before = measure("", nsqd, team)[0].pss
        with load.Team(1) as team:
            team.add(load.idle, nsqd.tcp, topic, connections, settings.seconds(IDLE))
            result, reports = measure("idle subscribed connections", nsqd, team)
        result.messages = connections
        each(result, before, "connection", connections)
        result.note += f", {reports[0]['lost']} lost"
        yield result


def many_idle(settings: Settings) -> Iterator[Result]:
    """Idle connections of as many processes as they need descriptors, each with its own loopback
    address and topic, to an nsqd with as many workers: a consumer may move to the owner of its
    topic. Kernel memory is that of both ends."""
    wanted = settings.some(MANY_IDLE, 100)
    processes = -(-wanted // (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_FILES))
    with settings.nsqd(processes) as nsqd, settings.topics(nsqd, processes) as topics:
        time.sleep(settings.seconds(SETTLE))  # a warm-up topic would give a worker two topics
        before, kernel = nsqd.memory()["Pss"], procfs.kernel_memory()
        with load.Team(2 * processes + 1) as team:
            for number, topic in enumerate(topics):
                share = len(range(number, wanted, processes))
                team.add(load.arriving, nsqd.tcp, topic, share, processes + number)
            team.ready()
            cpu = nsqd.cpu_of_each()
            team.go()
            count, took = _arrived(team, processes, wanted)
            if nsqd.pids and set(procfs.family(nsqd.pids[0])) != set(nsqd.pids):
                raise RuntimeError(f"a process of nsqd has ended after {count:,} connections")
            of_each = [now - then for now, then in zip(nsqd.cpu_of_each(), cpu, strict=True)]
            name = f"{count:,} idle connections"
            result = Result(name, count, took, sum(of_each), 0.0, busiest_cpu=max(of_each))
            time.sleep(settings.seconds(SETTLE))
            memory, kernel = nsqd.memory(), procfs.kernel_memory() - kernel
            beats, used = sum(team.tally[processes:-1]), nsqd.cpu_seconds()
            time.sleep(settings.seconds(HEARTBEATS))
            beats, used = sum(team.tally[processes:-1]) - beats, nsqd.cpu_seconds() - used
            team.tally[-1] = 1
            reports = team.reports()
    result.rss, result.pss, result.workers = memory["Rss"], memory["Pss"], processes
    each(result, before, "connection", count)
    result.figures |= {"kernel_bytes": kernel / count, "beat_us": used / max(1, beats) * 1e6}
    result.note += (
        f", and {kernel / count:,.0f} B of the kernel for both ends; {beats:,} heartbeats with "
        f"{used:.1f} s of CPU; {sum(each['lost'] for each in reports)} lost"
    )
    yield result


def _arrived(team: load.Team, processes: int, wanted: int) -> tuple[int, float]:
    """Return the number of connections, and the seconds until the last one was there: all of them,
    or as many as there are when no more arrive."""
    began = last = time.monotonic()
    count = 0
    while count < wanted and time.monotonic() - last < STALLED:
        time.sleep(0.05)
        team.check()
        found = sum(team.tally[:processes])
        if found > count:
            count, last = found, time.monotonic()
    if not count:
        raise RuntimeError("no connection arrived")
    return count, last - began


def consumers(settings: Settings) -> Iterator[Result]:
    """Measure a queue that many consumers empty, each taking one message at a time."""
    count = settings.some(2_000, 50)
    messages = settings.count(100_000)
    with settings.nsqd() as nsqd:
        for _ in settings.rounds():
            with settings.topic(nsqd) as topic, load.Team(PROCESSES) as team:
                publish(settings, nsqd, topic, messages)
                for _ in range(PROCESSES):
                    places = [(topic, "bench")] * (count // PROCESSES)
                    slots = slice(0, PROCESSES)
                    team.add(load.crowd, nsqd.tcp, places, 1, messages, slots, 0)
                name = f"{count:,} consumers with RDY 1"
                yield measure(name, nsqd, team)[0]
