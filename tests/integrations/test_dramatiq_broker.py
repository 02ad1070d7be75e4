"""NsqBroker in one process: delays, dead letters, failed publishes, and its HTTP requests."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("dramatiq")

import dramatiq
from dramatiq import Message, QueueJoinTimeout, Worker
from dramatiq.errors import BrokerError, ConnectionClosed, ConnectionFailed
from dramatiq.middleware import TimeLimitExceeded

from nsqcy.client import Producer
from nsqcy.integrations.dramatiq import NsqBroker, consumer
from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.http_requests import Web
from support.shop_process import until

pytestmark = pytest.mark.slow

LIMIT = 20_000  # milliseconds
MakeBroker = Callable[..., NsqBroker]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


@pytest.fixture
def make_broker(daemon: Nsqd, request: pytest.FixtureRequest) -> Iterator[MakeBroker]:
    """Return a function that makes brokers with separate topics."""
    made = []

    def make(**options: Any) -> NsqBroker:
        addresses = {"nsqd_http_addresses": daemon.http_address}
        prefix = f"{abs(hash(request.node.name)):x}-"
        broker = NsqBroker(daemon.tcp_address, topic_prefix=prefix, **addresses | options)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def broker(make_broker: MakeBroker) -> NsqBroker:
    return make_broker()


@contextmanager
def running(broker: NsqBroker, threads: int = 1) -> Iterator[Worker]:
    broker.emit_after("process_boot")  # starts the threads of middleware
    worker = Worker(broker, worker_timeout=50, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def set_policy(daemon: Nsqd, topic: str, **policy: object) -> None:
    web = Web.at(daemon.http_address)
    answer = web.request("PUT", f"/topic/config?topic={topic}", json.dumps(policy).encode())
    assert answer.status == 200, answer.body


def dead_letters(broker: NsqBroker, count: int = 1) -> list[Any]:
    """Return the dead letters of the default queue."""
    found = broker.consume("default.XQ", prefetch=10, timeout=20_000)
    try:
        messages = [next(found) for _ in range(count)]
        for each in messages:
            assert each is not None
            found.ack(each)
    finally:
        found.close()
    return messages


def published(daemon: Nsqd, broker: NsqBroker, body: bytes) -> None:
    with Producer(daemon.tcp_address) as producer:
        producer.publish(broker.topic("default"), body)


# -- options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"msg_timout": 5}, "NsqBroker has no option 'msg_timout': did you mean 'msg_timeout'?"),
        ({"max_in_flight": 5}, "NsqBroker has no option 'max_in_flight'"),
        ({"msg_timeout": 0}, "msg_timeout must be a number of seconds above 0, not 0"),
        ({"max_defer": "1h"}, "max_defer must be a number of seconds above 0, not '1h'"),
        (
            {"dead_letter_queue": "{topic}.dead"},
            "dead_letter_queue may contain only the placeholder {queue}: ",
        ),
        ({"durability": "disk"}, "durability"),
    ],
)
def test_a_wrong_option_is_an_error(options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        NsqBroker("127.0.0.1:4150", **options)
    assert text in str(error.value)


def test_a_name_that_nsq_disallows_becomes_one_that_it_allows(broker: NsqBroker) -> None:
    name = "a" * 100
    assert len(broker.topic(name)) == 64
    assert len({broker.topic(name), broker.topic(name + "b"), broker.dead_letter_topic(name)}) == 3


def test_delayed_and_dead_names_of_a_queue_declare_the_queue(broker: NsqBroker) -> None:
    for name in ("mail", "mail.DQ", "mail.XQ"):
        broker.declare_queue(name)
    assert broker.get_declared_queues() == {"mail"}
    assert broker.get_declared_delay_queues() == set()


# -- keys, priorities and deduplication ids


def prepare(daemon: Nsqd, broker: NsqBroker, topic: object, channel: object) -> None:
    """Set the policies of the default queue, and create its channel."""
    web, name = Web.at(daemon.http_address), broker.topic("default")
    assert web.put("/topic/config", json.dumps(topic).encode(), topic=name).status == 200
    answer = web.put(
        "/channel/config", json.dumps(channel).encode(), topic=name, channel="dramatiq"
    )
    assert answer.status == 200
    web.create(name, "dramatiq")


JSON_PRIORITY = {"priority": "json:/options/broker_priority"}


@pytest.mark.parametrize(
    ("options", "topic"), [({"headers": True}, {}), ({}, JSON_PRIORITY)], ids=["headers", "json"]
)
def test_nsqd_delivers_urgent_messages_first(
    daemon: Nsqd, make_broker: MakeBroker, options: dict[str, Any], topic: dict[str, Any]
) -> None:
    broker = make_broker(**options)
    prepare(daemon, broker, topic, {"urgent_first": True})
    ran: list[int] = []
    actor = dramatiq.actor(ran.append, actor_name="append", broker=broker)
    for priority in (3, 9, 5, 9):
        actor.send_with_options(args=(priority,), broker_priority=priority)
    actor.send(0)
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert ran == [9, 9, 5, 3, 0]


def test_an_actor_has_a_priority_and_a_message_may_have_another(
    daemon: Nsqd, make_broker: MakeBroker
) -> None:
    broker = make_broker(headers=True)
    prepare(daemon, broker, {}, {"urgent_first": True})
    ran: list[str] = []
    bulk = dramatiq.actor(ran.append, actor_name="bulk", broker=broker)
    urgent = dramatiq.actor(ran.append, actor_name="urgent", broker=broker, broker_priority=200)
    bulk.send("bulk")
    urgent.send_with_options(args=("second",), broker_priority=5)
    urgent.send("first")  # 200 counts as 9
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert ran == ["first", "second", "bulk"]


def test_messages_with_the_same_key_are_processed_one_at_a_time(
    daemon: Nsqd, make_broker: MakeBroker
) -> None:
    broker = make_broker(headers=True)
    prepare(daemon, broker, {}, {"order": "key"})
    held: set[int] = set()
    ran: list[tuple[int, int]] = []
    twice: list[int] = []

    def work(key: int, number: int) -> None:
        twice.extend(held & {key})
        held.add(key)
        ran.append((key, number))
        held.discard(key)

    actor = dramatiq.actor(work, actor_name="work", broker=broker)
    for number in range(20):
        for key in range(3):
            actor.send_with_options(args=(key, number), key=key)
    with running(broker, threads=4):
        broker.join("default", timeout=LIMIT)
    assert twice == []
    for key in range(3):
        assert [number for each, number in ran if each == key] == list(range(20))


def test_a_repeated_message_is_kept_once_but_its_retries_are_kept(
    daemon: Nsqd, make_broker: MakeBroker
) -> None:
    broker = make_broker(headers=True)
    prepare(daemon, broker, {"dedup_window": "10m"}, {})
    ran: list[int] = []

    def fail(number: int) -> None:
        ran.append(number)
        raise ValueError("not yet")

    actor = dramatiq.actor(
        fail, actor_name="fail", broker=broker, max_retries=2, min_backoff=10, max_backoff=20
    )
    for number in (1, 1, 2):
        actor.send_with_options(args=(number,), dedup_id=f"fail {number}")
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert sorted(ran) == [1, 1, 1, 2, 2, 2]


def test_a_key_must_be_a_text_or_a_number(make_broker: MakeBroker) -> None:
    actor = dramatiq.actor(print, actor_name="print", broker=make_broker(headers=True))
    for options in ({"key": True}, {"dedup_id": {}}, {"broker_priority": "high"}):
        with pytest.raises(ValueError, match=r"must be a (text or a )?number"):
            actor.send_with_options(**options)


# -- delays


def test_a_worker_holds_no_delayed_message_in_memory(broker: NsqBroker) -> None:
    ran = threading.Event()
    actor = dramatiq.actor(ran.set, actor_name="late", broker=broker)
    with running(broker) as worker:
        actor.send_with_options(delay=400)
        until(lambda: broker.get_queue_message_counts("default")[1] == 1, "it is deferred")
        (thread,) = worker.consumers.values()
        assert thread.queue_name == "default"
        assert thread.delay_queue.empty()
        broker.join("default", timeout=LIMIT)
    assert ran.is_set()


def test_a_delay_longer_than_the_limit_is_served_in_parts(make_broker: MakeBroker) -> None:
    broker = make_broker(max_defer=0.2)
    attempts = []

    def note() -> None:
        attempts.append(dramatiq.middleware.CurrentMessage.get_current_message())

    broker.add_middleware(dramatiq.middleware.CurrentMessage())
    actor = dramatiq.actor(note, broker=broker)
    sent = actor.send_with_options(delay=700)
    with running(broker):
        broker.join("default", timeout=LIMIT)
    (message,) = attempts
    assert message.received.attempts > 1  # an idle machine makes more attempts
    assert message.message_id == sent.message_id
    assert "eta" not in message.options


def test_an_eta_of_the_sender_is_kept(broker: NsqBroker) -> None:
    actor = dramatiq.actor(print, actor_name="late", broker=broker)
    sent = actor.send_with_options(eta=dramatiq.common.current_millis() + 60_000)
    assert broker.cancel(sent)


def test_a_delayed_message_can_be_cancelled(broker: NsqBroker) -> None:
    ran = []
    actor = dramatiq.actor(ran.append, actor_name="late", broker=broker)
    kept, cancelled = (actor.send_with_options(args=(number,), delay=500) for number in range(2))
    assert broker.cancel(cancelled)
    assert not broker.cancel(cancelled)
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert ran == [0]
    assert not broker.cancel(kept)


# -- dead letters


def test_a_dead_letter_has_the_last_traceback(broker: NsqBroker) -> None:
    def fail() -> None:
        raise ValueError("out of paper")

    dramatiq.actor(fail, broker=broker, max_retries=0).send()
    with running(broker):
        broker.join("default", timeout=LIMIT)
    (dead,) = dead_letters(broker)
    assert dead.actor_name == "fail"
    assert "out of paper" in dead.options["traceback"]


def test_dead_letters_can_be_dropped(make_broker: MakeBroker) -> None:
    broker = make_broker(dead_letter_queue=None)

    def fail() -> None:
        raise ValueError

    dramatiq.actor(fail, broker=broker, max_retries=0).send()
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


@pytest.mark.parametrize("body", [b"not JSON", b'{"actor_name": "x"}', None])
def test_a_message_that_nobody_can_process_is_a_dead_letter(
    daemon: Nsqd, broker: NsqBroker, body: bytes | None
) -> None:
    broker.declare_queue("default")
    if body is None:
        options: Any = ["not a dictionary"]
        body = Message("default", "x", (), {}, options).encode()
    published(daemon, broker, body)
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_a_message_of_an_unknown_actor_is_a_dead_letter(broker: NsqBroker) -> None:
    broker.declare_queue("default")
    message: Message[Any] = Message("default", "unknown", (), {}, {})
    broker.enqueue(message)
    with running(broker):
        broker.join("default", timeout=LIMIT)
    (dead,) = dead_letters(broker)
    assert dead.message_id == message.message_id


def test_an_old_message_is_a_dead_letter(broker: NsqBroker) -> None:
    ran: list[int] = []
    actor = dramatiq.actor(ran.append, actor_name="stale", broker=broker, max_age=1000)
    message = actor.message(1)
    broker.enqueue(message.copy(message_timestamp=message.message_timestamp - 2000))
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert broker.get_queue_message_counts("default") == (0, 0, 1)
    assert not ran


def test_nsq_to_nsq_puts_dead_letters_back(daemon: Nsqd, broker: NsqBroker) -> None:
    ran = []
    is_fixed = threading.Event()

    def print_page(number: int) -> None:
        if not is_fixed.is_set():
            raise ValueError("out of paper")
        ran.append(number)

    dramatiq.actor(print_page, broker=broker, max_retries=0).send(7)
    with running(broker):
        broker.join("default", timeout=LIMIT)
        is_fixed.set()
        redrive = subprocess.Popen(
            [
                *(sys.executable, "-m", "nsqcy", "nsq_to_nsq", "--channel=dramatiq"),
                f"--topic={broker.dead_letter_topic('default')}",
                f"--destination-topic={broker.topic('default')}",
                f"--nsqd-tcp-address={daemon.tcp_address}",
                f"--destination-nsqd-tcp-address={daemon.tcp_address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: ran == [7], "the dead letter is processed")
        finally:
            redrive.terminate()
            redrive.wait()


# -- failed publishes


def test_a_message_is_processed_again_if_its_retry_cannot_be_published(
    daemon: Nsqd, broker: NsqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "AGAIN", 0.05)
    attempts = []

    def fail_once() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("a retry has a traceback, so it is larger than the message")

    actor = dramatiq.actor(fail_once, broker=broker, min_backoff=10)
    actor.send()
    set_policy(daemon, broker.topic("default"), max_msg_size=400)
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert len(attempts) == 2
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_a_message_is_processed_again_if_its_pipeline_cannot_continue(
    daemon: Nsqd, broker: NsqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "AGAIN", 0.05)
    attempts = []
    ends = []

    def begin() -> str:
        attempts.append(1)
        if len(attempts) == 2:
            set_policy(daemon, broker.topic("end"), max_msg_size=1_000_000)
        return "x" * 1000

    first = dramatiq.actor(begin, broker=broker)
    second = dramatiq.actor(ends.append, actor_name="end", broker=broker, queue_name="end")
    set_policy(daemon, broker.topic("end"), max_msg_size=400)
    with running(broker):
        dramatiq.pipeline([first.message(), second.message()], broker=broker).run()
        broker.join("default", timeout=LIMIT)
        broker.join("end", timeout=LIMIT)
    assert len(attempts) == 2
    assert ends == ["x" * 1000]


def test_a_message_is_kept_while_its_dead_letter_cannot_be_published(
    daemon: Nsqd, broker: NsqBroker
) -> None:
    topic = broker.dead_letter_topic("default")
    assert topic is not None
    set_policy(daemon, topic, max_msg_size=10)
    actor = dramatiq.actor(print, actor_name="fails", broker=broker)
    actor.send()
    received = broker.consume("default", timeout=20_000)
    message = next(received)
    assert message is not None
    with pytest.raises(ConnectionClosed, match="too big"):
        received.nack(message)
    set_policy(daemon, topic, max_msg_size=1000)
    received.nack(message)
    until(lambda: broker.get_queue_message_counts("default") == (0, 0, 1), "it has moved")
    received.close()


def test_a_refused_message_is_an_error(daemon: Nsqd, broker: NsqBroker) -> None:
    set_policy(daemon, broker.topic("default"), max_msg_size=10)
    with pytest.raises(BrokerError, match="too big"):
        dramatiq.actor(print, actor_name="long", broker=broker).send()


def test_publishing_without_an_nsqd_is_an_error() -> None:
    with nsqd() as gone:
        address = gone.tcp_address
    broker = NsqBroker(address, publish_timeout=0.2)
    with pytest.raises(ConnectionClosed):
        dramatiq.actor(print, actor_name="nowhere", broker=broker).send()
    broker.close()


def test_messages_of_other_consumers_are_ignored(
    broker: NsqBroker, caplog: pytest.LogCaptureFixture
) -> None:
    received = broker.consume("default")
    foreign = dramatiq.MessageProxy(Message("default", "x", (), {}, {}))
    received.ack(foreign)
    received.nack(foreign)
    received.requeue([foreign])
    received.close()
    assert "it was not received from nsqd" in caplog.text


# -- workers


def test_a_time_limit_ends_a_task(broker: NsqBroker) -> None:
    ended = threading.Event()
    forever = threading.Event()

    def wait() -> None:
        try:
            while not forever.wait(0.01):
                pass
        except TimeLimitExceeded:
            ended.set()
            raise

    dramatiq.actor(wait, broker=broker, max_retries=0, time_limit=100).send()
    with running(broker):
        broker.join("default", timeout=LIMIT)
    assert ended.is_set()
    assert broker.get_queue_message_counts("default") == (0, 0, 1)


def test_the_prefetch_count_limits_the_messages_of_a_worker(broker: NsqBroker) -> None:
    actor = dramatiq.actor(print, actor_name="fetched", broker=broker)
    for _ in range(5):
        actor.send()
    topic = broker.topic("default")
    received = broker.consume("default", prefetch=2, timeout=20_000)
    messages = [next(received) for _ in range(2)]
    assert broker.management.counts([topic]).in_flight == 2
    received.requeue([each for each in messages if each])
    received.close()
    until(lambda: broker.get_queue_message_counts("default") == (5, 0, 0), "they are back")


def test_prefetched_messages_run_once_although_nsqd_restarts() -> None:
    class Skips(dramatiq.Middleware):
        def after_skip_message(self, broker: Any, message: Any) -> None:
            skipped.append(message)

    skipped: list[Any] = []
    runs: list[int] = []
    begun, gate = threading.Event(), threading.Event()
    with nsqd(durability="os") as own:
        broker = NsqBroker(own.tcp_address, nsqd_http_addresses=own.http_address)
        broker.add_middleware(Skips())

        @dramatiq.actor(broker=broker)
        def task(number: int) -> None:
            begun.set()
            gate.wait(30)
            runs.append(number)

        task.send(0)
        web = Web.at(own.http_address)
        with running(broker):
            assert begun.wait(30)
            task.send(1)
            web.await_counts("default", "dramatiq", in_flight_count=2)
            own.kill()
            own.start()
            web.await_counts("default", "dramatiq", in_flight_count=2)
            gate.set()
            web.await_counts("default", "dramatiq", depth=0, in_flight_count=0)
        broker.close()
    assert sorted(runs) == [0, 0, 1]
    assert skipped == []


def test_closing_the_broker_lets_others_have_its_messages(make_broker: MakeBroker) -> None:
    first, second = make_broker(), make_broker()
    dramatiq.actor(print, actor_name="moves", broker=first).send()
    assert next(first.consume("default", timeout=20_000)) is not None
    first.close()
    received = second.consume("default", timeout=20_000)
    message = next(received)
    assert message is not None
    received.ack(message)


def test_a_paused_worker_finishes_what_it_has(
    broker: NsqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.01)
    ran = []
    begun, gate = threading.Event(), threading.Event()

    def work(number: int) -> None:
        begun.set()
        gate.wait(20)
        ran.append(number)

    actor = dramatiq.actor(work, broker=broker)
    with running(broker) as worker:
        actor.send(1)
        actor.send(2)
        assert begun.wait(20)
        pausing = threading.Thread(target=worker.pause)
        pausing.start()
        gate.set()
        pausing.join()
        worker.resume()
        broker.join("default", timeout=LIMIT)
    assert ran == [1, 2]


# -- over HTTP


def test_flushing_drops_all_kinds_of_messages(daemon: Nsqd, broker: NsqBroker) -> None:
    actor = dramatiq.actor(print, actor_name="dropped", broker=broker)
    published(daemon, broker, b"not JSON")
    with running(broker):
        broker.join("default", timeout=LIMIT)
    actor.send()
    actor.send_with_options(delay=60_000)
    assert broker.get_queue_message_counts("default") == (1, 1, 1)
    broker.flush_all()
    assert broker.get_queue_message_counts("default") == (0, 0, 0)


def test_join_waits_no_longer_than_its_timeout(broker: NsqBroker) -> None:
    dramatiq.actor(print, actor_name="waits", broker=broker).send()
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=50)


def test_http_addresses_that_do_not_respond_are_an_error(make_broker: MakeBroker) -> None:
    with nsqd() as gone:
        address = gone.http_address
    broker = make_broker(nsqd_http_addresses=address)
    with pytest.raises(ConnectionFailed):
        broker.join("default")
    with pytest.raises(ConnectionFailed):
        broker.flush("default")
