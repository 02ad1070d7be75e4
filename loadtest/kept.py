"""Cost of keeping messages for log readers, and of such a reader for consumers.

    PYTHONPATH=. python -m loadtest.kept [--rounds 5] [--scale 1]

Publishes alternately to an nsqd that keeps nothing and to one that keeps everything for a day, in
two durability classes. Then measures consumers with and without a reader of a different topic's
log. Prints one line per measurement, with the median of the rounds.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from loadtest.bench import load, speed
from loadtest.bench.daemon import Daemon
from loadtest.bench.speed import (
    READY,
    Result,
    Scenario,
    Settings,
    consume,
    measure,
    percentiles,
    told,
)

CLASSES = ("memory", "os")
READ = 4 << 20  # maximum bytes of a block
COLUMNS = "timestamp,id,body"
COUNT = slice(40, 44)  # in a block's header: the number of its records


def kept(settings: Settings) -> Iterator[Result]:
    """Compare an nsqd that keeps nothing with one that keeps everything for a day, alternating
    between them."""
    with ExitStack() as stack:
        nsqds = {
            name: [
                stack.enter_context(settings.nsqd(durability=name, **more))
                for more in ({}, {"retention_time": "24h"})
            ]
            for name in CLASSES
        }
        for _ in settings.rounds():
            for name, (without, keeping) in nsqds.items():
                for run in (piped, waited, asked):
                    first = run(settings, without)
                    yield classed(first, name)
                    yield beside(run(settings, keeping), first, name)
            yield from read(settings, nsqds["os"][1])


def piped(settings: Settings, nsqd: Daemon) -> Result:
    messages = settings.count(500_000)
    with settings.topic(nsqd) as topic, load.Team(1) as team:
        team.add(load.pipelined, nsqd.tcp, load.pub(topic, settings.body), 1, messages, 100)
        result = measure("PUB, 100 in the pipe", nsqd, team)[0]
        consume(nsqd, topic, messages)
    return result


def waited(settings: Settings, nsqd: Daemon) -> Result:
    messages = settings.count(100_000)
    with settings.topic(nsqd) as topic, load.Team(2) as team:
        for _ in range(2):
            command = load.pub(topic, settings.body)
            team.add(load.waiting, nsqd.tcp, [command], 1, messages // 2, 25)
        result = measure("PUB, 50 conn that wait", nsqd, team)[0]
        consume(nsqd, topic, messages)
    return result


def asked(settings: Settings, nsqd: Daemon) -> Result:
    messages = settings.count(50_000)
    with settings.topic(nsqd) as topic, load.Team(1) as team:
        team.add(load.asking, nsqd.tcp, load.pub(topic, settings.body), messages)
        result, (report,) = measure("PUB, 1 conn that waits", nsqd, team)
        consume(nsqd, topic, messages)
    result.figures = percentiles(report["latencies"])
    result.note = told("us to OK:", result.figures)
    return result


def classed(result: Result, durability: str, kept: str = "") -> Result:
    result.scenario = f"{result.scenario}, {durability}{kept}"
    result.durability = durability
    return result


def beside(result: Result, first: Result, durability: str) -> Result:
    ratio = result.rate / first.rate
    words = [f"{ratio:.2f} x the rate"]
    if "p99" in result.figures:
        tail = result.figures["p99"] / first.figures["p99"]
        words += [f"{tail:.2f} x the p99 of nothing kept", result.note]
    result.note = "; ".join(words)
    result.figures["ratio"] = ratio
    result.order = "ratio"
    return classed(result, durability, ", kept")


def read(settings: Settings, nsqd: Daemon) -> Iterator[Result]:
    """Measure consumers of a busy topic, with and without a reader of a different topic's log."""
    messages = settings.count(1_000_000)
    with settings.topics(nsqd, 3) as (old, *topics):
        speed.publish(settings, nsqd, old, messages)
        rates = []
        for topic, reader in zip(topics, (False, True), strict=True):
            with load.Team(5) as team:
                for _ in range(2):
                    team.add(load.finishing, nsqd.tcp, topic, READY, messages, slice(0, 2), 0)
                speed.add_mpub(settings, nsqd, team, topic, messages)
                if reader:
                    team.add(reading, nsqd.tcp, old, messages, slice(0, 2))
                name = "MPUB and SUB+FIN at once" + ", beside a reader" * reader
                result, reports = measure(name, nsqd, team, slice(0, 2))
            rates.append(result.rate)
            result.durability = "os"
            if reader:
                result.figures["ratio"] = rates[1] / rates[0]
                result.order = "ratio"
                read_rate = reports[-1]["messages"] / result.seconds
                result.note = f"{rates[1] / rates[0]:.2f} x the rate; read {read_rate:,.0f}/s"
            yield result


def reading(
    address: tuple[str, int], topic: str, total: int, slots: slice, team: load.Team, _: int
) -> Callable[[], load.Report]:
    """Reads the log from its beginning, repeatedly, until the consumers have received `total`."""
    from nsqcy.spark.blocks import HEADER_SIZE
    from nsqcy.spark.v2 import Access, Connection

    connection = Connection(f"{address[0]}:{address[1]}", Access())
    meta = connection.meta(topic)
    first, end = int(meta["first_seq"]), int(meta["next_seq"])

    def run() -> load.Report:
        seq, count = first, 0
        while sum(team.tally[slots]) < total:
            connection.ask_block(topic, meta["log_id"], seq, end, READ, COLUMNS)
            block = memoryview(connection.answer())[:HEADER_SIZE]
            rows = int.from_bytes(block[COUNT], "little")
            count += rows
            seq = seq + rows if seq + rows < end else first
        return {"messages": count}

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on numbers of messages")
    given = parser.parse_args()
    settings = Settings(scale=given.scale, repeat=given.rounds)
    speed.run(settings, {"kept": Scenario(kept, "")}, say)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
