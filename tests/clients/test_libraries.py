"""Unmodified third-party client libraries work with this daemon as they do with NSQ."""

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from conftest import Starter, one_worker, three_workers
from nsqcy.testing.http_requests import eventually
from support.client_libraries import (
    CONSUMERS,
    LIBRARIES,
    NEST,
    PUBLISHERS,
    STRATEGIES,
    Consumer,
    Producer,
    absent,
    libraries,
    need_all,
)
from support.fake_auth_server import AuthServer, grant
from support.nsqd_process import Nsqd, free_port

Consume = Callable[..., Consumer]
Publish = Callable[..., Producer]

every_library = pytest.mark.parametrize("library", libraries())
every_consumer = pytest.mark.parametrize("library", libraries(CONSUMERS))
every_publisher = pytest.mark.parametrize("library", libraries(PUBLISHERS))


def bodies(count: int, size: int = 20) -> list[bytes]:
    """Return bodies with zero bytes and line endings."""
    return [(b"\0%06d\r\n" % number).ljust(size, b"\xff") for number in range(count)]


@three_workers
@every_publisher
def test_publish(library: str, shared: Nsqd, topic: str, publish: Publish) -> None:
    sent = bodies(20)
    conn = shared.connect().sub(topic, "c", rdy=100)
    producer = publish(library, shared, topic)
    producer.publish(sent)
    assert producer.finish() == ["OK"] * 20
    assert [message.body for message in conn.take(20)] == sent


@three_workers
@every_publisher
def test_publish_batches(library: str, shared: Nsqd, topic: str, publish: Publish) -> None:
    sent = bodies(900, 1000)
    conn = shared.connect().sub(topic, "c", rdy=100)
    producer = publish(library, shared, topic, batch=300)
    producer.publish(sent)
    assert producer.finish() == ["OK"] * 3
    assert [message.body for message in conn.take(900)] == sent


@one_worker
@every_library
def test_headers_are_sent_only_on_request(
    library: str, shared: Nsqd, topic: str, consume: Consume
) -> None:
    publisher = shared.connect()
    publisher.negotiate(headers=True)
    for body in bodies(5):
        publisher.pub(topic, b"\0\5\1a\0\1v" + body)
    consumer = consume(library, shared, topic, "c")
    assert [message.body for message in consumer.messages(5)] == bodies(5)


@three_workers
@pytest.mark.parametrize("library", libraries((*LIBRARIES, STRATEGIES)))
def test_publish_deferred(library: str, shared: Nsqd, topic: str, publish: Publish) -> None:
    conn = shared.connect().sub(topic, "c", rdy=10)
    producer = publish(library, shared, topic, defer=700)
    producer.publish(bodies(1))
    assert producer.finish() == ["OK"]
    message = conn.message()
    assert (message.body, message.attempts) == (bodies(1)[0], 1)
    assert time.time_ns() - message.timestamp >= 700_000_000


@one_worker
@every_library
def test_publish_to_a_bad_topic(library: str, shared: Nsqd, publish: Publish) -> None:
    """gnsq also checks the name. Whichever side refuses it, the result is an error, and not a
    hang."""
    producer = publish(library, shared, "not$valid")
    producer.publish(bodies(1))
    producer.await_that(lambda: producer.answers or producer.process.poll() is not None)
    assert "OK" not in producer.answers


@three_workers
@every_consumer
@pytest.mark.parametrize("rdy", [1, 50])
def test_consume(library: str, rdy: int, shared: Nsqd, topic: str, consume: Consume) -> None:
    sent = bodies(300, 500)
    consumer = consume(library, shared, topic, "c", rdy=rdy)
    shared.web.create(topic, "c")
    shared.connect().mpub(topic, sent)
    messages = consumer.messages(300)
    assert [message.body for message in messages] == sent
    assert {message.attempts for message in messages} == {1}
    assert len({message.id for message in messages}) == 300
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0, requeue_count=0)
    eventually(lambda: shared.web.client(topic, "c")["ready_count"] == rdy)
    client = shared.web.client(topic, "c")
    assert (client["message_count"], client["finish_count"]) == (300, 300)
    consumer.close()
    eventually(lambda: shared.web.channel(topic, "c")["clients"] == [])


