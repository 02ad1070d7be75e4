"""Delayed messages: deferred by their publisher, or requeued by their consumer."""

import random
import struct
import time
from collections.abc import Callable, Iterator

from loadtest.bench import load
from loadtest.bench.daemon import Address, Daemon, NotOffered, Private
from loadtest.bench.scenarios.many import PROCESSES, each, warmed_up
from loadtest.bench.speed import READY, Result, Settings, measure, percentiles, publish, told
from loadtest.daemons import Nsqd
from nsqcy.protocol.wire import command, finish_all

AHEAD = 100  # number of DPUBs sent before their responses are read
MS = 1_000_000
HOUR_MS = 3600 * 1000
MONTH_MS = 30 * 24 * HOUR_MS


# -- loads


def dpub(
    address: Address,
    topics: list[str],
    size: int,
    delays: list[int],
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    """Publish a message for each delay (ms), to the topics in turn; each message contains its due
    time."""
    sock = load.producer(address)
    lines = [f"DPUB {topic} ".encode() for topic in topics]
    head = struct.pack(">i", size)
    pad = bytes(size - load.STAMPS.size)
    stamps = load.STAMPS.pack

    def run() -> load.Report:
        for start in range(0, len(delays), AHEAD):
            some = delays[start : start + AHEAD]
            now = time.monotonic_ns()
            commands = [
                b"%b%d\n%b%b%b"
                % (lines[n % len(lines)], delay, head, stamps(now + delay * MS, now), pad)
                for n, delay in enumerate(some, start)
            ]
            sock.sendall(b"".join(commands))
            load.expect(sock, load.OK * len(some))
        return {"messages": len(delays)}

    return run


def requeueing(
    address: Address,
    topic: str,
    messages: int,
    times: int,
    delay: int,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    """A consumer that requeues messages as often as requested, and finishes the rest."""
    sock = load.consumer(address, topic, "bench", 0)
    room = memoryview(bytearray(2 * load.RECEIVE))
    end = b" %d\n" % delay
    line = len(b"FIN 0123456789abcdef\n")

    def run() -> load.Report:
        have = taken = 0
        sock.sendall(command(b"RDY", b"%d" % READY))
        while taken < messages * (times + 1):
            have += sock.recv_into(room[have:])
            lines, used, count = finish_all(room[:have])
            back = line * max(0, min(count, messages * times - taken))
            if count:
                handed = lines[:back].replace(b"FIN", b"REQ").replace(b"\n", end)
                sock.sendall(handed + lines[back:])
            elif have >= 8:
                used = load.other_frame(sock, bytes(room[:have]))
            taken += count
            room[: have - used] = room[used:have]
            have -= used
        return {"messages": messages * times}

    return run


# -- scenarios


def shuffled(count: int, seconds: float, lead: float) -> list[int]:
    """Return delays in ms, spread evenly after a lead, in random order."""
    span = round(seconds * 1000)
    delays = [round(lead * 1000) + number * span // count for number in range(count)]
    random.Random(count).shuffle(delays)
    return delays


def lateness(result: Result, reports: list[load.Report]) -> Result:
    found = percentiles([ns for report in reports for ns in report["since_due"]])
    result.figures |= {f"{name}_us": us for name, us in found.items()}
    result.order = "p99_us"
    result.note = told("ms late:", found, 1000, 2)
    return result


def deferred(settings: Settings) -> Iterator[Result]:
    """Measure messages that become due over a minute; at a smaller scale, over a shorter time at
    the same rate."""
    messages, seconds = settings.count(1_000_000), 60 * settings.scale
    lead = settings.seconds(8.0) + 0.5  # longer than publishing takes
    size = max(settings.size, load.STAMPS.size)
    with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
        before = warmed_up(settings, nsqd)
        with load.Team(1) as consuming, load.Team(1) as publishing:
            consuming.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 1), size)
            consuming.ready()
            publishing.add(dpub, nsqd.tcp, [topic], size, shuffled(messages, seconds, lead))
            result = measure(f"DPUB, {messages:,} deferred", nsqd, publishing)[0]
            yield each(result, before, "message", messages)
            if result.seconds > lead:
                raise RuntimeError("the first was due before the last was published")
            result, reports = measure(f"... due over {seconds:.0f} s", nsqd, consuming)
            result.seconds = reports[0]["ended"] - reports[0]["first"]
            yield lateness(result, reports)


def restarts(settings: Settings) -> Iterator[Result]:
    """Kill and restart an nsqd that has messages deferred for up to a month, and then one whose
    messages become due within a minute."""
    if settings.target is not None:
        raise NotOffered("it would be killed")
    messages, size = settings.count(1_000_000), max(settings.size, load.STAMPS.size)
    with Nsqd(durability="os", memory_bytes=64 << 20, max_defer_timeout="744h") as nsqd:
        nsqd.web.create("month", "bench")
        nsqd.crash()  # from now on, every process is a restarted one, which loads the same code
        before = warmed_up(settings, Private(nsqd))
        chance = random.Random(messages)
        delays = [chance.randrange(HOUR_MS, MONTH_MS) for _ in range(messages)]
        name = f"DPUB, {messages:,} deferred for a month"
        yield each(defer(name, nsqd, "month", size, delays), before, "message", messages)
        for _ in settings.rounds():
            await_calm(Private(nsqd))  # until the journal has been written
            yield each(killed(nsqd, "month", messages), before, "message", messages)
        nsqd.web.do("empty", "month", "bench")
        yield late_after_a_kill(settings, nsqd, messages, size)


def late_after_a_kill(settings: Settings, nsqd: Nsqd, messages: int, size: int) -> Result:
    seconds, lead = 60 * settings.scale, 10 + messages / 10_000
    nsqd.web.create("minute", "bench")
    began = time.monotonic()
    defer("", nsqd, "minute", size, shuffled(messages, seconds, lead))
    nsqd.crash()
    with load.Team(1) as team:
        slots = slice(0, 1)
        team.add(load.finishing, nsqd.address, "minute", READY, messages, slots, size)
        team.ready()
        if time.monotonic() > began + lead:
            raise RuntimeError("the first was due before nsqd had restarted")
        name = f"... due over {seconds:.0f} s after kill -9"
        result, reports = measure(name, Private(nsqd), team)
    return lateness(result, reports)


def defer(name: str, nsqd: Nsqd, topic: str, size: int, delays: list[int]) -> Result:
    with load.Team(1) as team:
        team.add(dpub, nsqd.address, [topic], size, delays)
        return measure(name, Private(nsqd), team)[0]


def killed(nsqd: Nsqd, topic: str, messages: int) -> Result:
    """Measure the time from a kill until all messages are available again."""
    began = time.monotonic()
    nsqd.crash()
    nsqd.web.await_counts(topic, "bench", deferred_count=messages)
    seconds = time.monotonic() - began
    one = Private(nsqd)
    result = Result("kill -9 and restart", messages, seconds, one.cpu_seconds(), 0.0)
    await_calm(one)
    result.pss = one.memory()["Pss"]
    return result


def await_calm(nsqd: Daemon) -> None:
    """Wait until the daemon has done its work and no longer uses CPU time."""
    used = -1.0
    while nsqd.cpu_seconds() - used > 0.05:
        used = nsqd.cpu_seconds()
        time.sleep(1.0)


def young(settings: Settings) -> Iterator[Result]:
    """Measure new channels with one deferred message each."""
    count = settings.some(10_000, 100) // PROCESSES * PROCESSES
    seconds, lead = 10 * settings.scale, settings.seconds(1.0)
    size = max(settings.size, load.STAMPS.size)
    with settings.nsqd() as nsqd, settings.topics(nsqd, count) as topics:
        before = warmed_up(settings, nsqd)
        with load.Team(PROCESSES + 1) as team:
            for number in range(PROCESSES):
                places = [(topic, "bench") for topic in topics[number::PROCESSES]]
                slots = slice(0, PROCESSES)
                team.add(load.crowd, nsqd.tcp, places, 1, count, slots, size)
            team.ready()
            team.add(dpub, nsqd.tcp, topics, size, shuffled(count, seconds, lead))
            name = f"{count:,} channels, 1 deferred each"
            result, reports = measure(name, nsqd, team, slice(0, PROCESSES))
        each(result, before, "channel and its connection", count)
        memory = result.note
        lateness(result, reports[:PROCESSES]).note += f"; {memory}"
        yield result


def requeues(settings: Settings) -> Iterator[Result]:
    """Measure messages that are requeued repeatedly, without a delay or with a delay of a
    second."""
    messages = settings.count(200_000)
    with settings.nsqd() as nsqd:
        for _ in settings.rounds():
            for times, delay in ((5, 0), (2, round(settings.seconds(1.0) * 1000))):
                yield storm(settings, nsqd, messages, times, delay)


def storm(settings: Settings, nsqd: Daemon, messages: int, times: int, delay: int) -> Result:
    with settings.topic(nsqd) as topic, load.Team(1) as team:
        publish(settings, nsqd, topic, messages)
        team.add(requeueing, nsqd.tcp, topic, messages, times, delay)
        return measure(f"REQ {delay}, {times} times each", nsqd, team)[0]
