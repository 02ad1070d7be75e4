"""Indexes of keys that are larger than their memory; one situation at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies
from support.worker_core import SECOND, Client, Core, mpub

ROOM = 16_000  # bytes; more than 100 flows do not fit


class Worker:
    """Channels of topic t, whose messages are numbered."""

    def __init__(
        self, path: Path, *, room: int = ROOM, budget: int = 1 << 40, **values: Any
    ) -> None:
        self.policies = Policies(sections=[("t", {"durability": "os", "key": "json:/k"})])
        self.policies.set("t/c", values)
        self.policies.set("t/d", values)
        self.settings = {"policies": self.policies, "key_index_bytes": room, "budget": budget}
        self.core = Core(path, **self.settings)
        self.core.create("t").channel("c")
        self.number = 0
        self.sent: dict[str | None, list[int]] = {}

    @property
    def channel(self) -> Any:
        topic = self.core.topic("t")
        assert topic is not None
        return topic.channels["c"]

    def publish(self, *keys: str | None) -> None:
        bodies = []
        for key in keys:
            self.number += 1
            self.sent.setdefault(key, []).append(self.number)
            bodies.append(json.dumps({"k": key, "n": self.number}).encode())
        self.core.client().send(mpub("t", bodies))
        self.core.settle()
        room = self.core.scheduler.key_room
        assert room.used <= room.limit

    def publish_later(self, key: str, delay: int) -> None:
        """delay: ms"""
        self.number += 1
        self.sent.setdefault(key, []).append(self.number)
        body = json.dumps({"k": key, "n": self.number}).encode()
        self.core.client().publish("t", body, delay)
        self.core.settle()

    def restart(self) -> None:
        self.core.save()
        self.core = Core(
            self.core.path, now=5_000_000 * SECOND, wall=self.core.wall, **self.settings
        )
        self.core.shard.load_topic(b"t", False, {"c": False})
        self.core.settle()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.channel.counters()["keys"]
        return facts

    def consume(self, client: Client, maximum: int = 100_000) -> dict[str | None, list[int]]:
        """Finish messages as they come; return their numbers by key."""
        found: dict[str | None, list[int]] = {}
        for _ in range(maximum):
            messages = client.messages()
            if not messages:
                break
            for each in messages:
                body = json.loads(each.body)
                found.setdefault(body["k"], []).append(body["n"])
                client.finish(each.id)
            self.core.settle()
        return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Worker] = []

    def worker(**values: Any) -> Worker:
        made.append(Worker(tmp_path, **values))
        return made[0]

    yield worker
    made[0].core.close()


def test_a_key_that_floods_takes_no_room_from_others(make):
    worker = make(fair=True)
    worker.publish(*["a"] * 3000)
    assert worker.facts()["beyond_index"] > 2000
    worker.publish(*"bcdefg", *["a"] * 3000, *"bcdefg")
    client = worker.core.client().subscribe("t", "c", 1)
    worker.core.settle()
    first = worker.consume(client, 14)
    assert {key: len(found) for key, found in first.items()} == dict.fromkeys("abcdefg", 2)
    assert worker.consume(client)["a"] == worker.sent["a"][2:]
    assert worker.facts()["beyond_index"] == 0
    assert worker.channel.keys.flows == 0


def test_messages_beyond_the_index_keep_their_order(make):
    worker = make(order="key")
    for _ in range(40):
        worker.publish(*"aaaabcdaab", None, *"eeaaaa")
    client = worker.core.client().subscribe("t", "c", 3)
    worker.core.settle()
    found = worker.consume(client)
    found[None].sort()
    assert found == worker.sent


def test_a_key_that_stands_still(make):
    worker = make(order="key")
    client = worker.core.client(msg_timeout=900_000).subscribe("t", "c", 1)
    worker.publish(*["a"] * 2000)
    ((held),) = client.messages()
    other = worker.core.client().subscribe("t", "c", 5)
    for _ in range(30):
        worker.publish(*"abcdefgh" * 10)
        found = worker.consume(other)
        assert {key: len(each) for key, each in found.items()} == dict.fromkeys("bcdefgh", 10)
    assert worker.facts()["beyond_index"] > 1000
    client.finish(held.id)
    client.ready(0)
    worker.core.settle()
    assert worker.consume(other) == {"a": worker.sent["a"][1:]}


def test_drop_oldest_counts_messages_beyond_the_index(make):
    worker = make(fair=True, max_depth=2000, on_full="drop-oldest")
    worker.publish(*["b"] * 500)
    worker.publish(*["a"] * 2500)
    assert worker.channel.counters()["depth"] == 2000
    client = worker.core.client().subscribe("t", "c", 1)
    worker.core.settle()
    assert worker.consume(client) == {"a": worker.sent["a"][-1500:], "b": worker.sent["b"]}


def test_after_a_restart(make):
    worker = make(order="key")
    worker.publish(*"ab" * 2000, *"c" * 10)
    client = worker.core.client().subscribe("t", "c", 3)
    worker.core.settle()
    before = worker.consume(client, 500)
    worker.restart()
    client = worker.core.client().subscribe("t", "c", 3)
    worker.core.settle()
    after = worker.consume(client)
    for key, sent in worker.sent.items():
        # What was in flight at the exit comes again.
        assert before.get(key, []) + after.get(key, []) == sent


@pytest.mark.parametrize("delays", [(1000, 2000), (2000, 1000)])
def test_messages_that_were_due_before_a_restart(make, delays):
    """They keep their places. One that the scan has not reached does not hide an earlier one of its
    key."""
    worker = make(order="key")
    worker.publish_later("a", delays[0])
    worker.publish("a", *[f"key {number}" for number in range(200)])
    worker.publish_later("e", delays[1])
    worker.core.advance(3 * SECOND)
    worker.restart()
    assert worker.facts()["beyond_index"]
    client = worker.core.client().subscribe("t", "c", 1)
    worker.core.settle()
    worker.sent["a"].reverse()
    assert worker.consume(client) == worker.sent
    assert worker.channel.keys.flows == 0


def test_another_policy_and_none(make):
    worker = make(fair=True)
    worker.publish(*"ab" * 1500)
    worker.policies.set("t/c", {"order": "key"})
    worker.core.shard.policies_changed("t/c")
    client = worker.core.client().subscribe("t", "c", 2)
    worker.core.settle()
    before = worker.consume(client, 700)
    worker.policies.set("t/c", {})
    worker.core.shard.policies_changed("t/c")
    worker.core.settle()
    after = worker.consume(client)
    assert worker.channel.keys is None
    for key, sent in worker.sent.items():
        assert sorted(before[key] + after[key]) == sent


def test_emptying_a_key_reaches_beyond_the_index(make):
    worker = make(fair=True)
    worker.publish(*"aab" * 1500)
    done: list[None] = []
    worker.core.topic("t").empty_key("c", b"a", done.append)
    worker.core.settle()
    assert worker.channel.counters()["depth"] == 1500 and done
    assert worker.channel.ledger()["dropped"]["emptied"] == 3000
    client = worker.core.client().subscribe("t", "c", 1)
    worker.core.settle()
    assert worker.consume(client) == {"b": worker.sent["b"]}


def test_channels_share_the_room(make):
    worker = make(fair=True)
    worker.core.topic("t").channel("d")
    worker.publish(*"a" * 2000, *"b" * 2000)
    for name in "dc":
        client = worker.core.client().subscribe("t", name, 1)
        worker.core.settle()
        assert worker.consume(client) == worker.sent


def test_more_keys_than_room(make):
    worker = make(order="key")
    keys = [f"key {number}" for number in range(500)]
    worker.publish(*keys * 2)
    assert worker.facts()["beyond_index"] >= 800
    client = worker.core.client().subscribe("t", "c", 4)
    worker.core.settle()
    assert worker.consume(client) == worker.sent


@pytest.mark.parametrize("room", [1100, 1300])
def test_a_read_that_ends_while_no_key_needs_records(make, room):
    """Keys that need records of the log afterwards get them in the same turn."""
    worker = make(fair=True, room=room, budget=0)
    worker.publish(*"abac" * 60)
    worker.publish(*"abac" * 60)
    client = worker.core.client().subscribe("t", "c", 2500)
    worker.core.settle()
    assert worker.channel.counters()["depth"] == 0
    assert worker.consume(client) == worker.sent


@pytest.mark.parametrize(("keys", "size"), [(100, 8000), (1000, 700)])
def test_the_records_of_the_next_keys_are_requested_together(make, keys, size):
    """Although the memory for messages is full of others."""
    worker = make(fair=True, room=1 << 20, budget=4 << 20)
    padding = "x" * size
    for _ in range((6 << 20) // keys // size):
        bodies = [json.dumps({"k": number, "n": padding}).encode() for number in range(keys)]
        worker.core.client().send(mpub("t", bodies))
        worker.core.settle()
    core = worker.core
    assert core.pool.resident_bytes > 3 << 20
    client = core.client().subscribe("t", "c")
    core.settle()
    core.io.hold("pread")
    client.ready(2500)
    for _ in range(100):
        core.manager.run_turn(core.now, core.wall)
        requested = core.io.outstanding
        if requested:
            break
        for each in client.messages():
            client.finish(each.id)
    core.io.release()
    core.settle()
    assert requested >= 2
