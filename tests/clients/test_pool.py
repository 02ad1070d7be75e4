"""A producer for a pool of nsqds, one of which stops."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsqcy.client.aio import Consumer, Producer
from nsqcy.client.errors import ConnectionFailed, NoConnection
from nsqcy.testing import Nsqd, nsqd, nsqlookupd

PUBLISHES, TASKS = 10_000, 100
TOPIC = "pool"


@pytest.fixture
def three() -> Iterator[list[Nsqd]]:
    with ExitStack() as running:
        yield [running.enter_context(nsqd()) for _ in range(3)]


def addresses(daemons: list[Nsqd]) -> list[str]:
    return [each.tcp_address for each in daemons]


class Publishing:
    """Numbered publishes by many tasks. Once a third of them have been answered, `third` is set,
    and the tasks wait for `go_on`."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.answers: Counter[Any] = Counter()
        self.third = asyncio.Event()
        self.go_on = asyncio.Event()
        self._numbers = iter(range(PUBLISHES))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(self._publish())

    async def _publish(self) -> None:
        for number in self._numbers:
            self.answers[await self.producer.publish(TOPIC, b"%d" % number)] += 1
            if self.answers.total() >= PUBLISHES // 3:
                self.third.set()
                await self.go_on.wait()


async def received(daemons: list[Nsqd], count: int) -> Counter[bytes]:
    """Return the stored messages, once `count` different ones have arrived."""
    found: Counter[bytes] = Counter()
    async with Consumer(TOPIC, "check", addresses(daemons), max_in_flight=1000) as consumer:
        async for message in consumer:
            found[message.body] += 1
            message.finish()
            if len(found) == count:
                break
    return found


def test_one_of_three_is_stopped(three: list[Nsqd]) -> None:
    retries: list[Any] = []

    async def story() -> Counter[bytes]:
        async with Producer(
            addresses(three), on_retry=lambda *about: retries.append(about)
        ) as producer:
            publishing = Publishing(producer)
            running = asyncio.create_task(publishing.run())
            await publishing.third.wait()
            publishing.go_on.set()
            await asyncio.to_thread(three[0].stop)
            await running
        assert publishing.answers == {b"OK": PUBLISHES}
        three[0].start()
        return await received(three, PUBLISHES)

    found = asyncio.run(story())
    assert len(found) == PUBLISHES
    # Retried messages may have been published before; no other message arrives twice.
    assert found.total() - PUBLISHES <= len(retries)


def test_one_of_three_freezes_and_dies(three: list[Nsqd]) -> None:
    """Publishes that this nsqd has not answered are sent to another one, and on_retry reports
    them."""
    retries: list[Any] = []

    async def story() -> None:
        async with Producer(
            addresses(three), on_retry=lambda *about: retries.append(about)
        ) as producer:
            publishing = Publishing(producer)
            running = asyncio.create_task(publishing.run())
            await publishing.third.wait()
            os.killpg(three[0].process.pid, signal.SIGSTOP)
            frozen = producer.core.nsqds[
                next(each for each in producer.core.nsqds if str(each) == three[0].tcp_address)
            ]
            publishing.go_on.set()
            async with asyncio.timeout(60):
                while not frozen.pending:
                    await asyncio.sleep(0.001)
            three[0].kill()
            await running
            assert publishing.answers == {b"OK": PUBLISHES}

    asyncio.run(story())
    assert retries
    publish, error = retries[0]
    assert publish.topic == TOPIC
    assert isinstance(error, ConnectionFailed)
    assert three[0].tcp_address in str(error)


def test_nsqds_are_found_for_a_topic_that_never_existed() -> None:
    async def story(lookupd: str, daemon: str) -> None:
        async with Producer(lookupd_http_addresses=lookupd) as producer:
            assert await producer.publish("never-heard-of", b"x", timeout=10) == b"OK"
            assert [str(each) for each in producer.core.nsqds] == [daemon]

    with (
        nsqlookupd() as lookupd,
        nsqd(lookupd_tcp_address=[lookupd.tcp_address]) as daemon,
    ):
        asyncio.run(story(lookupd.http_address, daemon.tcp_address))


def test_all_are_down() -> None:
    """No publish hangs."""

    async def story() -> None:
        async with Producer(
            ["127.0.0.1:1", "127.0.0.1:2"], reconnect_interval=0.01, retries=2
        ) as producer:
            with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:[12]: .*refused"):
                await producer.publish(TOPIC, b"x")

    asyncio.run(story())


def test_no_lookupd_knows_an_nsqd() -> None:
    async def story(address: str) -> None:
        async with Producer(
            lookupd_http_addresses=address, reconnect_interval=0.01, retries=2
        ) as producer:
            with pytest.raises(NoConnection, match="no nsqd is registered with the lookupds"):
                await producer.publish(TOPIC, b"x")

    with nsqlookupd() as lookupd:
        asyncio.run(story(lookupd.http_address))
