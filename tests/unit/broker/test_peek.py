"""Peeking at messages: all of them, in order, and without side effects."""

import json
import random
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.errors import HttpError
from nsqcy.nsqd.process_messages import peek as peeking
from support.header_client import HeaderClient
from support.worker_core import MILLISECOND, RESPONSE, SECOND, Client, Core, Delivery

Make = Callable[..., Core]
Page = dict[str, Any]
BODY_ROOM = 512 << 10


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        path = tmp_path / str(len(made))
        path.mkdir(exist_ok=True)
        made.append(Core(path, **({"max_defer_timeout": 3600 * SECOND} | settings)))
        return made[-1]

    yield make
    for core in made:
        core.close()


def look(core: Core, channel: str = "c", **params: Any) -> Page:
    """Return a page as HTTP shows it."""
    wanted = peeking.parse({k: str(v) for k, v in params.items()}, of_channel=bool(channel))
    topic = core.topic("t")
    assert topic is not None
    ends: list[str | None] = []
    start = peeking.after(wanted)
    peek = topic.peek(channel, wanted.state, wanted.maximum, start, wanted.max_body, ends.append)
    core.settle()
    assert ends == [None]
    page: Page = json.loads(peeking.page(wanted, peek))
    return page


def pages(core: Core, channel: str = "c", **params: Any) -> list[Page]:
    """Return all messages, page by page."""
    found: list[Page] = []
    start: dict[str, str] = {}
    while True:
        page = look(core, channel, **params, **start)
        found += page["messages"]
        if page["next"] is None:
            return found
        start = {"start": page["next"]}


def bodies(messages: list[Page]) -> list[bytes]:
    return [b64decode(each["body"]) for each in messages]


def publish(core: Core, *sent: bytes, delay: int = 0) -> None:
    producer = core.client()
    for body in sent:
        assert producer.publish("t", body, delay) == (RESPONSE, b"OK")


def state(core: Core) -> Any:
    """Return the state that peeking must not change."""
    topic = core.topic("t")
    assert topic is not None
    counters = [each.counters() for each in topic.channels.values()]
    return topic.counters(), counters, core.live(), core.pool.budget, topic.memory_bytes


def delivered(consumer: Client, count: int) -> list[Delivery]:
    consumer.ready(count)
    consumer.core.settle()
    return list(consumer.messages())


