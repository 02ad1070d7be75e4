"""A consumer's own dead letters, with a real nsqd, for both interfaces."""

import asyncio
import threading
from typing import Any

import pytest

from nsqcy.client import Message
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Aio, Face
from support.nsqd_process import Nsqd

ADDRESS = "127.0.0.1:4150"  # of no nsqd: nothing connects


def fail(message: Message) -> bool:
    return False


def dead_letter(face: Face, daemon: Nsqd, topic: str, *, own: Any, **options: Any) -> Message:
    """Return the dead letter of one message that has failed twice."""
    address = f"127.0.0.1:{daemon.tcp_port}"
    producer = face.producer(address, headers=own is not None)
    face.call(producer.publish, topic, b"to nobody", headers=own)
    face.consumer(
        topic,
        "c",
        address,
        message_handler=fail,
        dead_letter_topic=f"{topic}-dead",
        max_tries=2,
        requeue_delay=0,
        max_backoff_duration=0,
        **options,
    )
    letters: list[Message] = []
    face.consumer(f"{topic}-dead", "c", address, message_handler=letters.append, headers=True)
    eventually(lambda: letters)
    eventually(lambda: finished(daemon, topic))
    assert letters[0].body == b"to nobody"
    return letters[0]


def finished(daemon: Nsqd, topic: str) -> bool:
    answer = daemon.web.get(f"/stats?format=json&topic={topic}&channel=c").json()
    (channel,) = answer["topics"][0]["channels"]
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]) == 0


def test_a_dead_letter_with_headers(face: Face, shared: Nsqd, topic: str) -> None:
    letter = dead_letter(
        face, shared, topic, own={"trace-id": "4b", "ttl": "9999999"}, headers=True
    )
    assert int(letter.headers.pop("first-time")) > 0
    assert len(letter.headers.pop("origin-id")) == 16
    assert letter.headers == {
        "origin-topic": topic,
        "origin-channel": "c",
        "attempts": "3",
        "reason": "attempts",
        "trace-id": "4b",
        "origin-ttl": "9999999",
    }


def test_own_headers_without_room_are_dropped(face: Face, shared: Nsqd, topic: str) -> None:
    own = {f"h{number}": "x" for number in range(32)}
    letter = dead_letter(face, shared, topic, own=own, headers=True)
    assert letter.headers["headers-dropped"] == "true" and "h0" not in letter.headers


def test_a_dead_letter_without_headers(face: Face, shared: Nsqd, topic: str) -> None:
    assert dead_letter(face, shared, topic, own=None).headers == {}


def test_a_closed_consumer_leaves_nothing_behind(face: Face, shared: Nsqd, topic: str) -> None:
    dead_letter(face, shared, topic, own=None)
    assert len(clients(shared, topic)) == 4
    for each in face._made:
        face.call(each.close)
    if isinstance(face, Aio):
        assert len(face.call(asyncio.all_tasks)) == 1  # the call itself
    eventually(lambda: not [each for each in threading.enumerate() if topic in each.name])
    eventually(lambda: clients(shared, topic) == [])


def clients(daemon: Nsqd, topic: str) -> list[Any]:
    """Return the connections that have published to the topic or its dead letters, or consume
    them."""
    found = []
    for name in (topic, f"{topic}-dead"):
        stats = daemon.web.get(f"/stats?format=json&topic={name}").json()
        found += stats["topics"][0]["channels"][0]["clients"]
        for producer in stats["producers"] or ():
            found += [each for each in producer.get("pub_counts", ()) if each["topic"] == name]
    return found


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dead_letter_topic": "no name"}, "not a valid topic name"),
        ({"dead_letter_topic": "t"}, "cannot be the topic of the consumer"),
        ({"dead_letter_topic": "d", "max_tries": 0}, "requires max_tries above 0"),
        ({"dead_letter_topic": "d", "on_giving_up": print}, "cannot be combined"),
    ],
)
def test_what_cannot_be(face: Face, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        face.module.Consumer("t", "c", ADDRESS, **options)
