"""taskiq's own tests, run with NsqBroker instead of taskiq's brokers.

Unpack taskiq's source distribution (0.13.0) into its own directory, and run there:

    pip install orjson cbor2 msgpack aiohttp freezegun polyfactory opentelemetry-test-utils
    PYTHONPATH=$NSQCY/tests/upstream python -m pytest -p taskiq_plugin -p no:asyncio tests

Every InMemoryBroker and AsyncQueueBroker of the tests publishes to its own queue on one nsqd,
and consumes it. SKIPPED lists the tests that are about InMemoryBroker itself.
"""

import asyncio
import uuid
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import taskiq
from taskiq import AckableMessage, BrokerMessage
from taskiq.brokers import inmemory_broker
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.receiver import Receiver

from nsqcy.integrations.taskiq import NsqBroker
from nsqcy.testing import Nsqd, nsqd

BOTH = "an InMemoryBroker is both a client and a worker"
SKIPPED = {
    "tests/brokers/test_inmemory.py::test_cannot_listen": "NsqBroker can listen",
    "tests/brokers/test_inmemory.py::test_startup": BOTH,
    "tests/brokers/test_inmemory.py::test_shutdown": BOTH,
    "tests/test_exceptions_flow.py::test_inmemory_broker_raises_unknown_task_error": (
        "NsqBroker publishes tasks that only the workers know"
    ),
}
RETRIES = "tests/middlewares/test_task_retry.py::"
SKIPPED |= {
    RETRIES + each: "InMemoryBroker ignores the delay of 5 s, and the test waits for 1 s"
    for each in (
        "test_per_task_exc_types_matching[SmartRetryMiddleware]",
        "test_per_task_exc_types_override_global[SmartRetryMiddleware]",
        "test_retry_of_custom_exc_types_of_smart_middleware",
    )
}
DAEMON: Nsqd = nsqd()


class StandIn(NsqBroker):
    """NsqBroker that moves to the event loop of the test that uses it."""

    def __init__(self) -> None:
        super().__init__(
            DAEMON.tcp_address,
            nsqd_http_addresses=DAEMON.http_address,
            queue_name=f"t{uuid.uuid4().hex}",
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None

    def enter_loop(self) -> bool:
        """Return whether the event loop is a new one, which needs new connections."""
        if self.loop is asyncio.get_running_loop():
            return False
        self.loop = asyncio.get_running_loop()
        self._producer = self._new_producer()
        self._inboxes = []
        self._running = asyncio.create_task(self._run())
        return True

    async def _run(self) -> None:
        """Work until the loop ends, which cancels its tasks."""
        try:
            await self.work()
        finally:
            for each in (*self._inboxes, self._producer):
                await each.close()

    async def work(self) -> None:
        await asyncio.Event().wait()

    async def kick(self, message: BrokerMessage) -> None:
        self.enter_loop()
        await super().kick(message)


class InMemoryStandIn(StandIn):
    """Runs the tasks that it publishes, in the same process."""

    def __init__(
        self,
        sync_tasks_pool_size: int = 4,
        max_stored_results: int = 100,
        cast_types: bool = True,
        await_inplace: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.result_backend = InmemoryResultBackend(max_stored_results=max_stored_results)
        self.executor = ThreadPoolExecutor(sync_tasks_pool_size)
        self.await_inplace = await_inplace
        self.published: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._running_tasks: set[asyncio.Future[None]] = set()
        self._options = {"max_async_tasks": 30, "validate_params": cast_types} | options
        self.receiver = self._new_receiver()

    def _new_receiver(self) -> Receiver:
        return Recording(self, executor=self.executor, run_startup=False, **self._options)

    def enter_loop(self) -> bool:
        if is_new := super().enter_loop():
            self.published.clear()
            self._running_tasks.clear()
        return is_new

    async def work(self) -> None:
        await self._new_receiver().listen(asyncio.Event())

    async def kick(self, message: BrokerMessage) -> None:
        self.enter_loop()
        done = asyncio.get_running_loop().create_future()
        self.published[message.task_id].append(done)
        self._running_tasks.add(done)
        done.add_done_callback(self._running_tasks.discard)
        await super().kick(message)
        if self.await_inplace:
            await done

    async def wait_all(self) -> None:
        for each in list(self._running_tasks):
            await each


class Recording(Receiver):
    """Reports to the broker when one of its published tasks is done."""

    async def callback(self, message: bytes | AckableMessage, raise_err: bool = False) -> None:
        done = None
        if isinstance(message, AckableMessage):
            waiting = self.broker.published[self.broker.formatter.loads(message.data).task_id]
            done = waiting.popleft() if waiting else None
        try:
            await super().callback(message, raise_err)
        finally:
            if done is not None:
                done.set_result(None)


class QueueStandIn(StandIn):
    """Leaves the messages in the queue until the test or a receiver takes them."""

    @property
    def queue(self) -> "QueueStandIn":
        return self

    async def get(self) -> bytes:
        self.enter_loop()
        messages = self.listen()
        message = await anext(messages)
        message.ack()
        await messages.aclose()
        return message.data

    async def wait_tasks(self) -> None:
        topics = [self.topic(self.queue_name)]
        while (await asyncio.to_thread(self.management.counts, topics)).unfinished:
            await asyncio.sleep(0.01)


def pytest_configure() -> None:
    DAEMON.start()
    taskiq.InMemoryBroker = inmemory_broker.InMemoryBroker = InMemoryStandIn
    from tests import utils

    utils.AsyncQueueBroker = QueueStandIn


def pytest_unconfigure() -> None:
    DAEMON.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (reason := SKIPPED.get(item.nodeid)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
