"""`nsqcy bench`: measures how fast a cluster accepts and delivers messages.

Publishes to an ephemeral topic, which the nsqds delete afterwards. Bodies begin with the time of
publishing, so that consumers measure the latency.
"""

import asyncio
import os
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from math import ceil, log10
from typing import Any

import click

from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.tables import number, size
from nsqcy.cli.values import DURATION, Count
from nsqcy.client.aio import Consumer, Message, Producer
from nsqcy.client.errors import Error
from nsqcy.config.durations import SECOND, format_duration
from nsqcy.users import token_file

STAMP = struct.Struct(">q")
IN_FLIGHT = 2500  # maximum messages in flight per consumer
BUCKETS = 20  # latency buckets per power of ten
DRAIN = 10.0  # maximum seconds to wait for the last messages


@dataclass
class Tally:
    """Counts of published and consumed messages, and their latencies."""

    published: int = 0
    errors: int = 0
    failure: str = ""  # the first error
    consumed: int = 0
    latencies: Counter[int] = field(default_factory=Counter)  # messages by bucket

    def add(self, nanoseconds: int) -> None:
        self.consumed += 1
        self.latencies[bucket(nanoseconds)] += 1

    def percentile(self, share: float) -> int:
        """Return a latency in nanoseconds, to within about 12 %; 0 if nothing was consumed."""
        wanted = share * self.consumed
        seen = 0
        for each in sorted(self.latencies):
            seen += self.latencies[each]
            if seen >= wanted:
                return upper(each)
        return 0


def bucket(nanoseconds: int) -> int:
    """Return the number of a latency's bucket. Buckets grow exponentially."""
    return ceil(BUCKETS * log10(max(1, nanoseconds)))


def upper(bucket: int) -> int:
    """Return the upper bound of a bucket in nanoseconds."""
    return round(10 ** (bucket / BUCKETS))


@click.command()
@click.option(
    "--duration", type=DURATION, default="2m", show_default=True, help="duration of the test"
)
@click.option(
    "--size",
    "body_size",
    type=Count(STAMP.size),
    metavar="N",
    default=200,
    show_default=True,
    help="message size in bytes",
)
@click.option(
    "--batch",
    type=Count(1),
    metavar="N",
    default=1,
    show_default=True,
    help="messages per command",
)
@click.option(
    "--producers",
    type=Count(1),
    metavar="N",
    default=4,
    show_default=True,
    help="number of producers",
)
@click.option(
    "--consumers",
    type=Count(0),
    metavar="N",
    default=4,
    show_default=True,
    help="number of consumers; 0 to publish only",
)
@click.option("--rate", type=Count(1), metavar="N", help="maximum messages per second, in total")
@as_json
@on_cluster
def bench(
    cluster: Cluster,
    duration: int,
    body_size: int,
    batch: int,
    producers: int,
    consumers: int,
    rate: int | None,
    as_json: bool,
) -> None:
    """Measure the throughput and latency of all nsqds, with an ephemeral topic.

    A single Python process publishes and consumes, and is usually slower than nsqd: use --batch
    to find the limits of nsqd, and --rate to measure the latency under the expected load.
    """
    addresses = cluster.tcp_addresses()
    load = Load(addresses, duration / SECOND, b"." * (body_size - STAMP.size), batch, rate)
    options: dict[str, Any] = {"auth_secret": cluster.terms.token} if cluster.terms.token else {}
    began = time.monotonic()
    tally = asyncio.run(load.run(producers, consumers, options))
    seconds = time.monotonic() - began
    if tally.errors and not tally.published:
        remedy = f"; check {token_file.SETTINGS}" if "AUTH" in tally.failure else ""
        raise click.ClickException(f"no publish succeeded: {tally.failure}{remedy}")
    if as_json:
        print_json(result(tally, seconds, load.seconds))
    else:
        click.echo(text(tally, seconds, load.seconds, body_size))
    if tally.errors:
        failed = f"{tally.errors} of {tally.errors + tally.published}"
        raise click.ClickException(f"{failed} publishes failed: {tally.failure}")


class Load:
    """Producers that publish for a while, and consumers that receive everything."""

    def __init__(
        self, addresses: list[str], seconds: float, padding: bytes, batch: int, rate: int | None
    ) -> None:
        self.seconds = seconds
        self._addresses = addresses
        self._padding = padding
        self._batch = batch
        self._rate = rate
        self._topic = f"nsqcy-bench-{os.getpid()}#ephemeral"
        self._tally = Tally()

    async def run(self, producers: int, consumers: int, options: dict[str, Any]) -> Tally:
        """Run the load and return its results."""
        channels = [
            Consumer(
                self._topic,
                "bench#ephemeral",
                self._addresses,
                message_handler=self._receive,
                max_in_flight=IN_FLIGHT,
                **options,
            )
            for _ in range(consumers)
        ]
        for each in channels:
            await each.start()
        end = time.monotonic() + self.seconds
        await asyncio.gather(*(self._publish(end, producers, options) for _ in range(producers)))
        deadline = time.monotonic() + DRAIN
        while channels and self._tally.consumed < self._tally.published:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        for each in channels:
            await each.close(graceful=False)
        return self._tally

    async def _publish(self, end: float, producers: int, options: dict[str, Any]) -> None:
        pause = self._batch * producers / self._rate if self._rate else 0.0
        due = time.monotonic()
        async with Producer(self._addresses, **options) as producer:
            while time.monotonic() < end:
                try:
                    bodies = [self._body() for _ in range(self._batch)]
                    await producer.multipublish(self._topic, bodies)
                    self._tally.published += self._batch
                except Error as error:
                    self._tally.errors += 1
                    self._tally.failure = self._tally.failure or str(error)
                    if not self._tally.published:  # error such as a missing token
                        return
                due += pause
                await asyncio.sleep(max(0.0, due - time.monotonic()) if pause else 0)

    def _body(self) -> bytes:
        return STAMP.pack(time.time_ns()) + self._padding

    async def _receive(self, message: Message) -> None:
        self._tally.add(time.time_ns() - STAMP.unpack_from(message.body)[0])


def result(tally: Tally, seconds: float, published_for: float) -> dict[str, Any]:
    return {
        "published": tally.published,
        "published_per_second": tally.published / published_for,
        "publish_errors": tally.errors,
        "consumed": tally.consumed,
        "consumed_per_second": tally.consumed / seconds,
        "latency_ns": {f"p{share}": tally.percentile(share / 100) for share in (50, 90, 99)},
    }


def _rounded(nanoseconds: int) -> int:
    """Return a latency with the two digits that its bucket warrants."""
    return int(float(f"{nanoseconds:.1e}"))


def text(tally: Tally, seconds: float, published_for: float, body_size: int) -> str:
    found = result(tally, seconds, published_for)
    published, consumed = found["published_per_second"], found["consumed_per_second"]
    lines = [f"published  {number(published)}/s  {size(round(published * body_size))}/s"]
    lines += [f"consumed   {number(consumed)}/s  {tally.consumed} of {tally.published} messages"]
    if tally.consumed:
        shown = (
            f"{name} {format_duration(_rounded(value))}"
            for name, value in found["latency_ns"].items()
        )
        lines += [f"latency    {'  '.join(shown)}"]
    return "\n".join(lines)
