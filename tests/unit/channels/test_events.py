"""Message events: their kinds, their content, and the handling of events that cannot be
published."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsqcy.channels.core import Events
from nsqcy.names import EVENTS_TOPIC
from nsqcy.server.core import Publisher
from support.header_client import HeaderClient
from support.worker_core import EPOCH, MILLISECOND, RESPONSE, SECOND, Client, Core, Delivery, mpub

OK = (RESPONSE, b"OK")
RING, BATCH = 16384, 1024
Done = Callable[[str | None], None]


class Published:
    """Receives batches, and answers them when a test requests it."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.dones: list[Done] = []

    def __call__(self, lines: list[bytes], done: Done) -> None:
        self.batches.append(lines)
        self.dones.append(done)

    def answer(self, reason: str | None = None) -> None:
        self.dones.pop(0)(reason)


class Watched(Core):
    """A core that keeps its events here."""

    def __init__(self, sample: float = 1.0) -> None:
        self.events = Events(sample)
        self.published = Published()
        self.events.publish = self.published
        super().__init__(None, events=self.events)

    def told(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        found: list[dict[str, Any]] = []
        self.settle()
        while self.published.dones:
            for line in self.published.batches.pop(0):
                found.append(json.loads(line))
            self.published.answer()
            self.settle()
        return found


@pytest.fixture
def core() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


def take(core: Core, client: Client, count: int) -> list[Delivery]:
    core.settle()
    messages = client.messages()
    assert len(messages) == count
    return messages


def test_what_they_say(core: Watched) -> None:
    client = core.client(client_id="Zoë {1}").subscribe("t", "c", 10)
    core.client().publish("t", b"x")
    (message,) = take(core, client, 1)
    line = {"topic": "t", "channel": "c", "id": message.id.decode(), "client": "Zoë {1}"}
    core.advance(30 * MILLISECOND)
    client.requeue(message.id, 1000)
    assert core.told() == [
        line
        | {"time": core.wall, "kind": "requeue", "attempts": 1}
        | {"in_flight": 30 * MILLISECOND, "age": 30 * MILLISECOND}
    ]
    core.advance(SECOND)
    assert core.told() == []
    take(core, client, 1)
    core.advance(60 * SECOND)
    assert core.told() == [
        line
        | {"time": EPOCH + 61_030 * MILLISECOND, "kind": "timeout", "attempts": 2}
        | {"in_flight": 60 * SECOND, "age": 61_030 * MILLISECOND}
    ]
    take(core, client, 1)
    client.touch(message.id)
    client.finish(message.id)
    assert core.told() == [
        line
        | {"time": core.wall, "kind": "finish", "attempts": 3}
        | {"in_flight": 0, "age": 61_030 * MILLISECOND}
    ]
    assert (core.events.published, core.events.dropped) == (3, 0)


def test_a_timeout_of_a_client_that_has_left(core: Watched) -> None:
    client = core.client().subscribe("t", "c", 10)
    core.client().publish("t", b"x")
    take(core, client, 1)
    client.transport.end()
    core.advance(61 * SECOND)
    (event,) = core.told()
    assert (event["kind"], event["client"]) == ("timeout", "")


def test_what_a_client_calls_itself_has_an_end(core: Watched) -> None:
    client = core.client(client_id="x" * 600).subscribe("t", "c", 10)
    core.client().publish("t", b"x")
    client.finish(take(core, client, 1)[0].id)
    assert core.told()[0]["client"] == "x" * 512


def test_what_is_too_old(core: Watched) -> None:
    """One message was delivered before it expired, the other never."""
    publisher = HeaderClient(core)
    for body in (b"held", b"waits"):
        assert publisher.publish_with(body, {"ttl": "1000"}) == OK
    client = core.client().subscribe("t", "c", 1)
    (message,) = take(core, client, 1)
    client.ready(0)
    client.requeue(message.id)
    assert [each["kind"] for each in core.told()] == ["requeue"]
    core.advance(2 * SECOND)
    found = core.told()
    assert [each["kind"] for each in found] == ["expired"] * 2
    assert {(each["attempts"], each["in_flight"], each["client"]) for each in found} == {
        (0, 0, ""),
        (1, 0, ""),
    }
    assert {each["age"] >= SECOND for each in found} == {True}
    assert message.id.decode() in {each["id"] for each in found}


def test_clock_set_back(core: Watched) -> None:
    client = core.client().subscribe("t", "c", 10)
    core.client().publish("t", b"x")
    (message,) = take(core, client, 1)
    core.wall -= SECOND
    core.settle()
    client.finish(message.id)
    assert core.told()[0]["age"] == 0


def test_every_channel_and_not_the_topic_of_events(core: Watched) -> None:
    core.events.publish = lambda lines, done: Publisher(core.manager).publish(
        EVENTS_TOPIC.encode(), lines, 0, "memory", done
    )
    clients = [core.client().subscribe("t", f"c{number}", 10) for number in range(3)]
    reader = core.client().subscribe(EVENTS_TOPIC, "r", 10)
    core.client().publish("t", b"x")
    for client in clients:
        client.finish(take(core, client, 1)[0].id)
    found = take(core, reader, 3)
    assert [json.loads(each.body)["channel"] for each in found] == ["c0", "c1", "c2"]
    for each in found:
        reader.finish(each.id)
    core.advance(SECOND)
    assert core.events.published == 3
    assert core.counters(EVENTS_TOPIC)["message_count"] == 3


def test_without_them_nobody_is_told() -> None:
    core = Core(None)
    client = core.client().subscribe("t", "c", 10)
    core.client().publish("t", b"x")
    client.finish(take(core, client, 1)[0].id)
    core.advance(SECOND)
    assert core.topic(EVENTS_TOPIC) is None
    core.close()


@pytest.mark.parametrize("sample", [0.0, 0.25, 1.0])
def test_all_events_of_a_message_or_none(sample: float) -> None:
    core = Watched(sample)
    clients = [core.client().subscribe("t", name, 2500) for name in ("a", "b")]
    for _ in range(4):
        core.client().ask(mpub("t", [b"x"] * 500))
    for client in clients:
        messages = take(core, client, 2000)
        for message in messages:
            client.requeue(message.id)
        for message in take(core, client, 2000):
            client.finish(message.id)
    kinds = Counter((each["id"], each["channel"], each["kind"]) for each in core.told())
    chosen = {id for id, _, _ in kinds}
    assert len(kinds) == 4 * len(chosen)
    assert set(kinds.values()) <= {1}
    assert abs(len(chosen) - 2000 * sample) < 100
    assert core.events.dropped == 0
    core.close()


def finish_many(core: Watched, client: Client, count: int) -> None:
    done = 0
    while done < count:
        core.settle()
        messages = client.messages()
        assert messages
        client.send(b"".join(b"FIN %b\n" % each.id for each in messages))
        done += len(messages)


def test_one_batch_at_a_time_and_an_end_to_what_waits(core: Watched) -> None:
    client = core.client().subscribe("t", "c", 2500)
    count = RING + 3 * BATCH
    for _ in range(count // 512):
        core.client().ask(mpub("t", [b"x"] * 512))
    finish_many(core, client, count)
    core.settle()
    (first,) = core.published.batches
    assert 0 < len(first) <= BATCH
    assert core.events.waiting == RING
    assert core.events.dropped == count - RING - len(first)
    core.published.answer()
    core.settle()
    assert [len(batch) for batch in core.published.batches] == [len(first), BATCH]
    assert core.events.published == len(first)
    lost = core.events.dropped
    core.published.answer("disk")
    core.settle()
    assert core.events.dropped == lost + BATCH
    assert core.events.published == len(first)


def test_a_publish_that_raises_is_lost_and_said(core: Watched) -> None:
    def fail(lines: list[bytes], done: Done) -> None:
        raise RuntimeError("no")

    client = core.client().subscribe("t", "c", 10)
    core.client().publish("t", b"x")
    message = take(core, client, 1)[0]
    core.events.publish = fail
    client.finish(message.id)
    core.settle()
    assert core.events.dropped == 1
    assert core.log.lines == ["events: RuntimeError: no"]