@three_workers
@every_consumer
def test_an_idle_consumer_is_served(
    library: str, shared: Nsqd, topic: str, consume: Consume
) -> None:
    """Messages arrive one at a time, each after the previous one is finished."""
    consumer = consume(library, shared, topic, "c", rdy=10)
    shared.web.create(topic, "c")
    producer = shared.connect()
    for number, body in enumerate(bodies(20), 1):
        producer.pub(topic, body)
        assert consumer.messages(number)[-1].body == body
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0)


@three_workers
@every_consumer
@pytest.mark.parametrize("delay", [0, 400])
def test_requeue(library: str, delay: int, shared: Nsqd, topic: str, consume: Consume) -> None:
    sent = bodies(50)
    consumer = consume(library, shared, topic, "c", rdy=20, requeue=delay)
    shared.web.create(topic, "c")
    shared.connect().mpub(topic, sent)
    messages = consumer.messages(100)
    assert Counter(message.body for message in messages) == Counter(sent * 2)
    tries = Counter((message.id, message.attempts) for message in messages)
    assert sorted(attempts for _, attempts in tries) == [1] * 50 + [2] * 50
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0, requeue_count=50)
    # Some libraries back off after requeueing, and return to the full RDY count in steps.
    eventually(lambda: shared.web.client(topic, "c")["ready_count"] == 20, 30.0)


@three_workers
@pytest.mark.parametrize("library", libraries((NEST, STRATEGIES)))
def test_discards(library: str, shared: Nsqd, topic: str, consume: Consume) -> None:
    """A message beyond `maxAttempts` goes to the program's handler for discarded messages, and is
    finished by it."""
    consumer = consume(library, shared, topic, "c", rdy=5, requeue=0, attempts=1)
    shared.web.create(topic, "c")
    sent = bodies(20)
    shared.connect().mpub(topic, sent)
    consumer.await_that(lambda: len(consumer.raw) == 60)
    assert consumer.raw.count(b"") == 20
    discarded = [after for mark, after in pairwise(consumer.raw) if mark == b""]
    assert Counter(raw[26:] for raw in discarded) == Counter(sent)
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0, requeue_count=20)


@one_worker
@every_library
def test_auth(
    library: str,
    guarded: Nsqd,
    auth_server: AuthServer,
    topic: str,
    consume: Consume,
    publish: Publish,
) -> None:
    """An authorized client produces and consumes; an expired authorization is renewed
    transparently."""
    auth_server.says(topic, grant(f"^{topic}$"), ttl=1)
    sent = bodies(30)
    consumer = consume(library, guarded, topic, "c", rdy=5, secret=topic)
    eventually(lambda: guarded.web.channel(topic, "c") is not None, 30.0)
    producer = publish(library, guarded, topic, secret=topic)
    producer.publish(sent[:10])
    assert len(consumer.messages(10)) == 10
    asked = len(auth_server.asked(topic))
    assert asked >= 2
    answered = 10
    while len(auth_server.asked(topic)) == asked:
        producer.publish([sent[10]])
        answered += 1
        producer.await_that(lambda count=answered: len(producer.answers) == count)
    assert set(producer.finish()) == {"OK"}
    assert len(consumer.messages(answered)) == answered
    client = guarded.web.client(topic, "c")
    assert (client["authed"], client["auth_identity"]) == (True, "me")


@one_worker
@every_library
def test_auth_that_is_refused(
    library: str, guarded: Nsqd, auth_server: AuthServer, topic: str, publish: Publish
) -> None:
    auth_server.says(topic, grant("^another$"))
    producer = publish(library, guarded, topic, secret=topic)
    producer.publish(bodies(1))
    refusal = f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""'
    eventually(lambda: refusal in guarded.log_text(), 30.0)
    assert "OK" not in producer.answers
    assert guarded.web.topic(topic) is None


