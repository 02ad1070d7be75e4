"""Unmodified client libraries, which send no headers, publish to and consume from channels with
rules for keys."""

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from conftest import one_worker, three_workers
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Message
from support.client_libraries import (
    LIBRARIES,
    PUBLISHERS,
    Consumer,
    Producer,
    libraries,
    need_all,
)
from support.go_nsq_consumer import GoNsqConsumer, Handled
from support.nsqd_process import Nsqd

KEYS = ["a", "b", "c", "d"]
COUNT = 15  # messages of each key
CONSUMERS = 3

Consume = Callable[..., Consumer]
Publish = Callable[..., Producer]

every_library = pytest.mark.parametrize("library", libraries())


def bodies(count: int = COUNT) -> list[bytes]:
    """Return messages of all keys in turn."""
    return [json.dumps({"k": key, "n": number}).encode() for number in range(count) for key in KEYS]


def value(body: bytes) -> tuple[str, int]:
    found = json.loads(body)
    return found["k"], found["n"]


def numbers(messages: list[Message]) -> dict[str, list[int]]:
    """Return the numbers of the messages of each key, in the order of their delivery."""
    found = defaultdict(list)
    for message in messages:
        key, number = value(message.body)
        found[key].append(number)
    return found


def prepare(daemon: Nsqd, topic: str, **rules: Any) -> None:
    """Create the channel c with these rules."""
    for path, query, values in (
        ("topic", {}, {"key": "json:/k"}),
        ("channel", {"channel": "c"}, rules),
    ):
        answer = daemon.web.put(
            f"/{path}/config", json.dumps(values).encode(), topic=topic, **query
        )
        assert answer.status == 200, answer
    daemon.web.create(topic, "c")


def await_all_finished(daemon: Nsqd, topic: str, count: int) -> None:
    daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0, message_count=count)


@three_workers
@pytest.mark.parametrize("library", libraries(PUBLISHERS))
def test_each_library_publishes_keys(
    library: str, shared: Nsqd, topic: str, publish: Publish
) -> None:
    """Only one message of a key is delivered before it is finished."""
    prepare(shared, topic, order="key")
    producer = publish(library, shared, topic)
    producer.publish(bodies(3))
    assert producer.finish() == ["OK"] * 3 * len(KEYS)
    conn = shared.connect().sub(topic, "c", rdy=100)
    for number in range(3):
        messages = conn.messages(len(KEYS))
        assert sorted(value(each.body) for each in messages) == [(key, number) for key in KEYS]
        conn.nothing(0.05)
        for message in messages:
            conn.fin(message)


@three_workers
@every_library
def test_requeued_messages_stay_in_order(
    library: str, shared: Nsqd, topic: str, consume: Consume
) -> None:
    """Each message is requeued once: the others of its key wait for its second attempt."""
    prepare(shared, topic, order="key")
    consumer = consume(library, shared, topic, "c", rdy=20, requeue=10)
    shared.connect().mpub(topic, bodies())
    messages = consumer.messages(2 * COUNT * len(KEYS), timeout=60.0)
    expected = [number for number in range(COUNT) for _ in range(2)]
    assert numbers(messages) == dict.fromkeys(KEYS, expected)
    await_all_finished(shared, topic, COUNT * len(KEYS))


@three_workers
def test_libraries_share_an_ordered_channel(shared: Nsqd, topic: str, consume: Consume) -> None:
    need_all()
    prepare(shared, topic, order="key")
    consumers = [consume(name, shared, topic, "c", rdy=5) for name in (*LIBRARIES, *LIBRARIES)]
    eventually(lambda: len(shared.web.channel(topic, "c")["clients"]) == 6, 30.0)
    sent = bodies(200)
    shared.connect().mpub(topic, sent)
    await_all_finished(shared, topic, len(sent))
    eventually(lambda: sum(len(consumer.raw) for consumer in consumers) == len(sent))
    assert Counter(body for each in consumers for body in each.bodies()) == Counter(sent)
    for consumer in consumers:
        for found in numbers(consumer.messages(0)).values():
            assert found == sorted(found)


