"""Logs that were taken over: each message is transferred once, to the channels that have not
finished it."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies
from support.worker_core import EPOCH, SECOND, Core

GROUP = "0123456789abcdef"
POLICIES: dict[str, dict[str, Any]] = {"t": {"durability": "os"}}


def policies() -> Policies:
    found = Policies()
    for name, values in POLICIES.items():
        found.set(name, values)
    return found


def core(path: Path, later: int = 0, **options: Any) -> Core:
    now, wall = (1000 + later) * SECOND, EPOCH + later * SECOND
    return Core(path, policies=policies(), now=now, wall=wall, **options)


def end(found: Core) -> None:
    """Save everything, as a process does when it exits."""
    found.manager.close_sessions()
    found.shard.save()
    found.io.close()


def consume(found: Core, channel: str, count: int) -> list[bytes]:
    """Finish messages in the open topic; return their bodies."""
    client = found.client().subscribe("t", channel, count)
    found.settle()
    bodies = []
    for message in client.messages():
        client.finish(message.id)
        bodies.append(message.body)
    found.settle()
    client.ready(0)
    return bodies


@pytest.fixture
def taken_over(tmp_path: Path) -> Path:
    """Data path with the log of the topic `t` in a group's directory.

    Channel a has finished 0 to 2 and has 8 deferred; channel b has finished nothing.
    """
    first = core(tmp_path)
    topic = first.create("t")
    topic.channel("a")
    topic.channel("b")
    producer = first.client()
    for number in range(10):
        assert producer.publish("t", b"%d" % number)
    assert consume(first, "a", 3) == [b"0", b"1", b"2"]
    client = first.client().subscribe("t", "a", 10)
    first.settle()
    for message in client.messages():
        if message.body == b"8":
            client.requeue(message.id, 60_000)
    first.settle()
    end(first)
    (tmp_path / "copies" / GROUP).mkdir(parents=True)
    shutil.move(tmp_path / "t.topic", tmp_path / "copies" / GROUP / "t.topic")
    return tmp_path


def open_closed(found: Core) -> None:
    topic = found.create("t")
    topic.channel("a")
    topic.channel("b")
    found.shard.open_closed(GROUP, b"t", found.shard.io, str(found.path / "copies" / GROUP))
    found.shard.move_closed(GROUP, b"t")
    found.settle()


def received(found: Core, channel: str) -> Counter[bytes]:
    return Counter(consume(found, channel, 100))


def test_messages_move_to_the_channels_that_have_not_finished_them(taken_over: Path) -> None:
    second = core(taken_over, 10)
    open_closed(second)
    assert received(second, "b") == Counter(b"%d" % number for number in range(10))
    assert received(second, "a") == Counter([b"3", b"4", b"5", b"6", b"7", b"9"])
    closed = second.shard.closed[GROUP, b"t"]
    assert not closed.is_moved
    second.advance(49 * SECOND)
    assert received(second, "a") == Counter()
    second.advance(2 * SECOND)
    assert received(second, "a") == Counter([b"8"])
    assert closed.is_moved
    second.shard.close_closed(GROUP, b"t")
    second.settle()
    assert not (taken_over / "copies" / GROUP / "t.topic").exists()
    end(second)


def test_paused_keys_stay_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "t/a", {"fair": True})
    monkeypatch.setitem(POLICIES, "t", {"durability": "os", "key": "json:"})
    first = core(tmp_path)
    topic = first.create("t")
    topic.channel("a")
    topic.pause_key("a", b"7", True)
    for body in (b"7", b"8"):
        assert first.client().publish("t", body)
    first.settle()
    end(first)
    (tmp_path / "copies" / GROUP).mkdir(parents=True)
    shutil.move(tmp_path / "t.topic", tmp_path / "copies" / GROUP / "t.topic")
    second = core(tmp_path, 10)
    open_closed(second)
    assert received(second, "a") == Counter([b"8"])
    topic = second.shard.topic(b"t")
    assert topic is not None
    topic.pause_key("a", b"7", False)
    assert received(second, "a") == Counter([b"7"])
    end(second)


def test_a_resumed_topic_is_still_paused(taken_over: Path) -> None:
    """The group's process has no metadata; the journal contains the pauses."""
    directory = str(taken_over / "copies" / GROUP)
    was_paused = False
    for is_paused in (True, False, False):
        second = core(taken_over)
        topic = second.shard.open_topic(b"t", second.io, directory)
        assert bool(topic.paused) is was_paused
        assert topic.channels["a"].counters()["paused"] is was_paused
        topic.pause(is_paused)
        topic.pause_channel("a", is_paused)
        was_paused = is_paused
        second.settle()
        end(second)


