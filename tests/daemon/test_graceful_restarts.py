"""Producers while nsqd restarts: every publish has a known outcome, and every message is published
once."""

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import pytest
import uvloop

import nsqcy
import nsqcy.aio
from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd, free_port

RESTARTS = 3
TOPICS = [f"t{number}" for number in range(6)]
AHEAD = 40  # unanswered publishes of each producer


class Ledger:
    """Publishes of one producer; all of them must be accepted."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.accepted: Counter[tuple[str, bytes]] = Counter()
        self.errors: list[BaseException] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self._numbers = iter(range(1 << 30))

    def run(self) -> None:
        raise NotImplementedError

    def make(self) -> tuple[str, bytes]:
        number = next(self._numbers)
        return TOPICS[number % len(TOPICS)], f"{self.name} {number} ".encode().ljust(200, b".")

    def note(self, sent: tuple[str, bytes], error: BaseException | None) -> None:
        if error is None:
            self.accepted[sent] += 1
        else:
            self.errors.append(error)

    def await_more(self, count: int) -> None:
        goal = self.accepted.total() + count
        eventually(lambda: self.accepted.total() >= goal, 30)


class Threads(Ledger):
    def run(self) -> None:
        pending: dict[Future[bytes], tuple[str, bytes]] = {}
        with nsqcy.Producer(self.address, retries=100, snappy=True) as producer:
            while pending or not self.over.is_set():
                while len(pending) < AHEAD and not self.over.is_set():
                    sent = self.make()
                    pending[producer.publish_nowait(*sent)] = sent
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    self.note(pending.pop(future), future.exception())


class Tasks(Ledger):
    new_loop: Callable[[], asyncio.AbstractEventLoop]

    def run(self) -> None:
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(self.publish_all())

    async def publish_all(self) -> None:
        async with (
            nsqcy.aio.Producer(self.address, retries=100) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(AHEAD):
                tasks.create_task(self.publish(producer))

    async def publish(self, producer: nsqcy.aio.Producer) -> None:
        while not self.over.is_set():
            sent = self.make()
            try:
                await producer.publish(*sent)
            except nsqcy.aio.Error as error:
                self.note(sent, error)
            else:
                self.note(sent, None)


class Asyncio(Tasks):
    new_loop = staticmethod(asyncio.new_event_loop)


class Uvloop(Tasks):
    new_loop = staticmethod(uvloop.new_event_loop)


def contents(daemon: Nsqd) -> Counter[tuple[str, bytes]]:
    """Return every stored message."""
    found: Counter[tuple[str, bytes]] = Counter()
    for topic in TOPICS:
        depth = daemon.web.counts(topic, "c")["depth"]
        consumer = daemon.connect().sub(topic, "c", rdy=1000)
        for _ in range(depth):
            message = consumer.message()
            found[topic, message.body] += 1
            consumer.fin(message)
    return found


@pytest.fixture
def ledgers() -> Iterator[list[Ledger]]:
    made: list[Ledger] = []
    yield made
    for ledger in made:
        ledger.over.set()


COMBINATIONS: list[Any] = [
    (1, "memory"),
    (3, "fsync"),
    pytest.param(1, "fsync", marks=pytest.mark.soak),
    pytest.param(3, "memory", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("workers", "durability"), COMBINATIONS)
def test_restarts_under_load(
    starter: Starter, ledgers: list[Ledger], workers: int, durability: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    daemon = starter(workers=workers, durability=durability, tcp_address=address)
    for topic in TOPICS:
        daemon.web.create(topic, "c")
    ledgers += [kind(kind.__name__, address) for kind in (Threads, Asyncio, Uvloop)]
    for ledger in ledgers:
        ledger.thread.start()
    for _ in range(RESTARTS):
        for ledger in ledgers:
            ledger.await_more(300)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.wait(20) == 0, daemon.tail()
        daemon.start()
    for ledger in ledgers:
        ledger.over.set()
        ledger.thread.join(30)
        assert not ledger.thread.is_alive()
    assert [error for ledger in ledgers for error in ledger.errors] == []
    accepted = sum((ledger.accepted for ledger in ledgers), Counter())
    stored = contents(daemon)
    assert not accepted - stored, "lost"
    assert not stored - accepted, "published twice"
