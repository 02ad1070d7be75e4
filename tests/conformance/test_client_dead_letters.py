"""Dead letters that a consumer publishes itself, with a real nsqd and both interfaces."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from conftest import one_worker
from nsqcy.client import AlreadyAnswered, DeadLetter, Error, Message, NsqdAdmin
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Aio, Face, Kept
from support.fake_nsqd import MockNsqd
from support.nsqd_process import Nsqd

ADDRESS = "127.0.0.1:4150"  # no test connects to this address


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


@one_worker
def test_own_headers_without_room_are_dropped(face: Face, shared: Nsqd, topic: str) -> None:
    own = {f"h{number}": "x" for number in range(32)}
    letter = dead_letter(face, shared, topic, own=own, headers=True)
    assert letter.headers["headers-dropped"] == "true" and "h0" not in letter.headers


@one_worker
def test_a_dead_letter_without_headers(face: Face, shared: Nsqd, topic: str) -> None:
    assert dead_letter(face, shared, topic, own=None).headers == {}


@one_worker
def test_a_closed_consumer_leaves_nothing_behind(face: Face, shared: Nsqd, topic: str) -> None:
    dead_letter(face, shared, topic, own=None)
    assert len(clients(shared, topic)) == 4
    for each in face._made:
        face.call(each.close)
    if isinstance(face, Aio):
        assert len(face.call(asyncio.all_tasks)) == 1  # the call itself
    eventually(lambda: not [each for each in threading.enumerate() if topic in each.name])
    eventually(lambda: clients(shared, topic) == [])


# -- dead letters that a handler requests


def reject(message: Message) -> None:
    raise DeadLetter("no such customer: Müller")


def reject_after_failure(message: Message) -> None:
    try:
        raise LookupError("no such customer: Müller")
    except LookupError as error:
        raise DeadLetter from error


def call(message: Message) -> None:
    message.dead_letter("no such customer: Müller")


REASONS = {
    reject: "no such customer: Müller",
    reject_after_failure: "LookupError: no such customer: Müller",
    call: "no such customer: Müller",
}


def test_a_handler_makes_a_dead_letter_at_once(
    face: Face, nsqd: Callable[..., Nsqd], caplog: pytest.LogCaptureFixture
) -> None:
    """nsqd transfers the message, regardless of the worker that owns the topic."""
    daemon = nsqd()
    address = f"127.0.0.1:{daemon.tcp_port}"
    admin = NsqdAdmin(f"127.0.0.1:{daemon.http_port}")
    admin.create_channel("dead", "look")
    looker: list[Message] = []
    face.consumer("dead", "look", address, message_handler=looker.append, headers=True)
    producer = face.producer(address, headers=True)
    for handler, text in REASONS.items():
        topic = f"t-{handler.__name__}"
        admin.create_channel(topic, "c")
        admin.channel_policy(topic, "c", dead_letter_topic="dead")
        face.consumer(topic, "c", address, message_handler=handler)
        face.call(producer.publish, topic, b"poison", headers={"kind": "x"})
        (letter,) = eventually(lambda: list(looker))
        looker.clear()
        assert letter.body == b"poison"
        found = {name: letter.headers[name] for name in ("origin-topic", "attempts", "kind")}
        assert found == {"origin-topic": topic, "attempts": "1", "kind": "x"}
        assert (letter.headers["reason"], letter.headers["reason-text"]) == ("rejected", text)
        eventually(lambda topic=topic: finished(daemon, topic))
    assert "LookupError: no such customer" in caplog.text


def test_a_rejected_message_returns_with_a_redrive(face: Face, nsqd: Callable[..., Nsqd]) -> None:
    daemon = nsqd()
    address = f"127.0.0.1:{daemon.tcp_port}"
    admin = NsqdAdmin(f"127.0.0.1:{daemon.http_port}")
    admin.create_channel("dead", "look")
    admin.create_channel("t", "c")
    admin.channel_policy("t", "c", dead_letter_topic="dead")
    attempts: list[int] = []

    def reject_once(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) == 1:
            raise DeadLetter

    face.call(face.producer(address).publish, "t", b"poison")
    face.consumer("t", "c", address, message_handler=reject_once)
    eventually(lambda: admin.peek("dead", "look"))
    assert "reason-text" not in admin.peek("dead", "look")[0].headers
    admin.redrive("dead", "look")
    eventually(lambda: attempts == [1, 1])
    eventually(lambda: finished(daemon, "t"))


@one_worker
@pytest.mark.parametrize("handler", REASONS)
def test_a_consumer_with_a_topic_of_its_own_publishes_it(
    face: Face, shared: Nsqd, topic: str, handler: Any
) -> None:
    """As with NSQ's nsqd, the dead letter is published before the message is finished."""
    address = f"127.0.0.1:{shared.tcp_port}"
    face.call(face.producer(address, headers=True).publish, topic, b"poison", headers={"kind": "x"})
    face.consumer(
        topic,
        "c",
        address,
        message_handler=handler,
        dead_letter_topic=f"{topic}-dead",
        headers=True,
    )
    letters: list[Message] = []
    face.consumer(f"{topic}-dead", "c", address, message_handler=letters.append, headers=True)
    eventually(lambda: letters)
    headers = letters[0].headers
    assert (headers["reason"], headers["reason-text"]) == ("rejected", REASONS[handler])
    assert (headers["origin-topic"], headers["attempts"], headers["kind"]) == (topic, "1", "x")
    eventually(lambda: finished(shared, topic))
    assert len(letters) == 1