def test_no_client_sees_a_closed_log(taken_over: Path) -> None:
    events: list[tuple[str, str, str | None]] = []
    second = core(taken_over, 10, on_event=lambda *event: events.append(event))
    open_closed(second)
    assert list(second.shard.topics) == [b"t"]
    assert len(events) == 3
    end(second)


def test_a_restart_moves_each_message_once(taken_over: Path) -> None:
    second = core(taken_over, 10)
    second.create("t").channel("b")
    second.shard.open_closed(GROUP, b"t", second.shard.io, str(taken_over / "copies" / GROUP))
    second.settle()
    assert received(second, "b") == Counter()  # no message is transferred before its channels exist
    second.shard.topic(b"t").channel("a")
    second.shard.move_closed(GROUP, b"t")
    second.settle()
    assert received(second, "b") == Counter(b"%d" % number for number in range(10))
    end(second)

    third = core(taken_over, 20)
    third.shard.load_topic(b"t", False, {"a": False, "b": False})
    open_closed(third)
    assert received(third, "b") == Counter()
    third.advance(2 * SECOND)
    assert received(third, "a") == Counter([b"3", b"4", b"5", b"6", b"7", b"9"])
    end(third)


def test_messages_of_a_channel_that_was_deleted_meanwhile_are_dropped(taken_over: Path) -> None:
    second = core(taken_over, 10)
    second.create("t").channel("b")
    second.shard.open_closed(GROUP, b"t", second.shard.io, str(taken_over / "copies" / GROUP))
    second.shard.move_closed(GROUP, b"t")
    second.advance(120 * SECOND)
    assert second.shard.closed[GROUP, b"t"].is_moved
    assert received(second, "b") == Counter(b"%d" % number for number in range(10))
    end(second)


def test_messages_without_a_channel_move_to_the_topic(tmp_path: Path) -> None:
    first = core(tmp_path)
    first.create("t")
    for number in range(3):
        assert first.client().publish("t", b"%d" % number)
    end(first)
    (tmp_path / "copies" / GROUP).mkdir(parents=True)
    shutil.move(tmp_path / "t.topic", tmp_path / "copies" / GROUP / "t.topic")
    second = core(tmp_path, 10)
    topic = second.create("t")
    closed = second.shard.open_closed(GROUP, b"t", second.io, str(tmp_path / "copies" / GROUP))
    assert closed.moved_channels == []
    assert not closed.is_moved
    second.shard.move_closed(GROUP, b"t")
    second.settle()
    assert closed.is_moved
    assert list(topic.channels) == []
    assert received(second, "new") == Counter([b"0", b"1", b"2"])
    end(second)


def test_policies_that_drop_do_not_apply(taken_over: Path) -> None:
    POLICIES["t"]["ttl"] = 5 * SECOND
    POLICIES["t/a"] = {"max_attempts": 1}
    try:
        second = core(taken_over, 3600)
        open_closed(second)
        second.advance(2 * SECOND)
        assert second.shard.closed[GROUP, b"t"].is_moved
        assert received(second, "b") == Counter(b"%d" % number for number in range(10))
        end(second)
    finally:
        POLICIES["t"].pop("ttl")
        POLICIES.pop("t/a")