@three_workers
def test_touch_and_heartbeats(nsqd: Starter, consume: Consume) -> None:
    """A touched message is not redelivered, although its handler runs for longer than several
    message timeouts and heartbeat intervals."""
    need_all()
    daemon = nsqd(msg_timeout="1s", max_msg_timeout="1m")
    consumers = {
        library: consume(library, daemon, "t", library, touches=12, heartbeat=1, rdy=2)
        for library in ("pynsq", "gnsq", "nsqjs")
    }
    daemon.web.create("t", *consumers)
    for library in consumers:
        eventually(lambda name=library: daemon.web.channel("t", name)["clients"], 30.0)
    daemon.connect().pub("t", b"x")
    for library, consumer in consumers.items():
        assert [message.attempts for message in consumer.messages(1)] == [1]
        eventually(lambda name=library: daemon.web.client("t", name)["finish_count"], 30.0)
        daemon.web.await_counts("t", library, in_flight_count=0, timeout_count=0, depth=0)
        assert len(consumer.raw) == 1


@three_workers
def test_consumers_share_a_channel(shared: Nsqd, topic: str, consume: Consume) -> None:
    need_all()
    sent = bodies(3000)
    libraries = ("pynsq", "gnsq", "nsqjs", "pynsq", "gnsq", "nsqjs")
    consumers = [consume(library, shared, topic, "c", rdy=5) for library in libraries]
    shared.web.create(topic, "c")
    eventually(lambda: len(shared.web.channel(topic, "c")["clients"]) == 6, 30.0)
    shared.connect().mpub(topic, sent)
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0, message_count=3000)
    eventually(lambda: sum(len(consumer.raw) for consumer in consumers) == 3000)
    got = [body for consumer in consumers for body in consumer.bodies()]
    assert Counter(got) == Counter(sent)
    assert all(consumer.raw for consumer in consumers)


@three_workers
@pytest.mark.parametrize("killed", [False, True], ids=["terminated", "killed"])
def test_everyone_comes_back_after_a_restart(
    killed: bool, nsqd: Starter, consume: Consume, publish: Publish
) -> None:
    """pynsq waits 15 s before it reconnects."""
    need_all()
    daemon = nsqd(tcp_address=f"127.0.0.1:{free_port()}", http_address=f"127.0.0.1:{free_port()}")
    names = ("pynsq", "gnsq", "nsqjs")
    daemon.web.create("t", *names)
    consumers = {name: consume(name, daemon, "t", name, rdy=10) for name in names}
    producers = [publish(library, daemon, "t") for library in ("pynsq", "gnsq")]
    for producer in producers:
        producer.publish(bodies(10))
        producer.await_that(lambda each=producer: each.answers == ["OK"] * 10)
    for consumer in consumers.values():
        assert len(consumer.messages(20)) == 20
    for name in names:
        daemon.web.await_counts("t", name, depth=0, in_flight_count=0)

    daemon.restart(killed=killed)
    for producer in producers:
        publish_again(producer, bodies(20)[10:])
    for consumer in consumers.values():
        got = Counter(message.body for message in consumer.messages(40, timeout=60.0))
        assert got == Counter(bodies(20) * 2)
    for name in names:
        daemon.web.await_counts("t", name, depth=0, in_flight_count=0)


def publish_again(producer: Producer, sent: list[bytes]) -> None:
    """Publish until the answer is OK: the first attempts may use the old connection."""
    for body in sent:
        done = False
        while not done:
            seen = len(producer.answers)
            producer.publish([body])
            producer.await_that(lambda seen=seen: len(producer.answers) > seen)
            done = producer.answers[-1] == "OK"


@pytest.mark.skipif(bool(absent("pynsq")), reason=absent("pynsq"))
def test_a_drained_nsqd_is_emptied_first(
    nsqd: Starter, topic: str, consume: Consume, publish: Publish
) -> None:
    """A producer is refused and receives the reason; the consumer receives all messages, and nsqd
    exits."""
    daemon = nsqd()
    daemon.web.create(topic, "c")
    sent = bodies(2000, 500)
    daemon.connect().mpub(topic, sent)
    assert daemon.web.put("/config/drain", b"true").status == 200
    producer = publish("pynsq", daemon, topic)
    producer.publish(bodies(1))
    eventually(lambda: producer.answers)
    assert "E_PUB_FAILED PUB failed draining" in producer.answers[0]
    consumer = consume("pynsq", daemon, topic, "c", rdy=100)
    assert daemon.wait(60) == 0
    assert sorted(consumer.bodies()) == sent
