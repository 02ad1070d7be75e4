"""Full topics and channels: refused messages, dropped messages, and their counters."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies
from support.worker_core import ERROR, RESPONSE, SECOND, Core, mpub

Make = Callable[..., Core]
OK = (RESPONSE, b"OK")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(topic: dict[str, Any], channel: dict[str, Any] | None = None, **other: Any) -> Core:
        channels = [("t/c", channel)] if channel else []
        policies = Policies(sections=[("t", topic)], channel_sections=channels)
        made.append(Core(tmp_path, policies=policies, **other))
        return made[-1]

    yield make
    made[-1].close()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def publish(core: Core, first: int, end: int) -> None:
    assert core.client().ask(mpub("t", numbers(first, end))) == OK
    core.settle()


def depth(core: Core, channel: str = "c") -> int:
    return int(core.counters("t", channel)["depth"])


def bodies(core: Core, channel: str = "c") -> list[bytes]:
    """Consume the messages that are waiting in a channel, and return their bodies."""
    consumer = core.client().subscribe("t", channel, 1000)
    core.settle()
    found = consumer.messages()
    for message in found:
        consumer.finish(message.id)
    consumer.ready(0)
    core.settle()
    return [message.body for message in found]


def full(core: Core, channel: str | None = "c") -> int:
    topic = core.topic("t")
    if channel is None:
        return int(topic.ledger()["dropped"]["full"])
    ledger = topic.channels[channel].ledger()
    dropped = ledger.pop("dropped")
    assert ledger.pop("received") == sum(ledger.values()) + sum(dropped.values())
    return int(dropped["full"])


# ---- refused ----


def test_a_full_topic_refuses_until_it_is_consumed(make: Make) -> None:
    core = make({"max_depth": 10})
    core.create("t").channel("c")
    core.create("t").channel("idle")
    publish(core, 0, 10)
    kind, text = core.client().publish("t", b"refused") or (0, b"")
    assert kind == ERROR
    assert text == b"E_PUB_FAILED PUB failed topic t is full (max-depth 10)"
    assert bodies(core) == numbers(0, 10)
    assert core.client().publish("t", b"refused")[0] == ERROR  # type: ignore[index]
    core.topic("t").empty_channel("idle")
    publish(core, 10, 20)
    assert core.counters("t")["message_count"] == 20


def test_a_batch_is_taken_whole_or_not(make: Make) -> None:
    core = make({"max_depth": 10})
    core.create("t").channel("c")
    kind, text = core.client().ask(mpub("t", numbers(0, 11))) or (0, b"")
    assert (kind, text[:15]) == (ERROR, b"E_MPUB_FAILED M")
    assert depth(core) == 0
    publish(core, 0, 10)
    assert depth(core) == 10


def test_a_topic_without_channels_is_full_as_well(make: Make) -> None:
    core = make({"max_depth": 3})
    publish(core, 0, 3)
    assert core.client().publish("t", b"refused")[0] == ERROR  # type: ignore[index]
    core.topic("t").channel("c")
    core.settle()
    assert core.client().publish("t", b"refused")[0] == ERROR  # type: ignore[index]
    assert bodies(core) == numbers(0, 3)
    publish(core, 3, 6)


def test_bytes_are_those_of_who_is_furthest_behind(make: Make) -> None:
    core = make({"max_bytes": 10_000})
    core.create("t").channel("c")
    core.create("t").channel("idle")
    for _ in range(9):
        assert core.client().publish("t", bytes(1000)) == OK
    kind, text = core.client().publish("t", bytes(1000)) or (0, b"")
    assert (kind, text) == (ERROR, b"E_PUB_FAILED PUB failed topic t is full (max-bytes 10000)")
    assert len(bodies(core)) == 9
    assert core.client().publish("t", bytes(1000))[0] == ERROR  # type: ignore[index]
    assert len(bodies(core, "idle")) == 9
    assert core.client().publish("t", bytes(1000)) == OK


def test_a_channel_can_refuse_for_its_topic(make: Make) -> None:
    core = make({}, {"max_depth": 5})
    core.create("t").channel("c")
    core.create("t").channel("other")
    publish(core, 0, 5)
    _, text = core.client().publish("t", b"refused") or (0, b"")
    assert text == b"E_PUB_FAILED PUB failed channel t/c is full (max-depth 5)"
    core.topic("t").delete_channel("c")
    publish(core, 5, 50)
    assert depth(core, "other") == 50


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_what_waits_for_the_disk_counts(make: Make, durability: str) -> None:
    core = make({"max_depth": 10, "durability": durability})
    core.create("t").channel("c")
    client = core.client()
    client.send(*(mpub("t", numbers(n, n + 4)) for n in (0, 4, 8)))
    core.settle()
    answers = [client.answer() for _ in range(3)]
    assert answers[:2] == [OK, OK]
    assert answers[2] is not None and answers[2][0] == ERROR
    assert depth(core) == 8


# ---- dropped ----


def test_the_oldest_go(make: Make) -> None:
    core = make({"max_depth": 10, "on_full": "drop-oldest"})
    core.create("t").channel("c")
    core.create("t").channel("d")
    publish(core, 0, 4)
    assert bodies(core) == numbers(0, 4)
    publish(core, 4, 25)
    assert (full(core), full(core, "d")) == (11, 15)
    assert bodies(core) == bodies(core, "d") == numbers(15, 25)
    assert core.counters("t")["message_count"] == 25


def test_the_oldest_of_a_topic_without_channels_go(make: Make) -> None:
    core = make({"max_depth": 10, "on_full": "drop-oldest"})
    for n in range(25):
        publish(core, n, n + 1)
    assert full(core, None) == 15
    core.topic("t").channel("c")
    core.settle()
    assert bodies(core) == numbers(15, 25)


def test_a_paused_topic_drops_its_own(make: Make) -> None:
    """The drop does not affect messages that the topic's channels have received."""
    core = make({"max_depth": 10, "on_full": "drop-oldest"})
    core.create("t").channel("c")
    publish(core, 0, 5)
    core.topic("t").pause(True)
    for n in range(5, 30):
        publish(core, n, n + 1)
    assert full(core, None) == 15
    assert bodies(core) == numbers(0, 5)
    core.topic("t").pause(False)
    core.settle()
    assert bodies(core) == numbers(20, 30)
    assert full(core) == 0


