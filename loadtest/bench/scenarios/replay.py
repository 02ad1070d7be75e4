"""The cost of retention, and of a log reader for consumers."""

from collections.abc import Iterator

from loadtest.bench import load
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.speed import READY, Result, Settings, consume, measure, publish

RETENTION = "1h"


def replay(settings: Settings) -> Iterator[Result]:
    if settings.target is not None:
        raise NotOffered("its topics have no log")
    singles, messages = settings.count(100_000), settings.count(1_000_000)
    with settings.nsqd() as plain, settings.nsqd(retention_time=RETENTION) as retained:
        for _ in settings.rounds():
            without = waiting(settings, plain, singles, "PUB, wait for OK, no retention")
            yield without
            kept = waiting(settings, retained, singles, "PUB, wait for OK, retention")
            yield against(kept, without, "the rate without retention")
            with settings.topic(retained) as topic:
                write(settings, retained, topic, messages, 1)
                alone = consume(retained, topic, messages, "SUB+FIN, retention")
                yield alone
                write(settings, retained, topic, messages, 2)
                yield against(beside_reader(retained, topic, messages), alone, "the rate alone")


def against(result: Result, other: Result, about: str) -> Result:
    ratio = result.rate / other.rate
    result.figures["ratio"] = ratio
    result.order = "ratio"
    result.note = f"{ratio:.2f} x {about}"
    return result


def waiting(settings: Settings, nsqd: Daemon, messages: int, scenario: str) -> Result:
    with settings.topic(nsqd) as topic:
        with load.Team(2) as team:
            for _ in range(2):
                command = load.pub(topic, settings.body)
                team.add(load.waiting, nsqd.tcp, [command], 1, messages // 2, 25)
            result = measure(scenario, nsqd, team)[0]
        consume(nsqd, topic, messages)
    return result


def write(settings: Settings, nsqd: Daemon, topic: str, messages: int, times: int) -> None:
    """Publish for the first or second time, and wait until all messages are on disk."""
    publish(settings, nsqd, topic, messages)
    with load.log_reader(nsqd.tcp) as sock:
        load.log_of(sock, topic, times * messages)


def beside_reader(nsqd: Daemon, topic: str, messages: int) -> Result:
    """Consume while a reader repeatedly reads the entire log. The reader's messages are not
    counted, but the daemon's CPU time includes the work for the reader."""
    with load.Team(3) as team:
        for _ in range(2):
            team.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 2), 0)
        team.add(load.reading, nsqd.tcp, topic, messages, slice(0, 2))
        result, reports = measure("SUB+FIN with a log reader", nsqd, team, slice(0, 2))
    result.figures["read_rate"] = reports[2]["messages"] / result.seconds
    return result