@one_worker
def test_without_a_topic_it_is_requeued(
    face: Face, shared: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{shared.tcp_port}"
    face.call(face.producer(address).publish, topic, b"poison")
    errors: list[Any] = []
    attempts: list[int] = []

    def reject_once(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise DeadLetter("why")

    face.consumer(
        topic, "c", address, message_handler=reject_once, on_error=errors.append, requeue_delay=0
    )
    eventually(lambda: attempts == [1, 2])
    eventually(lambda: errors)
    assert errors[0].code == "E_DEAD_LETTER_FAILED"
    assert "no dead_letter_topic: requeued" in caplog.text
    eventually(lambda: finished(shared, topic))


def test_with_an_nsqd_that_has_no_dead_letters(
    face: Face, mock: Callable[..., MockNsqd], caplog: pytest.LogCaptureFixture
) -> None:
    """The message is requeued, and the error mentions the setting."""
    other = mock()
    face.consumer("t", "c", other.address, message_handler=reject)
    link = other.subscriber()
    with link:
        link.deliver(b"m")
    eventually(lambda: link.said("REQ"))
    assert link.said("REQ") == [f"REQ {0:016x} 1000"]
    text = f"{other.address} has no dead letters: set the consumer's option dead_letter_topic"
    assert text in caplog.text
    kept = Kept()
    face.consumer("t", "c", other.address, message_handler=kept)
    with other.subscriber(1) as link:
        link.deliver(b"m")
    (message,) = eventually(lambda: list(kept.messages))
    with pytest.raises(Error, match="has no dead letters"):
        face.call(message.dead_letter)
    assert not message.has_responded()
    face.call(message.finish)
    with pytest.raises(AlreadyAnswered):
        face.call(message.dead_letter)


def clients(daemon: Nsqd, topic: str) -> list[Any]:
    """Return the connections that have published to the topic or its dead-letter topic, or that
    consume from them."""
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
        ({"dead_letter_topic": "t"}, "cannot be the consumer's own topic"),
        ({"dead_letter_topic": "d", "max_tries": 0}, "requires max_tries above 0"),
        ({"dead_letter_topic": "d", "on_giving_up": print}, "cannot be combined"),
    ],
)
def test_what_cannot_be(face: Face, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        face.module.Consumer("t", "c", ADDRESS, **options)
