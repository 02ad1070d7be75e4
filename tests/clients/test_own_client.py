"""nsqcy's client with any broker that supports NSQ's protocols.

    NSQCY_TEST_NSQD=127.0.0.1:4150           its TCP address
    NSQCY_TEST_NSQD_HTTP=127.0.0.1:4151      its HTTP address
    NSQCY_TEST_LOOKUPD_HTTP=127.0.0.1:4161   HTTP address of a lookupd that lists the nsqd

    NSQCY_TEST_NSQD=... pytest tests/clients/test_own_client.py

If NSQCY_TEST_NSQD is unset, nsqcy's nsqd and nsqlookupd are started. If one of the others is unset,
the tests that need it are skipped. Every test has its own topic, which is deleted if there is an
HTTP address. The tests use only features of NSQ 1.2, and the broker may be in use.
"""

import json
import os
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from nsqcy.client.errors import NsqdError, Requeue
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import FACES, Face, Kept
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd

PATIENCE = 30.0


@dataclass(frozen=True)
class Broker:
    """Addresses of the broker; "" for each missing one."""

    tcp: str
    http: str
    lookupd: str

    def web(self, path: str, method: str = "GET") -> bytes:
        if not self.http:
            pytest.skip("needs NSQCY_TEST_NSQD_HTTP")
        request = urllib.request.Request(f"http://{self.http}{path}", method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            body: bytes = answer.read()
        return body

    def channel(self, topic: str, name: str = "c") -> dict[str, Any]:
        """Return the channel from /stats, or an empty result if it does not exist."""
        page = json.loads(self.web(f"/stats?format=json&topic={topic}"))
        for each in page.get("topics") or []:
            for channel in each["channels"] or []:
                if channel["channel_name"] == name:
                    return dict(channel)
        return {}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if tcp := os.environ.get("NSQCY_TEST_NSQD"):
        http = os.environ.get("NSQCY_TEST_NSQD_HTTP", "")
        yield Broker(tcp, http, os.environ.get("NSQCY_TEST_LOOKUPD_HTTP", ""))
        return
    with Lookupd() as lookupd:
        daemon = Nsqd(
            tmp_path_factory.mktemp("broker"),
            workers=2,
            lookupd_tcp_address=lookupd.tcp_address,
            broadcast_address="127.0.0.1",
        ).start()
        yield Broker(
            f"127.0.0.1:{daemon.tcp_port}", f"127.0.0.1:{daemon.http_port}", lookupd.http_address
        )
        daemon.destroy()


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = request.param()
    yield face
    face.end()


@pytest.fixture
def topic(broker: Broker, face: Face) -> Iterator[str]:
    name = f"nsqcy_test_{uuid.uuid4().hex}"
    yield name
    if broker.http:
        try:
            broker.web(f"/topic/delete?topic={name}", "POST")
        except OSError:
            pass  # the test has not created the topic, or has deleted it


@pytest.fixture
def producer(broker: Broker, face: Face) -> Any:
    return face.producer(broker.tcp)


@pytest.fixture
def consume(broker: Broker, face: Face, topic: str) -> Callable[..., Any]:
    """Factory of consumers for the test's topic."""

    def consume(handler: Any, *, channel: str = "c", **options: Any) -> Any:
        return face.consumer(topic, channel, broker.tcp, message_handler=handler, **options)

    return consume


def answer_all(face: Face, kept: Kept) -> None:
    for message in kept.messages:
        if not message.has_responded():
            face.call(message.finish)


def test_publish_and_consume(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str, broker: Broker
) -> None:
    kept = Kept()
    consume(kept)
    assert face.call(producer.publish, topic, b"hello") == b"OK"
    (message,) = eventually(lambda: list(kept.messages), PATIENCE)
    assert (message.body, message.attempts) == (b"hello", 1)
    assert len(message.id) == 16
    assert message.timestamp > 1_600_000_000 * 10**9
    assert message.nsqd_address == broker.tcp
    face.call(message.finish)


def test_each_channel_gets_a_copy(
    broker: Broker, face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    each = {name: Kept() for name in ("one", "two#ephemeral")}
    for name, kept in each.items():
        consume(kept, channel=name)
        # a channel created later would not receive the message
        eventually(lambda name=name: broker.channel(topic, name), PATIENCE)
    face.call(producer.publish, topic, b"m")
    for kept in each.values():
        eventually(lambda kept=kept: kept.bodies == [b"m"], PATIENCE)
        answer_all(face, kept)


def test_consumers_of_a_channel_share(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    taken: list[bytes] = []
    for _ in range(3):
        consume(lambda message: taken.append(message.body), max_in_flight=5)
    face.call(producer.multipublish, topic, [b"%d" % number for number in range(100)])
    eventually(lambda: len(taken) >= 100, PATIENCE)
    assert sorted(set(taken)) == sorted(b"%d" % number for number in range(100))


def test_many_as_one(face: Face, producer: Any, consume: Callable[..., Any], topic: str) -> None:
    bodies = [b"a", b"line\nfeed", b"\0", bytes(range(256)) * 400]
    taken: list[bytes] = []
    consume(lambda message: taken.append(message.body), max_in_flight=10)
    assert face.call(producer.multipublish, topic, bodies) == b"OK"
    eventually(lambda: sorted(taken) == sorted(bodies), PATIENCE)


def test_a_great_number(face: Face, producer: Any, consume: Callable[..., Any], topic: str) -> None:
    taken: set[bytes] = set()
    consume(lambda message: taken.add(message.body), max_in_flight=500)
    bodies = {b"%d" % number for number in range(5000)}
    assert face.call(producer.publish_all, topic, bodies) == 5000
    eventually(lambda: taken == bodies, PATIENCE)


def test_publishes_that_nobody_waits_for(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    taken: set[bytes] = set()
    consume(lambda message: taken.add(message.body), max_in_flight=100)
    bodies = [b"%d" % number for number in range(500)]
    waits = face.publish_nowait(producer, topic, bodies)
    assert [wait() for wait in waits] == [b"OK"] * 500
    eventually(lambda: taken == set(bodies), PATIENCE)


def test_a_deferred_message_comes_later(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    kept = Kept()
    consume(kept, max_in_flight=2)
    face.call(producer.publish, topic, b"later", defer=500)
    face.call(producer.publish, topic, b"now")
    eventually(lambda: kept.bodies == [b"now", b"later"], PATIENCE)
    answer_all(face, kept)


def test_requeued_messages_come_again(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    attempts: list[int] = []

    def handler(message: Any) -> None:
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise Requeue(0, backoff=False)

    consume(handler)
    face.call(producer.publish, topic, b"m")
    eventually(lambda: attempts == [1, 2, 3], PATIENCE)


def test_a_failure_slows_it_down_and_is_mended(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    attempts: list[int] = []

    def handler(message: Any) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise RuntimeError("the first time")

    consumer = consume(
        handler,
        requeue_delay=0,
        max_backoff_duration=128,
        backoff_multiplier=0.01,
        max_in_flight=5,
    )
    face.call(producer.publish, topic, b"m")
    eventually(lambda: attempts == [1, 2], PATIENCE)
    eventually(lambda: consumer.total_ready_count == 5, PATIENCE)


def test_giving_up(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str, broker: Broker
) -> None:
    handled: list[int] = []
    given_up: list[int] = []

    def handler(message: Any) -> bool:
        handled.append(message.attempts)
        return False

    consume(
        handler,
        max_tries=2,
        requeue_delay=0,
        max_backoff_duration=0,
        on_giving_up=lambda message: given_up.append(message.attempts),
    )
    face.call(producer.publish, topic, b"m")
    eventually(lambda: given_up == [3], PATIENCE)
    assert handled == [1, 2]
    eventually(lambda: not broker.channel(topic)["in_flight_count"], PATIENCE)


def test_an_unanswered_message_comes_again(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    kept = Kept()
    consume(kept, msg_timeout=1.0)
    face.call(producer.publish, topic, b"m")
    eventually(lambda: len(kept.messages) == 1, PATIENCE)
    face.call(kept.messages[0].touch)
    eventually(lambda: len(kept.messages) == 2, PATIENCE)
    assert [message.attempts for message in kept.messages] == [1, 2]
    face.call(kept.messages[1].finish)


def test_no_more_in_flight_than_wanted(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str, broker: Broker
) -> None:
    kept = Kept()
    consumer = consume(kept, max_in_flight=3)
    face.call(producer.multipublish, topic, [b"%d" % number for number in range(6)])
    eventually(lambda: len(kept.messages) == 3, PATIENCE)
    found = broker.channel(topic)
    assert (found["in_flight_count"], found["depth"]) == (3, 3)
    assert consumer.is_starved and consumer.total_in_flight == 3
    face.call(consumer.set_max_in_flight, 6)
    eventually(lambda: len(kept.messages) == 6, PATIENCE)
    answer_all(face, kept)


def test_a_pause(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str, broker: Broker
) -> None:
    kept = Kept()
    consumer = consume(kept, max_in_flight=2)

    def ready() -> int:
        (client,) = broker.channel(topic).get("clients") or [{"ready_count": -1}]
        count: int = client["ready_count"]
        return count

    eventually(lambda: ready() == 2, PATIENCE)
    face.call(consumer.pause)
    eventually(lambda: ready() == 0, PATIENCE)
    face.call(producer.publish, topic, b"m")
    eventually(lambda: broker.channel(topic)["depth"] == 1, PATIENCE)
    assert kept.messages == []
    face.call(consumer.resume)
    eventually(lambda: kept.bodies == [b"m"], PATIENCE)
    answer_all(face, kept)


def test_a_close_leaves_nothing_behind(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str, broker: Broker
) -> None:
    kept = Kept()
    consumer = consume(kept, max_in_flight=10)
    face.call(producer.multipublish, topic, [b"1", b"2"])
    eventually(lambda: len(kept.messages) == 2, PATIENCE)
    closing = face.begin(consumer.close)
    answer_all(face, kept)
    closing.result(PATIENCE)

    def is_left() -> bool:
        found = broker.channel(topic)
        return not (found["depth"] + found["in_flight_count"] + found["client_count"])

    eventually(is_left, PATIENCE)


def test_what_was_not_answered_goes_to_another(
    face: Face, producer: Any, consume: Callable[..., Any], topic: str
) -> None:
    first, second = Kept(), Kept()
    consumer = consume(first, msg_timeout=1.0)
    face.call(producer.publish, topic, b"m")
    eventually(lambda: first.messages, PATIENCE)
    face.call(consumer.close, graceful=False)
    consume(second)
    eventually(lambda: second.bodies == [b"m"], PATIENCE)
    answer_all(face, second)


@pytest.mark.parametrize("codec", ["deflate", "snappy"])
def test_compression(
    face: Face, broker: Broker, consume: Callable[..., Any], topic: str, codec: str
) -> None:
    options: dict[str, Any] = {codec: True}
    bodies = [b"small", b"x" * 300_000, os.urandom(100_000)]
    producer = face.producer(broker.tcp, **options)
    taken: list[bytes] = []
    consume(lambda message: taken.append(message.body), max_in_flight=5, **options)
    for body in bodies:
        face.call(producer.publish, topic, body)
    eventually(lambda: sorted(taken) == sorted(bodies), PATIENCE)


def test_what_nsqd_refuses(face: Face, producer: Any, topic: str) -> None:
    with pytest.raises(NsqdError, match="E_INVALID"):
        face.call(producer.publish, topic, b"m", defer=-1)
    assert face.call(producer.publish, topic, b"m") == b"OK"


def test_a_message_above_the_limit_costs_only_itself(face: Face, producer: Any, topic: str) -> None:
    large = b"m" * ((1 << 20) + 1)
    bodies = [large if number % 30 == 7 else b"m" for number in range(200)]
    errors = []
    for wait in face.publish_nowait(producer, topic, bodies):
        try:
            assert wait() == b"OK"
        except NsqdError as error:
            errors.append(str(error))
    assert errors == ["E_BAD_MESSAGE PUB message too big 1048577 > 1048576"] * 7


def test_lookupds_know_it(face: Face, producer: Any, topic: str, broker: Broker) -> None:
    if not broker.lookupd:
        pytest.skip("needs NSQCY_TEST_LOOKUPD_HTTP")
    face.call(producer.publish, topic, b"m")
    kept = Kept()
    face.consumer(
        topic,
        "c",
        lookupd_http_addresses=broker.lookupd,
        lookupd_poll_interval=0.1,
        message_handler=kept,
    )
    eventually(lambda: kept.bodies == [b"m"], PATIENCE)
    answer_all(face, kept)
