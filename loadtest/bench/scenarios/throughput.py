"""Messages through one topic and channel: in batches, one by one, through the disk, and large."""

from collections.abc import Iterator

from loadtest.bench import load, speed
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.speed import READY, Result, Settings, beside, consume, measure, publish

BOTH = "MPUB and SUB+FIN at once"
LARGE = ((100_000, 5_000, 16), (1_000_000, 500, 4))  # size, messages, unanswered messages
FLOOR_TIMES = 5  # multiplies the floor's messages; otherwise, the floor would end too early


def batches(settings: Settings) -> Iterator[Result]:
    """Publish and consume alternately: from the second round on, memory is recycled."""
    messages = settings.count(1_000_000)
    with settings.nsqd() as nsqd, settings.floor() as floor, settings.topic(nsqd) as topic:
        yield publish(settings, nsqd, topic, messages, "MPUB x200, 2 conn, new memory")
        consume(nsqd, topic, messages)
        for _ in settings.rounds():
            published = publish(settings, nsqd, topic, messages)
            yield beside(published, publish(settings, floor, topic, messages * FLOOR_TIMES))
            consumed = consume(nsqd, topic, messages)
            yield beside(consumed, consume(floor, topic, messages * FLOOR_TIMES))


def pipe(settings: Settings) -> Iterator[Result]:
    messages = settings.count(500_000)

    def work(one: Daemon) -> Result:
        with load.Team(1) as team:
            team.add(load.pipelined, one.tcp, load.pub(topic, settings.body), 1, messages, 100)
            return measure("PUB, 100 pipelined, 1 conn", one, team)[0]

    with settings.nsqd() as nsqd, settings.floor() as floor, settings.topic(nsqd) as topic:
        for _ in settings.rounds():
            yield beside(work(nsqd), work(floor))
            consume(nsqd, topic, messages)


def wait(settings: Settings) -> Iterator[Result]:
    messages = settings.count(100_000)

    def work(one: Daemon, topic: str) -> Result:
        command = load.pub(topic, settings.body)
        with load.Team(2) as team:
            for _ in range(2):
                team.add(load.waiting, one.tcp, [command], 1, messages // 2, 25)
            name = f"PUB, wait for OK, 50 conn{speed.on(one)}"
            return measure(name, one, team)[0]

    with settings.nsqds(1, 2) as nsqds, settings.floor() as floor:
        for _ in settings.rounds():
            for nsqd in nsqds.values():
                with settings.topic(nsqd) as topic:
                    yield beside(work(nsqd, topic), work(floor, topic))
                    consume(nsqd, topic, messages)


def through(settings: Settings) -> Iterator[Result]:
    messages = settings.count(1_000_000)
    with settings.nsqd() as nsqd:
        for _ in settings.rounds():
            with settings.topic(nsqd) as topic, load.Team(4) as team:
                for _ in range(2):
                    team.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 2), 0)
                speed.add_mpub(settings, nsqd, team, topic, messages)
                yield measure(BOTH, nsqd, team, slice(0, 2))[0]


def disk(settings: Settings) -> Iterator[Result]:
    messages = settings.count(1_000_000)
    # The memory budget is small, so that written messages are read back.
    with (
        settings.nsqd(mem_queue_size=10_000, memory_bytes=32 << 20) as nsqd,
        settings.topic(nsqd) as topic,
    ):
        for _ in settings.rounds():
            for result in (
                publish(settings, nsqd, topic, messages, "MPUB x200, to disk"),
                consume(nsqd, topic, messages, "SUB+FIN, from disk"),
            ):
                if settings.target is None:
                    result.durability = speed.OVERFLOW
                yield result


def bodies(settings: Settings) -> Iterator[Result]:
    """Large messages, published one by one and consumed at the same time."""
    with settings.nsqd() as nsqd:
        for _ in settings.rounds():
            for size, count, depth in LARGE:
                messages = settings.some(count, 40)
                with settings.topic(nsqd) as topic, load.Team(2) as team:
                    command = load.pub(topic, speed.body(size))
                    team.add(load.finishing, nsqd.tcp, topic, 100, messages, slice(0, 1), 0)
                    team.add(load.pipelined, nsqd.tcp, command, 1, messages, depth)
                    name = f"bodies of {size // 1000} KB, in and out"
                    result = measure(name, nsqd, team, slice(0, 1))[0]
                result.figures["mb_s"] = result.rate * size / 1e6
                result.order = "mb_s"
                result.note = f"{result.figures['mb_s']:,.0f} MB/s"
                yield result


def http(settings: Settings) -> Iterator[Result]:
    messages = settings.count(60_000)

    def work(one: Daemon) -> Result:
        head = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: bench\r\nContent-Length: {settings.size}"
        request = head.encode() + b"\r\n\r\n" + settings.body
        assert one.http is not None
        with load.Team(2) as team:
            for _ in range(2):
                team.add(load.plainly, one.http, [request], 1, messages // 2, 16)
            return measure("HTTP /pub, keep-alive, 32 conn", one, team)[0]

    if settings.target is not None and settings.target.http is None:
        raise NotOffered("its HTTP address was not told")
    with settings.nsqd() as nsqd, settings.topic(nsqd) as topic:
        for _ in settings.rounds():
            yield work(nsqd)
            consume(nsqd, topic, messages)
