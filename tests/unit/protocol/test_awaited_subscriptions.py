"""Consumers that continue in the next process before their topic can be used there: the topic is
opened from files later, and their messages are still in flight to them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies
from support.taken_over import through_json
from support.worker_core import Client, Core

DIRECTORY = "group"
Packed = tuple[dict[str, Any], bytes, bytes]


def core(path: Path) -> Core:
    policies = Policies()
    policies.set("t", {"durability": "os"})
    return Core(path, policies=policies)


def packed(client: Client) -> Packed:
    client.look()
    state, unread, unsent = client.session.pack_whole()
    return through_json(state), unread, unsent


class Restored:
    """A process whose topic cannot be used yet, with a consumer that had two of five messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        first = core(path)
        topic = first.create("t")
        topic.channel("c")
        self.client = first.client().subscribe("t", "c", 2)
        for number in range(5):
            assert first.client().publish("t", b"%d" % number)
        first.settle()
        self.held = self.client.messages()
        self.client.send(b"FIN " + self.held[0].id[:5])
        first.manager.stop_reading()
        first.settle()
        packed_client = packed(self.client)
        first.manager.close_sessions()
        first.shard.save()
        first.io.close()
        shutil.move(path / "t.topic", path / DIRECTORY / "t.topic")
        self.core = core(path)
        self.core.manager.gated = True
        self.client.continue_on(self.core, packed_client)
        self.state = packed_client[0]

    def open(self) -> None:
        """Open the topic, and let sessions use it."""
        channel, in_flight = self.state["channel"], self.state["in_flight"]
        deadlines = {int(id, 16): deadline for id, deadline in in_flight}
        directory = str(self.path / DIRECTORY)
        self.core.shard.open_topic(b"t", self.core.io, directory, {channel: deadlines})
        self.core.manager.gated = False
        self.core.manager.placed(b"t", 0)
        self.core.settle()


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    (tmp_path / DIRECTORY).mkdir()
    found = Restored(tmp_path)
    yield found
    found.core.close()


def test_messages_stay_in_flight(restored: Restored) -> None:
    client, held = restored.client, restored.held
    assert [each.body for each in held] == [b"0", b"1"]
    restored.core.settle()
    client.send(held[0].id[5:] + b"\n")
    restored.core.settle()
    assert not client.messages()
    restored.open()
    (third,) = client.messages()
    assert (third.body, third.attempts) == (b"2", 1)
    counters = restored.core.counters("t", "c")
    assert (counters["in_flight_count"], counters["depth"]) == (2, 2)
    client.finish(held[1].id)
    client.finish(third.id)
    restored.core.settle()
    assert client.answer() is None
    assert [each.body for each in client.messages()] == [b"3", b"4"]


def test_messages_time_out_as_before(restored: Restored) -> None:
    restored.open()
    deadlines = [deadline for _, deadline in restored.state["in_flight"]]
    restored.core.advance(max(deadlines) - restored.core.now)
    restored.core.settle()
    assert len(restored.client.messages()) == 2
    counters = restored.core.counters("t", "c")
    assert (counters["timeout_count"], counters["depth"]) == (2, 3)


def test_it_waits_through_another_hand_over(restored: Restored) -> None:
    restored.core.manager.stop_reading()
    restored.core.settle()
    state, unread, _ = packed(restored.client)
    assert state["topic"] == "t" and state["in_flight"] == restored.state["in_flight"]
    assert unread == b"FIN " + restored.held[0].id[:5]


def test_heartbeats_continue(restored: Restored) -> None:
    """A client that waits is neither silent nor forgotten."""
    restored.core.advance(3600 * 10**9)
    restored.core.settle()
    assert not restored.client.closed


def test_a_client_that_leaves(restored: Restored) -> None:
    """Its messages wait for their deadlines, as they do when any client leaves."""
    restored.core.manager.close_sessions()
    restored.open()
    counters = restored.core.counters("t", "c")
    assert (counters["in_flight_count"], counters["depth"]) == (2, 3)


def test_a_topic_that_no_longer_exists_is_created(restored: Restored) -> None:
    """For example, another node has taken it over."""
    restored.core.manager.gated = False
    restored.core.manager.placed(b"t", 0)
    restored.core.settle()
    assert restored.core.counters("t", "c")["client_count"] == 1
