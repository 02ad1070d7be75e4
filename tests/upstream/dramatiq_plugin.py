"""Dramatiq's own tests, run with NsqBroker instead of Dramatiq's brokers.

Unpack Dramatiq's source distribution (2.2.1) into its own directory, and run there:

    pip install pika    # test_rabbitmq.py imports it
    touch tests/__init__.py
    PYTHONPATH=$NSQCY/tests/upstream pytest -p dramatiq_plugin -o addopts= tests/test_redis.py \\
        tests/test_rabbitmq.py tests/test_actors.py tests/test_worker.py tests/test_broker.py \\
        tests/test_callbacks.py tests/test_composition.py tests/test_generic_actors.py \\
        tests/test_messages.py tests/test_results.py tests/test_stub_broker.py

The distribution lacks the tests' fixtures and their module `common`; this plugin provides both.
Each test has its own topics on one nsqd. SKIPPED lists the tests that look into another broker.
"""

import contextlib
import queue
import sys
import types
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import dramatiq
import pika
import pytest
from dramatiq import Message, QueueNotFound, Worker
from dramatiq.results.backends import StubBackend

from nsqcy.client import Consumer, Producer
from nsqcy.integrations.dramatiq import NsqBroker
from nsqcy.integrations.dramatiq.consumer import NsqMessage
from nsqcy.testing import Nsqd, nsqd

THREADS = 8
AMQP = "uses a connection of pika"
REDIS = "uses the commands of Redis"
DECLARE = "NSQ has no declarations that can fail"
CLEARS = "test_exception_from_actor_doesnt_leak"  # the other tests check exceptions afterwards
SKIPPED = {
    "test_rabbitmq_broker_stops_retrying_declaring_queues_when_max_attempts_reached": DECLARE,
    "test_rabbitmq_broker_retries_declaring_queues_when_connection_related_errors_occur": DECLARE,
    "test_rabbitmq_broker_consuming_messages_re_declares_queues_when_declared_queue_disappears": (
        DECLARE
    ),
    "test_rabbitmq_broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears": (
        DECLARE
    ),
    "test_rabbitmq_broker_raises_an_error_if_given_invalid_parameter_combinations": AMQP,
    "test_rabbitmq_broker_reconnects_after_enqueue_failure": AMQP,
    "test_rabbitmq_workers_handle_rabbit_failures_gracefully": "runs rabbitmqctl",
    "test_rabbitmq_connections_can_be_deleted_multiple_times": AMQP,
    "test_rabbitmq_channels_can_be_deleted_multiple_times": AMQP,
    "test_ignore_scary_logs_filter_ignores_logs": AMQP,
    "test_rabbitmq_close_only_registers_ignore_filter_once": AMQP,
    "test_rabbitmq_broker_can_enqueue_messages_with_priority": (
        "NsqBroker has no broker_priority: use a queue per priority"
    ),
    "test_redis_unacked_messages_can_be_requeued": REDIS,
    "test_redis_dead_lettered_messages_are_cleaned_up": "a policy of nsqd (ttl) removes them",
    "test_redis_broker_can_connect_via_url": REDIS,
    "test_redis_broker_can_connect_via_client": REDIS,
    "test_redis_consumer_ack_can_retry_on_connection_error": REDIS,
    "test_redis_consumer_nack_can_retry_on_connection_error": REDIS,
    "test_redis_join_race_condition": REDIS,
    "test_broker_uses_rabbitmq_if_not_set": AMQP,
}