def number_of(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
@pytest.mark.parametrize("budget", [0, 1 << 40])
def test_what_waits_in_the_order_of_its_delivery(make: Make, durability: str, budget: int) -> None:
    """Some messages are after the cursor, some were requeued; they are in memory, or only on
    disk."""
    core = make(budget=budget, mem_queue_size=50, policies=Policies(TopicPolicy(durability)))
    consumer = core.client().subscribe("t", "c", 0)
    rng = random.Random(1)
    for _ in range(8):
        publish(core, *(rng.randbytes(rng.choice([1, 100, 40_000])) for _ in range(40)))
        publish(core, b"later", delay=1000)
        for message in delivered(consumer, rng.randrange(30)):
            rng.choice([consumer.finish, consumer.requeue, consumer.requeue])(message.id)
        consumer.ready(0)
    core.settle()
    before = state(core)
    found = pages(core, count=7, bytes=BODY_ROOM)
    assert state(core) == before
    assert {each["attempts"] for each in found} >= {0, 1}
    got: list[Delivery] = []
    while len(got) < len(found):
        batch = delivered(consumer, 100)
        assert batch
        got += batch
        for message in batch:
            consumer.finish(message.id)
    assert [each["id"] for each in found] == [each.id.decode() for each in got]
    assert [each["timestamp"] for each in found] == [each.timestamp for each in got]
    assert [each["attempts"] + 1 for each in found] == [each.attempts for each in got]
    assert bodies(found) == [each.body for each in got]


def test_what_is_in_flight(make: Make) -> None:
    core = make(budget=0)
    publish(core, b"none")
    slow = core.client(client_id="slow", msg_timeout=60_000).subscribe("t", "c", 0)
    quick = core.client(client_id="quick", msg_timeout=5_000).subscribe("t", "c", 0)
    publish(core, *number_of(10))
    held = delivered(slow, 6)
    slow.ready(0)
    core.advance(MILLISECOND)
    held += delivered(quick, 5)
    assert len(held) == 11
    before = state(core)
    for count in (100, 3, 1):
        found = pages(core, state="in_flight", count=count)
        assert [each["id"] for each in found] == [each.id.decode() for each in held[6:] + held[:6]]
    assert state(core) == before
    assert [each["consumer"]["client_id"] for each in found] == ["quick"] * 5 + ["slow"] * 6
    assert found[0]["consumer"]["remote_address"] == "127.0.0.1:3"
    assert found[0]["deadline"] == core.wall + 5 * SECOND
    assert found[0]["attempts"] == 1
    quick.transport.end()
    core.settle()
    assert pages(core, state="in_flight")[0]["consumer"] is None


@pytest.mark.parametrize("budget", [0, 1 << 40])
def test_what_is_deferred(make: Make, budget: int) -> None:
    core = make(budget=budget, policies=Policies(TopicPolicy("os")))
    core.client().subscribe("t", "c", 0)
    delays = random.Random(2).sample(range(1000, 2000), 60)
    for delay in delays:
        publish(core, b"%d" % delay, delay=delay)
    before = state(core)
    found = pages(core, state="deferred", count=25)
    assert state(core) == before
    assert bodies(found) == [b"%d" % each for each in sorted(delays)]
    assert [each["due"] // MILLISECOND for each in found] == [
        core.wall // MILLISECOND + each for each in sorted(delays)
    ]
    core.advance(1500 * MILLISECOND)
    early = [each for each in sorted(delays) if each <= 1500]
    assert bodies(pages(core)) == [b"%d" % each for each in early]


def test_what_a_topic_has_for_itself(make: Make) -> None:
    core = make(budget=0)
    publish(core, *number_of(30))
    assert bodies(pages(core, "", count=8)) == number_of(30)
    core.client().subscribe("t", "c", 0)
    core.settle()
    assert pages(core, "") == []
    assert bodies(pages(core)) == number_of(30)


@pytest.mark.parametrize("durability", ["memory", "os"])
@pytest.mark.parametrize("budget", [0, 1 << 40])
def test_the_log_has_what_consumers_have_finished(make: Make, durability: str, budget: int) -> None:
    policy = TopicPolicy(durability, retention_time=3600 * SECOND)
    core = make(budget=budget, policies=Policies(policy))
    consumer = core.client().subscribe("t", "c", 0)
    sent = [b"%d" % number + bytes(9000) for number in range(90)]  # several blocks
    publish(core, *sent)
    for message in delivered(consumer, 60):
        consumer.finish(message.id)
    consumer.ready(0)
    core.settle()
    before = state(core)
    found = pages(core, "", state="log", count=8)
    assert bodies(found) == sent
    assert [each["seq"] for each in found] == list(range(found[0]["seq"], found[0]["seq"] + 90))
    page = look(core, "", state="log", start=found[50]["start"], count=100)
    assert bodies(page["messages"]) == sent[50:]
    assert state(core) == before


def test_the_log_lacks_what_retention_has_released(make: Make) -> None:
    core = make(policies=Policies(TopicPolicy("os", retention_time=60 * SECOND)))
    core.client().subscribe("t", "c", 0)
    publish(core, *(bytes(10_000) for _ in range(100)))
    topic = core.topic("t")
    assert topic is not None
    topic.empty_channel("c")
    for _ in range(3):
        core.advance(100 * SECOND)
    publish(core, b"new")
    found = pages(core, "", state="log")
    assert found[0]["seq"] == topic.first_seq > 50
    assert bodies(found)[-1] == b"new"


def test_what_is_for_nobody_is_not_there(make: Make) -> None:
    """Peeking omits the messages of an emptied topic, and messages finished before a restart."""
    core = make(policies=Policies(TopicPolicy("os")))
    consumer = core.client().subscribe("t", "c", 0)
    topic = core.topic("t")
    assert topic is not None
    publish(core, *number_of(10))
    topic.pause(True)
    publish(core, b"gone", b"gone")
    topic.empty()
    topic.pause(False)
    publish(core, b"last")
    for message in delivered(consumer, 5):
        if int(message.body) % 2:
            consumer.finish(message.id)
    assert bodies(pages(core, count=2)) == [*number_of(10)[5:], b"last"]
    assert core.path is not None
    consumer.ready(0)
    core.advance(2 * SECOND)  # the journal includes the change
    core.copied().rename(core.path.with_name("1"))
    fresh = make(wall=core.wall)
    fresh.shard.load_topic(b"t", False, {})
    fresh.settle()
    assert sorted(bodies(pages(fresh, count=2))) == sorted(
        [*number_of(10)[5:], b"0", b"2", b"4", b"last"]
    )


def test_an_answer_is_bounded(make: Make) -> None:
    core = make(budget=0, max_msg_size=4 << 20)
    core.client().subscribe("t", "c", 0)
    publish(core, bytes(3 << 20), *(bytes(300_000) for _ in range(10)))
    page = look(core, bytes=BODY_ROOM)
    assert [each["size"] for each in page["messages"]] == [3 << 20]
    assert page["messages"][0]["cut"] is True
    assert len(b64decode(page["messages"][0]["body"])) == BODY_ROOM
    page = look(core, bytes=300_000, start=page["next"])
    assert len(page["messages"]) == 2
    assert [each["size"] for each in pages(core, bytes=0)] == [3 << 20] + [300_000] * 10


def test_much_that_is_for_nobody_is_stepped_over_in_parts(make: Make) -> None:
    core = make(policies=Policies(TopicPolicy("memory")))
    core.client().subscribe("t", "c", 0)
    publish(core, b"first")
    producer = core.client()
    for _ in range(700):
        assert producer.publish("t", b"x" * 100_000, 5000) == (RESPONSE, b"OK")
    publish(core, b"last")
    page = look(core)
    assert bodies(page["messages"]) == [b"first"]
    assert page["next"]
    assert bodies(pages(core)) == [b"first", b"last"]


def test_headers(make: Make) -> None:
    core = make()
    core.client().subscribe("t", "c", 0)
    HeaderClient(core).publish_with(b"body", {"trace": "ä", "raw": "\udcff"})
    core.settle()
    (message,) = pages(core)
    assert message["headers"] == {"trace": "ä", "raw": "\ufffd"}
    assert (message["size"], bodies([message])) == (4, [b"body"])


def test_a_topic_goes_meanwhile(make: Make) -> None:
    core = make(budget=0, policies=Policies(TopicPolicy("os")))
    core.client().subscribe("t", "c", 0)
    publish(core, bytes(200_000), bytes(200_000))
    topic = core.topic("t")
    assert topic is not None
    ends: list[str | None] = []
    topic.peek("c", "queued", 10, (0, 0), 10, ends.append)
    core.shard.delete_topic(b"t")
    core.settle()
    assert ends == ["E_LOG_NO_TOPIC"]


def test_nobody_waits_any_more(make: Make) -> None:
    core = make(budget=0, policies=Policies(TopicPolicy("os")))
    core.client().subscribe("t", "c", 0)
    publish(core, bytes(200_000), bytes(200_000))
    topic = core.topic("t")
    assert topic is not None
    ends: list[str | None] = []
    topic.peek("c", "queued", 10, (0, 0), 10, ends.append).cancel()
    core.settle()
    assert ends == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"state": "x"}, "INVALID_STATE (allowed: queued, in_flight, deferred)"),
        ({"state": "backlog"}, "INVALID_STATE (allowed: queued, in_flight, deferred)"),
        *(({"count": text}, "INVALID_COUNT (allowed: 1 to 100)") for text in ("0", "101", "", "x")),
        ({"bytes": "524289"}, "INVALID_BYTES (allowed: 0 to 524288)"),
        *(
            ({"start": text}, "INVALID_START (allowed: the value of next in a response)")
            for text in ("1", "a.b", "9" * 19 + ".0", "", "1.2.3")
        ),
    ],
)
def test_parameters_of_a_channel(params: dict[str, str], message: str) -> None:
    with pytest.raises(HttpError) as refused:
        peeking.parse(params, of_channel=True)
    assert (refused.value.status, refused.value.message) == (400, message)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"state": "queued"}, "INVALID_STATE (allowed: backlog, log)"),
        ({"from": "5"}, "INVALID_FROM (allowed with state=log, and without start)"),
        (
            {"state": "log", "from": "5", "start": "5.0"},
            "INVALID_FROM (allowed with state=log, and without start)",
        ),
        (
            {"state": "log", "from": "now"},
            "INVALID_FROM (allowed: earliest, latest, a sequence number, or a time such as "
            "2026-01-31T12:00:00Z, or -20 for the last 20)",
        ),
    ],
)
def test_parameters_of_a_topic(params: dict[str, str], message: str) -> None:
    with pytest.raises(HttpError) as refused:
        peeking.parse(params, of_channel=False)
    assert (refused.value.status, refused.value.message) == (400, message)