def test_the_oldest_bytes_go(make: Make) -> None:
    core = make({"max_bytes": 100_000, "on_full": "drop-oldest"})
    core.create("t").channel("c")
    for n in range(300):
        assert core.client().publish("t", b"%d" % n + bytes(997)) == OK
    core.settle()
    left = bodies(core)
    assert 90 <= len(left) <= 96
    assert int(left[-1].rstrip(b"\0")) == 299
    assert full(core) == 300 - len(left)


def test_the_oldest_bytes_of_a_topic_without_channels_go_in_blocks(make: Make) -> None:
    core = make({"max_bytes": 100_000, "on_full": "drop-oldest"})
    for n in range(300):
        assert core.client().publish("t", b"%d" % n + bytes(997)) == OK
    core.settle()
    dropped = full(core, None)
    core.topic("t").channel("c")
    core.settle()
    left = bodies(core)
    assert len(left) == 300 - dropped <= 96
    assert int(left[-1].rstrip(b"\0")) == 299


def test_a_channel_drops_its_own(make: Make) -> None:
    core = make({}, {"max_depth": 3, "on_full": "drop-oldest"})
    core.create("t").channel("c")
    core.create("t").channel("other")
    publish(core, 0, 9)
    assert (full(core), full(core, "other")) == (6, 0)
    assert bodies(core) == numbers(6, 9)
    assert bodies(core, "other") == numbers(0, 9)


def test_what_is_wanted_is_not_dropped(make: Make) -> None:
    """Consumers first receive the messages that they are ready for; only then does the limit
    apply."""
    core = make({"max_depth": 3, "on_full": "drop-oldest"})
    consumer = core.client().subscribe("t", "c", 100)
    publish(core, 0, 20)
    assert [message.body for message in consumer.messages()] == numbers(0, 20)
    assert full(core) == 0


def test_in_flight_and_deferred_are_not_waiting(make: Make) -> None:
    core = make({"max_depth": 2, "on_full": "drop-oldest"})
    consumer = core.client().subscribe("t", "c", 3)
    publish(core, 0, 3)
    assert core.client().publish("t", b"later", delay=60_000) == OK
    publish(core, 3, 6)
    held = consumer.messages()
    assert [message.body for message in held] == numbers(0, 3)
    assert full(core) == 1
    for message in held:
        consumer.finish(message.id)
    core.settle()
    for message in (held := consumer.messages()):
        consumer.finish(message.id)
    assert [message.body for message in held] == numbers(4, 6)
    core.advance(61 * SECOND)
    assert [message.body for message in consumer.messages()] == [b"later"]


def test_the_newest_are_not_taken(make: Make) -> None:
    core = make({"max_depth": 10, "on_full": "drop-newest"})
    core.create("t").channel("c")
    publish(core, 0, 25)
    publish(core, 25, 30)
    assert full(core, None) == 20
    assert bodies(core) == numbers(0, 10)
    publish(core, 30, 32)
    assert bodies(core) == numbers(30, 32)
    assert core.counters("t")["message_count"] == 32


@pytest.mark.parametrize("on_full", ["drop-oldest", "drop-newest"])
def test_what_was_dropped_stays_dropped(make: Make, on_full: str) -> None:
    core = make({"max_depth": 10, "on_full": on_full, "durability": "os"})
    core.create("t").channel("c")
    publish(core, 0, 30)
    core.save()
    again = make({"max_depth": 10, "on_full": on_full, "durability": "os"}, wall=core.wall)
    again.shard.load_topic(b"t", False, {"c": False})
    again.settle()
    assert bodies(again) == (numbers(20, 30) if on_full == "drop-oldest" else numbers(0, 10))


def test_the_oldest_on_disk_go(make: Make) -> None:
    """The oldest messages are read back to be dropped, one block at a time."""
    core = make({"max_depth": 100, "durability": "os"}, budget=0)
    core.create("t").channel("c")
    for n in range(0, 100, 20):
        publish(core, n, n + 20)
    core.save()
    again = make({"max_depth": 50, "on_full": "drop-oldest", "durability": "os"}, wall=core.wall)
    again.shard.load_topic(b"t", False, {"c": False})
    again.settle()
    assert full(again) == 50
    assert bodies(again) == numbers(50, 100)


# ---- changed ----


def test_limits_change_while_it_runs(make: Make) -> None:
    core = make({})
    core.create("t").channel("c")
    publish(core, 0, 20)
    change(core, {"max_depth": 5})
    assert core.client().publish("t", b"refused")[0] == ERROR  # type: ignore[index]
    assert depth(core) == 20
    change(core, {"max_depth": 5, "on_full": "drop-oldest"})
    assert bodies(core) == numbers(15, 20)
    change(core, {})
    publish(core, 20, 60)
    assert depth(core) == 40


def change(core: Core, values: dict[str, Any]) -> None:
    assert core.shard.policies is not None
    core.shard.policies.set("t", values)
    core.shard.policies_changed("t")
    core.settle()