class StandIn(NsqBroker):
    """NsqBroker with the features of StubBroker, RabbitmqBroker and RedisBroker that the tests
    use."""

    def __init__(self, daemon: Nsqd, *, fail_fast_default: bool = False, **options: Any) -> None:
        super().__init__(
            daemon.tcp_address,
            nsqd_http_addresses=daemon.http_address,
            topic_prefix=f"t{uuid.uuid4().hex[:12]}-",
            **options,
        )
        self.fail_fast_default = fail_fast_default
        self.daemon = daemon
        self.queues = Queues(self)
        self.client = RedisClient(self)
        self.dead_letters_by_queue: defaultdict[str, list[Any]] = defaultdict(list)

    @property
    def dead_letters(self) -> list[Any]:
        return [each for found in self.dead_letters_by_queue.values() for each in found]

    def enqueue(self, message: "Message[Any]", *, delay: int | None = None) -> "Message[Any]":
        if self.fail_fast_default and message.queue_name not in self.queues:
            raise QueueNotFound(message.queue_name)
        return super().enqueue(message, delay=delay)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Any:
        if self.fail_fast_default and queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return super().consume(queue_name, prefetch, timeout)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        if signal == "nack":
            self.dead_letters_by_queue[args[0].queue_name].append(args[0])
        super().emit_after(signal, *args, **kwargs)

    def flush_all(self) -> None:
        super().flush_all()
        self.dead_letters_by_queue.clear()

    def join(
        self,
        queue_name: str,
        *,
        interval: int = 20,
        timeout: int | None = None,
        fail_fast: bool | None = None,
        min_successes: int = 0,
    ) -> None:
        if self.fail_fast_default and queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        super().join(queue_name, interval=interval, timeout=timeout)
        if self.fail_fast_default if fail_fast is None else fail_fast:
            for message in self.dead_letters_by_queue[queue_name]:
                raise message._exception or Exception("the message has failed")

    def bodies(self, topic: str) -> list[bytes]:
        """Return the messages of a topic, and remove them."""
        found = []
        with Consumer(topic, "dramatiq", self.daemon.tcp_address, max_in_flight=100) as consumer:
            while self.management.counts([topic]).unfinished:
                if (message := consumer.get(0.1)) is not None:
                    found.append(message.body)
                    message.finish()
        return found

    def deferred(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        self.management.cancel([topic], lambda body: bool(found.append(body)))
        return found


class Queues(set[str]):
    """The names of the declared queues, each of which can be inspected."""

    def __init__(self, broker: StandIn) -> None:
        super().__init__()
        self._broker = broker

    def __getitem__(self, name: str) -> "QueueView":
        return QueueView(self._broker, self._broker.topic(name))


class QueueView:
    """The topic of a queue, as a queue.Queue."""

    def __init__(self, broker: StandIn, topic: str) -> None:
        self._broker = broker
        self._topic = topic

    def put(self, body: bytes) -> None:
        with Producer(self._broker.daemon.tcp_address) as producer:
            producer.publish(self._topic, body)

    def get(self, timeout: float) -> bytes:
        with Consumer(self._topic, "dramatiq", self._broker.daemon.tcp_address) as consumer:
            message = consumer.get(timeout)
            if message is None:
                raise queue.Empty
            message.finish()
            return message.body

    def qsize(self) -> int:
        return self._broker.management.counts([self._topic]).waiting

    @property
    def unfinished_tasks(self) -> int:
        return self._broker.management.counts([self._topic]).unfinished


class RedisClient:
    """The few commands with which the tests inspect queues, for message ids."""

    def __init__(self, broker: StandIn) -> None:
        self._broker = broker

    def zrangebyscore(self, name: str, *bounds: object) -> list[bytes]:
        return self._ids(self._broker.bodies(self._topic(name)))

    def lrange(self, name: str, *bounds: object) -> list[bytes]:
        if name.endswith(".DQ"):
            return self._ids(self._broker.deferred(self._topic(name.removesuffix(".DQ"))))
        return self._ids(self._broker.bodies(self._topic(name)))

    def _topic(self, name: str) -> str:
        return self._broker.topic(name.removeprefix("dramatiq:"))

    def _ids(self, bodies: Iterable[bytes]) -> list[bytes]:
        tasks = [Message.decode(each) for each in bodies]
        return [each.options["redis_message_id"].encode() for each in tasks]


class RedisStandIn(StandIn):
    def enqueue(self, message: "Message[Any]", *, delay: int | None = None) -> "Message[Any]":
        message = message.copy(options={"redis_message_id": message.message_id})
        return super().enqueue(message, delay=delay)


@contextlib.contextmanager
def running_worker(*args: Any, **kwargs: Any) -> Iterator[Worker]:
    worker = Worker(*args, **kwargs)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


common = types.ModuleType("tests.common")
vars(common).update(
    worker=running_worker,
    skip_in_ci=pytest.mark.skipif(False, reason="runs everywhere"),
    skip_on_windows=pytest.mark.skipif(sys.platform == "win32", reason="not on Windows"),
    skip_on_pypy=pytest.mark.skipif(sys.implementation.name == "pypy", reason="not on PyPy"),
    skip_unless_rabbit_mq=pytest.mark.skip(reason=AMQP),
    RABBITMQ_USERNAME="guest",
    RABBITMQ_PASSWORD="guest",
    RABBITMQ_CREDENTIALS=pika.PlainCredentials("guest", "guest"),
)
sys.modules["tests.common"] = common


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = getattr(item, "originalname", item.name)
        if name in SKIPPED:
            item.add_marker(pytest.mark.skip(reason=SKIPPED[name]))


@pytest.fixture(scope="session")
def daemon() -> Iterator[Nsqd]:
    with nsqd() as running:
        yield running


@pytest.fixture
def make_broker(daemon: Nsqd) -> Iterator[Callable[..., StandIn]]:
    made: list[StandIn] = []

    def make(kind: type[StandIn], **options: Any) -> StandIn:
        broker = kind(daemon, **options)
        broker.emit_after("process_boot")  # starts the threads of middleware
        dramatiq.set_broker(broker)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def stub_broker(
    make_broker: Callable[..., StandIn],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> StandIn:
    if request.node.name != CLEARS:
        monkeypatch.setattr(NsqMessage, "clear_exception", lambda message: None)
    return make_broker(StandIn, fail_fast_default=True)


@pytest.fixture
def rabbitmq_broker(make_broker: Callable[..., StandIn]) -> StandIn:
    return make_broker(StandIn)


@pytest.fixture
def redis_broker(make_broker: Callable[..., StandIn]) -> StandIn:
    return make_broker(RedisStandIn)


@pytest.fixture
def stub_worker(stub_broker: StandIn) -> Iterator[Worker]:
    with running_worker(stub_broker, worker_timeout=100, worker_threads=THREADS) as worker:
        yield worker


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: StandIn) -> Iterator[Worker]:
    with running_worker(rabbitmq_broker, worker_threads=THREADS) as worker:
        yield worker


@pytest.fixture
def redis_worker(redis_broker: StandIn) -> Iterator[Worker]:
    with running_worker(redis_broker, worker_threads=THREADS) as worker:
        yield worker


@pytest.fixture
def result_backend() -> StubBackend:
    return StubBackend()


@pytest.fixture
def redis_result_backend() -> None:
    pytest.skip("needs Redis")


@pytest.fixture
def rate_limiter_backend() -> Any:
    from dramatiq.rate_limits.backends import StubBackend as Backend

    return Backend()
