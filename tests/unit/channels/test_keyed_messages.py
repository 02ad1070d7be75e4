"""Rules for the messages of a key: order, turns, limits, priorities; one situation at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.channels.core import KeyListing
from nsqcy.config.policies import Policies
from support.worker_core import ERROR, MILLISECOND, RESPONSE, SECOND, Client, Core, mpub

SOURCES = {"key": "json:/k", "priority": "json:/p"}


class Channel:
    """Channel c of topic t, whose messages are numbered."""

    def __init__(self, path: Path, **values: Any) -> None:
        self.policies = Policies(sections=[("t", {"durability": "os", **SOURCES})])
        self.policies.set("t/c", values)
        self.core = Core(path, policies=self.policies)
        self.number = 0
        self.begin()

    def begin(self) -> None:
        self.producer = self.core.client()
        self.core.create("t").channel("c")

    def publish(self, *keys: str | None, priority: int = 0, delay: int = 0) -> None:
        for key in keys:
            self.number += 1
            body = json.dumps({"k": key, "p": priority, "n": self.number}).encode()
            self.producer.publish("t", body, delay)
        self.core.settle()

    def consumer(self, ready: int = 1) -> Client:
        client = self.core.client().subscribe("t", "c", ready)
        self.core.settle()
        return client

    def change(self, **values: Any) -> None:
        self.policies.set("t/c", values)
        self.core.shard.policies_changed("t/c")
        self.core.settle()

    def restart(self) -> None:
        self.core.save()
        self.core = Core(
            self.core.path, now=5_000_000 * SECOND, wall=self.core.wall, policies=self.policies
        )
        self.core.shard.load_topic(b"t", False, {"c": False})
        self.core.settle()
        self.begin()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Channel] = []

    def channel(**values: Any) -> Channel:
        made.append(Channel(tmp_path, **values))
        return made[0]

    yield channel
    made[0].core.close()


def received(client: Client) -> list[tuple[int, bytes]]:
    return [(json.loads(each.body)["n"], each.id) for each in client.messages()]


def numbers(client: Client) -> list[int]:
    return [number for number, _ in received(client)]


def all_in_turn(channel: Channel, client: Client, count: int) -> list[int]:
    """Finish each message before the next is delivered; return the numbers."""
    found = []
    for _ in range(count):
        ((number, id),) = received(client)
        found.append(number)
        client.finish(id)
        channel.core.settle()
    assert numbers(client) == []
    return found


def test_one_message_of_a_key_at_a_time_in_publish_order(make):
    channel = make(order="key")
    channel.publish("a", "a", "b", None, None, "a")
    client = channel.consumer(10)
    ((first, a), (third, _), *others) = received(client)
    assert (first, third, [number for number, _ in others]) == (1, 3, [4, 5])
    client.requeue(a)
    channel.core.settle()
    ((again, a),) = received(client)
    assert again == 1
    client.requeue(a, 5000)
    channel.core.advance(4999 * MILLISECOND)
    assert numbers(client) == []
    channel.core.advance(MILLISECOND)
    ((again, a),) = received(client)
    assert again == 1
    client.finish(a)
    channel.core.settle()
    assert numbers(client) == [2]


def test_order_holds_over_a_restart(make):
    channel = make(order="key")
    channel.publish("a", "a", "b", "b", "a")
    client = channel.consumer(10)
    (_, (_, b)) = received(client)
    client.finish(b)
    channel.core.settle()
    assert numbers(client) == [4]
    channel.restart()
    client = channel.consumer(1)
    assert all_in_turn(channel, client, 4) == [1, 2, 4, 5]


def test_messages_return_when_their_connection_ends(make):
    channel = make(order="key")
    channel.publish("a", "a")
    first, second = channel.consumer(), channel.consumer()
    assert numbers(first) == [1]
    first.transport.end()
    channel.core.settle()
    assert numbers(second) == [1]
    channel.change(order="key", requeue_on_disconnect="no")
    second.transport.end()
    channel.core.settle()
    third = channel.consumer()
    assert numbers(third) == []


def test_keys_take_turns(make):
    channel = make(fair=True)
    channel.publish(*"aaaaa", "b", None, None, "c")
    client = channel.consumer(1)
    assert all_in_turn(channel, client, 9) == [1, 6, 7, 9, 2, 8, 3, 4, 5]


def test_a_limit_blocks_its_key_alone(make):
    channel = make(in_flight_per_key=2)
    channel.publish(*"aaa", "b", None, None, None)
    client = channel.consumer(10)
    messages = received(client)
    assert [number for number, _ in messages] == [1, 2, 4, 5, 6, 7]
    client.finish(messages[1][1])
    channel.core.settle()
    assert numbers(client) == [3]


def test_a_rate_blocks_its_key_alone(make):
    channel = make(key_rate=10)
    channel.publish(*"aaa", "b")
    client = channel.consumer(10)
    assert numbers(client) == [1, 4]
    channel.core.advance(89 * MILLISECOND)
    assert numbers(client) == []
    channel.core.advance(2 * MILLISECOND)
    assert numbers(client) == [2]


def finish_all(channel: Channel, client: Client) -> int:
    """Finish messages as they come; return their number."""
    count = 0
    while messages := received(client):
        for _, id in messages:
            client.finish(id)
        count += len(messages)
        channel.core.settle()
    return count


def test_a_key_without_messages_is_remembered_for_its_rate_in_few_bytes(make):
    channel = make(key_rate=10)
    client = channel.consumer(100)
    names = [f"{number}" for number in range(3000)]
    channel.publish(*names)
    keys = channel.core.topic("t").channels["c"].keys
    assert finish_all(channel, client) == 3000
    assert (keys.flows, keys.remembered) == (0, 3000)
    room = channel.core.scheduler.key_room
    assert 3000 * 40 < room.used < 3000 * 64
    channel.change(key_rate=10, fair=True)
    assert 3000 * 40 < room.used < 3000 * 64
    channel.publish(*names)
    assert numbers(client) == []
    assert (keys.flows, keys.remembered) == (3000, 0)
    channel.core.advance(100 * MILLISECOND)
    assert finish_all(channel, client) == 3000
    # A rate is forgotten as soon as it has no unused credit to limit.
    channel.core.advance(99 * MILLISECOND)
    assert keys.remembered == 3000
    channel.core.advance(MILLISECOND)
    assert (keys.flows, keys.remembered) == (0, 0)
    assert room.used < 3000


@pytest.mark.parametrize("values", [{}, {"fair": True}, {"urgent_first": True}])
def test_the_rate_of_a_key_without_messages_stays_with_another_policy(make, values):
    channel = make(key_rate=10)
    client = channel.consumer(10)
    channel.publish("a")
    assert finish_all(channel, client) == 1
    channel.change(key_rate=5, **values)
    channel.core.advance(50 * MILLISECOND)
    channel.publish("a", "b")
    assert numbers(client) == [3]
    channel.core.advance(39 * MILLISECOND)
    assert numbers(client) == []
    channel.core.advance(MILLISECOND)
    assert numbers(client) == [2]


def test_the_rate_of_a_key_with_messages_stays_with_another_policy(make):
    channel = make(key_rate=10)
    client = channel.consumer(10)
    channel.publish(*"aa")
    assert finish_all(channel, client) == 1
    channel.change(key_rate=10, fair=True)
    channel.core.advance(89 * MILLISECOND)
    assert numbers(client) == []
    channel.core.advance(MILLISECOND)
    assert numbers(client) == [2]


def test_the_rate_of_a_key_without_messages_is_forgotten_without_a_rate(make):
    channel = make(key_rate=10)
    client = channel.consumer(10)
    channel.publish("a")
    assert finish_all(channel, client) == 1
    channel.change(fair=True)
    channel.change(key_rate=10)
    channel.publish("a")
    assert numbers(client) == [2]


@pytest.mark.parametrize("finished_first", [False, True])
def test_a_key_that_had_no_messages_has_no_more_credit_than_others(make, finished_first):
    channel = make(key_rate=10)
    client = channel.consumer(10)
    channel.publish("a")
    if finished_first:
        assert finish_all(channel, client) == 1
    # The next one comes 5 ms after its time, which is less than the unused credit that counts.
    channel.core.advance(95 * MILLISECOND)
    if not finished_first:
        assert finish_all(channel, client) == 1
    channel.publish("a")
    assert finish_all(channel, client) == 1
    channel.publish("a")
    channel.core.advance(94 * MILLISECOND)
    assert numbers(client) == []
    channel.core.advance(MILLISECOND)
    assert numbers(client) == [3]


def test_each_level_of_a_key_counts_for_its_rate(make):
    channel = make(key_rate=10, urgent_first=True)
    client = channel.consumer(10)
    channel.publish("a", priority=3)
    assert finish_all(channel, client) == 1
    channel.publish("a", priority=1)
    channel.publish("a", priority=7)
    keys = channel.core.topic("t").channels["c"].keys
    assert (keys.flows, keys.remembered) == (2, 0)
    assert numbers(client) == []
    channel.core.advance(100 * MILLISECOND)
    assert finish_all(channel, client) == 1
    channel.core.advance(100 * MILLISECOND)
    assert finish_all(channel, client) == 1


def test_the_highest_priority_is_first_but_each_has_its_share(make):
    channel = make(urgent_first=True, priority_share=0.1)
    channel.publish(*"aa", priority=1)
    channel.publish(*["b"] * 25, priority=7)
    client = channel.consumer(1)
    found = all_in_turn(channel, client, 27)
    assert [found.index(1), found.index(2)] == [9, 19]


def test_the_highest_priority_is_first_after_the_channel_was_emptied(make):
    channel = make(urgent_first=True)
    channel.publish("a")
    channel.core.topic("t").channels["c"].empty()
    channel.publish("b", priority=1)
    channel.publish("c", priority=2)
    assert all_in_turn(channel, channel.consumer(1), 2) == [3, 2]


def test_drop_oldest_takes_from_the_key_with_the_most(make):
    channel = make(fair=True, max_depth=4, on_full="drop-oldest")
    channel.publish("b", *"aaaaa")
    client = channel.consumer(1)
    assert all_in_turn(channel, client, 4) == [1, 4, 5, 6]


def test_other_rules_apply_to_waiting_messages(make):
    channel = make(fair=True)
    channel.publish(*"aaa", "b")
    client = channel.consumer(1)
    ((_, id),) = received(client)
    channel.change()
    client.finish(id)
    channel.core.settle()
    assert all_in_turn(channel, client, 3) == [2, 3, 4]
    assert channel.core.topic("t").channels["c"].keys is None


def test_records_that_left_out_of_order_stay_away_without_rules(make):
    channel = make(fair=True)
    channel.publish(*"aaa", "b", "b")
    client = channel.consumer(1)
    for expected in (1, 4):
        ((number, id),) = received(client)
        assert number == expected
        client.finish(id)
        channel.core.settle()
    assert numbers(client) == [2]
    channel.policies.set("t/c", {})
    client.transport.end()
    channel.restart()
    client = channel.consumer(1)
    assert all_in_turn(channel, client, 3) == [2, 3, 5]


def test_a_paused_key_blocks_alone(make):
    channel = make(fair=True, urgent_first=True)
    topic = channel.core.topic("t")
    channel.publish("a", "b", "a", priority=3)
    channel.publish("a", "b")
    topic.pause_key("c", b"a", True)
    client = channel.consumer(10)
    assert numbers(client) == [2, 5]
    topic.pause_key("c", b"a", False)
    channel.core.settle()
    assert numbers(client) == [1, 3, 4]


def test_emptying_a_key_reaches_what_is_not_in_the_index(make):
    channel = make(fair=True)
    channel.publish(*"abcabc")
    channel.restart()
    topic = channel.core.topic("t")
    # The index is built from the next dispatch on.
    done = []
    channel.publish("a")
    topic.empty_key("c", b"a", done.append)
    channel.core.settle()
    assert done == [None]
    assert not topic.channels["c"].emptied_keys
    assert topic.channels["c"].ledger()["dropped"]["emptied"] == 3
    channel.publish("a")
    client = channel.consumer(10)
    assert sorted(numbers(client)) == [2, 3, 5, 6, 8]


def test_an_emptied_key_that_the_scan_has_not_reached_survives_a_restart(tmp_path):
    channel = Channel(tmp_path, fair=True)
    channel.core.topic("t").pause_channel("c", True)
    for _ in range(10):
        channel.producer.ask(mpub("t", [b'{"k": "ab"}', b'{"k": "b", "n": 1}'] * 2000))
    channel.core.settle()
    channel.restart()
    topic = channel.core.topic("t")
    topic.empty_key("c", b"ab")
    (emptied,) = topic.channels["c"].emptied_keys
    assert (emptied.text, emptied.seq) == (b"ab", 40_001)
    channel.restart()
    topic = channel.core.topic("t")
    assert topic.channels["c"].ledger()["queued"] == 20_000
    assert not topic.channels["c"].emptied_keys
    channel.core.close()


def test_keys_stay_paused_without_rules_and_messages(make):
    channel = make(order="key")
    channel.core.topic("t").pause_key("c", b"a", True)
    channel.change()
    channel.restart()
    channel.change(order="key")
    channel.publish("a", "b")
    assert numbers(channel.consumer(10)) == [2]


def test_a_key_has_at_most_depth_per_key(make):
    channel = make(depth_per_key=2, on_full="drop-oldest")
    channel.publish(*"aaabaa", None, None, None)
    client = channel.consumer(10)
    assert numbers(client) == [4, 5, 6, 7, 8, 9]
    assert channel.core.topic("t").channels["c"].ledger()["dropped"]["full"] == 3


def test_publishes_of_a_full_key_are_refused(make):
    channel = make(depth_per_key=2)
    channel.publish(*"aab")
    problem = b"failed channel t/c is full for a key (depth-per-key 2)"
    assert channel.core.client().publish("t", b'{"k": "a"}') == (
        ERROR,
        b"E_PUB_FAILED PUB " + problem,
    )
    too_many = mpub("t", [b'{"k": "b"}', b'{"k": "b"}'])
    assert channel.core.client().ask(too_many) == (ERROR, b"E_MPUB_FAILED MPUB " + problem)
    assert channel.producer.ask(mpub("t", [b'{"k": "b"}', b'{"k": "c"}'])) == (RESPONSE, b"OK")
    channel.core.settle()
    assert channel.producer.publish("t", b'{"k": "c"}') == (RESPONSE, b"OK")
    assert channel.producer.publish("t", b"no key") == (RESPONSE, b"OK")
    client = channel.consumer(1)
    assert numbers(client) == [1]
    assert channel.producer.publish("t", b'{"k": "a"}') == (RESPONSE, b"OK")
    channel.change()
    assert channel.producer.publish("t", b'{"k": "a"}') == (RESPONSE, b"OK")


def test_statistics_of_keys(make):
    channel = make(order="key")
    topic = channel.core.topic("t")
    channel.publish(*"aaaab", None, *"ccd")
    topic.pause_key("c", b"c", True)
    channel.consumer(1)
    channel.core.advance(7 * SECOND)
    found = channel.core.counters("t", "c")["keys"]
    assert found == {
        "waiting": 3,
        "blocked": 2,
        "blocked_seconds": 7,
        "paused": 1,
        "beyond_index": 0,
        "largest": found["largest"],
    }
    largest = {each["key"]: each for each in found["largest"]}
    assert largest["a"] == {
        "key": "a",
        "depth": 3,
        "in_flight": 1,
        "blocked": True,
        "paused": False,
    }
    assert [each["depth"] for each in found["largest"]] == [3, 2, 1, 1, 1]
    assert largest["c"]["paused"] and not largest["b"]["blocked"]
    channel.change()
    assert "keys" not in channel.core.counters("t", "c")


def test_a_redrive_delivers_nothing_out_of_order(make):
    channel = make(order="key")
    channel.publish(*"aaab")
    client = channel.consumer(10)
    assert numbers(client) == [1, 4]
    channel.core.topic("t").pause_key("c", b"b", True)
    channel.publish("b")
    assert channel.core.topic("t").channels["c"].redrive(0) == 3
    channel.core.settle()
    assert numbers(client) == []


def test_a_long_redrive_lets_no_second_message_of_a_key_go(make):
    channel = make(max_attempts=1, dead_letter_topic="dead")
    channel.policies.set("dead/d", {"order": "key"})
    core = channel.core
    core.create("dead").channel("d")
    channel.publish(*["a"] * 600)
    client = channel.consumer(2500)
    for each in client.messages():
        client.requeue(each.id)
    core.settle()
    letters = core.client().subscribe("dead", "d", 10)
    core.settle()
    assert len(letters.messages()) == 1
    core.topic("dead").channels["d"].redrive(0)
    core.settle()
    assert letters.messages() == []
    assert core.counters("dead", "d")["depth"] == 0


@pytest.mark.parametrize("values", [{}, {"fair": True}])
def test_a_message_out_of_attempts_at_an_exit_is_not_found(make, values):
    """It was not delivered again in any case: it leaves as one that is out of attempts."""
    channel = make(max_attempts=1, **values)
    channel.publish("a", None)
    ids = [id for _, id in received(channel.consumer(2))]
    channel.restart()
    found = channel.core.topic("t").channels["c"]
    results: list[str | None] = []
    for id in ids:
        assert found.take_out(int(id, 16), True, results.append)
        channel.core.settle()
    assert results == ["MESSAGE_NOT_FOUND"] * 2
    assert found.ledger()["dropped"]["attempts"] == 2
    assert channel.core.counters("t", "c")["depth"] == 0


def test_a_message_that_was_requeued_without_rules_is_dropped_under_them(make):
    channel = make()
    channel.publish(*"aab")
    client = channel.consumer(3)
    for _, id in received(client):
        client.requeue(id)
    client.ready(0)
    channel.core.settle()
    channel.change(fair=True, max_depth=1, on_full="drop-oldest")
    assert channel.core.counters("t", "c")["depth"] == 1
    client.ready(3)
    channel.core.settle()
    assert numbers(client) == [3]


@pytest.mark.parametrize("passed", [90 * MILLISECOND, 200 * MILLISECOND])
def test_a_message_finishes_when_the_rate_allows_the_next(make, passed):
    channel = make(key_rate=10)
    channel.publish(*"aaabbb")
    client = channel.consumer(10)
    for expected in ([1, 4], [2, 5]):
        messages = received(client)
        assert [number for number, _ in messages] == expected
        # The clock is read at the start of a turn: before commands, which precede timers.
        channel.core.now += passed
        channel.core.scheduler.now = channel.core.now
        for _, id in messages:
            client.finish(id)
        channel.core.settle()
        channel.core.advance(MILLISECOND)
    channel.core.advance(100 * MILLISECOND)
    assert numbers(client) == [3, 6]


def test_a_list_of_keys_has_one_without_waiting_messages(make):
    channel = make(order="key")
    channel.publish(*"ab")
    assert numbers(channel.consumer(1)) == [1]
    listing = KeyListing(channel.core.topic("t").channels["c"], False, False)
    assert listing.walk(1000)
    assert [listing.text(i) for i in range(len(listing))] == [b"b", b""]
    assert [listing.facts(i)[:2] for i in range(len(listing))] == [(1, 0), (0, 1)]


def test_the_block_of_an_idle_topic_goes_to_others(make):
    channel = make(fair=True)
    client = channel.consumer(10)
    channel.publish(*"aab")
    for _, id in received(client):
        client.finish(id)
    for _ in range(13):
        channel.core.advance(SECOND)
    assert channel.core.pool.blocks == 0
    for topic in ("u", "v", "w"):
        for number in range(11, 17):
            body = json.dumps({"k": "a", "p": 0, "n": number}).encode()
            channel.producer.publish(topic, body)
    channel.publish("a")
    assert numbers(client) == [4]
