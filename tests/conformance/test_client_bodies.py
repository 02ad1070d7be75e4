"""Publishing and consuming values instead of bodies, with a real nsqd and both interfaces."""

from dataclasses import dataclass
from typing import Any

import pytest

from conftest import one_worker
from nsqcy.client import DecodeError, Message
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Aio, Face
from support.nsqd_process import Nsqd


@dataclass(frozen=True)
class Order:
    id: int


def keeping(face: Face, kept: list[Order]) -> Any:
    """Return a handler that records orders; for asyncio, a coroutine function."""

    def keep(order: Order) -> None:
        kept.append(order)

    async def keep_later(order: Order) -> None:
        kept.append(order)

    return keep_later if isinstance(face, Aio) else keep


@one_worker
@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_values_arrive_as_they_were(face: Face, shared: Nsqd, topic: str, codec: str) -> None:
    pytest.importorskip("pydantic")
    pytest.importorskip(codec)
    address = f"127.0.0.1:{shared.tcp_port}"
    producer = face.producer(address, codec=codec)
    kept: list[Order] = []
    face.consumer(topic, "c", address, message_handler=keeping(face, kept), codec=codec)
    face.call(producer.publish, topic, Order(1))
    face.call(producer.multipublish, topic, [Order(2), Order(3)])
    face.call(producer.publish_all, topic, map(Order, (4, 5)), batch_messages=1)
    face.call(producer.dpub, topic, 1, Order(6))
    (wait,) = face.publish_nowait(producer, topic, [Order(7)])  # type: ignore[list-item]
    assert wait() == b"OK"
    eventually(lambda: {each.id for each in kept} == set(range(1, 8)))


@one_worker
def test_an_undecodable_body_becomes_a_dead_letter(face: Face, shared: Nsqd, topic: str) -> None:
    pytest.importorskip("pydantic")
    address = f"127.0.0.1:{shared.tcp_port}"
    producer = face.producer(address)
    kept: list[Order] = []
    letters: list[Message] = []
    errors: list[BaseException] = []
    face.consumer(
        topic,
        "c",
        address,
        message_handler=keeping(face, kept),
        codec="json",
        on_exception=lambda message, error: errors.append(error),
        dead_letter_topic=f"{topic}-dead",
        max_tries=2,
        requeue_delay=0,
        max_backoff_duration=0,
    )
    face.consumer(f"{topic}-dead", "c", address, message_handler=letters.append)
    face.call(producer.multipublish, topic, [b"no JSON", b'{"id":17}'])
    eventually(lambda: letters)
    assert letters[0].body == b"no JSON"
    assert [type(error) for error in errors] == [DecodeError, DecodeError]  # both attempts
    eventually(lambda: kept == [Order(17)])


@one_worker
def test_without_dead_letters_it_is_finished(face: Face, shared: Nsqd, topic: str) -> None:
    address = f"127.0.0.1:{shared.tcp_port}"
    face.call(face.producer(address).publish, topic, b"no JSON")
    face.consumer(
        topic,
        "c",
        address,
        message_handler=lambda value: None,
        codec="json",
        max_tries=2,
        requeue_delay=0,
        max_backoff_duration=0,
    )

    def is_empty() -> bool:
        answer = shared.web.get(f"/stats?format=json&topic={topic}&channel=c").json()
        if not answer["topics"]:  # the consumer has not subscribed yet
            return False
        (channel,) = answer["topics"][0]["channels"]
        left = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
        return bool(channel["requeue_count"] == 2 and left == 0)

    eventually(is_empty)


@one_worker
def test_iteration_decodes_on_request(face: Face, shared: Nsqd, topic: str) -> None:
    address = f"127.0.0.1:{shared.tcp_port}"
    face.call(face.producer(address, codec="json").publish, topic, {"id": 17})
    consumer = face.consumer(topic, "c", address, codec="json")
    message = face.call(consumer.get, 30)
    assert consumer.decode(message) == {"id": 17}
    face.call(message.finish)