@one_worker
@every_library
def test_keys_take_turns(library: str, shared: Nsqd, topic: str, consume: Consume) -> None:
    prepare(shared, topic, fair=True)
    flood = [json.dumps({"k": "flood", "n": number}).encode() for number in range(300)]
    shared.connect().mpub(topic, flood + bodies())
    consumer = consume(library, shared, topic, "c", rdy=1)
    messages = consumer.messages(300 + COUNT * len(KEYS))
    keys = [value(each.body)[0] for each in messages]
    turns = ["flood", *KEYS] * COUNT
    assert keys == turns + ["flood"] * (len(keys) - len(turns))
    assert all(found == sorted(found) for found in numbers(messages).values())


@one_worker
@every_library
def test_a_limit_for_each_key(library: str, shared: Nsqd, topic: str, consume: Consume) -> None:
    """The consumer could have 40 messages, and keeps each of them for 0.3 s."""
    prepare(shared, topic, in_flight_per_key=2)
    consumer = consume(library, shared, topic, "c", rdy=40, touches=1)
    sent = bodies(6)
    shared.connect().mpub(topic, sent)
    shared.web.await_counts(topic, "c", in_flight_count=2 * len(KEYS))
    held = 2 * len(KEYS)
    while held:
        assert held <= 2 * len(KEYS)
        time.sleep(0.01)
        held = shared.web.channel(topic, "c")["in_flight_count"]
    assert Counter(message.body for message in consumer.messages(len(sent))) == Counter(sent)
    await_all_finished(shared, topic, len(sent))


# ---- go-nsq ----


def failing_sometimes(message: Message) -> bool:
    """Take a while, and fail at the first attempt of some messages."""
    time.sleep(random.random() / 200)
    return value(message.body)[1] % 7 != 3 or message.attempts > 1


def consumed(daemon: Nsqd, topic: str, sent: list[bytes]) -> list[Handled]:
    """Consume messages with several connections; return the attempts in their order."""
    consumers = [
        GoNsqConsumer(daemon, topic, "c", failing_sometimes, max_in_flight=10, concurrency=4)
        for _ in range(CONSUMERS)
    ]
    try:
        daemon.connect().mpub(topic, sent)
        await_all_finished(daemon, topic, len(sent))
    finally:
        for consumer in consumers:
            consumer.close()
    handled = [each for consumer in consumers for each in consumer.handled]
    done = Counter(each.message.body for each in handled if each.succeeded)
    assert done == Counter(sent)
    return sorted(handled, key=lambda each: each.began)


@one_worker
def test_concurrent_handlers_on_several_connections_keep_the_order(
    shared: Nsqd, topic: str
) -> None:
    prepare(shared, topic, order="key", fair=True)
    handled = consumed(shared, topic, bodies(30))
    for key in KEYS:
        those = [each for each in handled if value(each.message.body)[0] == key]
        found = [value(each.message.body)[1] for each in those if each.succeeded]
        assert found == list(range(30))
        for each, following in pairwise(those):
            assert each.ended <= following.began
            number = value(each.message.body)[1] + each.succeeded
            assert value(following.message.body)[1] == number


@one_worker
def test_concurrent_handlers_on_several_connections_respect_a_limit(
    shared: Nsqd, topic: str
) -> None:
    prepare(shared, topic, in_flight_per_key=2, fair=True)
    handled = consumed(shared, topic, bodies(30))
    for key in KEYS:
        those = [each for each in handled if value(each.message.body)[0] == key]
        moments = [(each.began, 1) for each in those] + [(each.ended, -1) for each in those]
        held = maximum = 0
        for _, change in sorted(moments):
            held += change
            maximum = max(maximum, held)
        assert maximum <= 2
