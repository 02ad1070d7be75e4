"""Verbs that view or take a channel's messages immediately after they are published."""

import json
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from nsqcy.channels.core import Channel
from nsqcy.nsqd.process_calls import Refused
from nsqcy.nsqd.process_messages import peek as peeking
from nsqcy.nsqd.process_messages.positions import LATEST
from nsqcy.nsqd.process_messages.topic_verbs import (
    CancelMessage,
    EmptyChannel,
    ListDeferred,
    Peek,
    Redrive,
    SeekChannel,
    TakeOut,
    TopicVerb,
)
from nsqcy.nsqd.worker import topic_owner
from nsqcy.nsqd.worker.topic_owner import TopicOwner
from support.gevent_hub import wait_until
from support.worker_core import RESPONSE, SECOND, Core

HOUR_MS = 3600 * 1000


@pytest.fixture
def core() -> Iterator[Core]:
    """Core whose topics wait for the channels that nsqlookupds list."""
    core = Core(None, hold_new=60 * SECOND, max_defer_timeout=24 * 3600 * SECOND)
    core.create("t").channel("c")
    yield core
    core.close()


@pytest.fixture
def owner(core: Core) -> TopicOwner:
    return TopicOwner(core.shard, lambda: None, None, lambda: None)  # type: ignore[arg-type]


def publish(core: Core, *bodies: bytes, delay: int = 0) -> None:
    producer = core.client()
    for body in bodies:
        assert producer.publish("t", body, delay) == (RESPONSE, b"OK")


def finish(core: Core, running: gevent.Greenlet) -> Any:
    def has_ended() -> bool:
        core.settle()
        return bool(running.ready())

    wait_until(has_ended)
    return running.get()


def run(core: Core, owner: TopicOwner, verb: TopicVerb[Any]) -> Any:
    """Run a verb that begins while the topic waits for its channels."""
    topic = core.topic("t")
    assert topic is not None
    running = gevent.spawn(verb.run, owner)
    gevent.sleep(0)
    assert topic.held and not running.ready()
    topic.end_hold()
    return finish(core, running)


def look(state: str) -> peeking.Look:
    return peeking.parse({"state": state}, of_channel=state != peeking.BACKLOG)


def in_backlog(core: Core, owner: TopicOwner) -> list[dict[str, Any]]:
    """Return the messages that the channel has not received yet, without waiting."""
    verb = Peek("t", "", look(peeking.BACKLOG))
    found: list[dict[str, Any]] = json.loads(finish(core, gevent.spawn(verb.run, owner)))[
        "messages"
    ]
    return found


def channel(core: Core) -> Channel:
    topic = core.topic("t")
    assert topic is not None
    return topic.channels["c"]


@pytest.mark.parametrize(("state", "delay"), [("deferred", HOUR_MS), ("queued", 0)])
def test_messages_are_seen(core: Core, owner: TopicOwner, state: str, delay: int) -> None:
    publish(core, b"one", b"two", delay=delay)
    page = json.loads(run(core, owner, Peek("t", "c", look(state))))
    assert [message["size"] for message in page["messages"]] == [3, 3]


def test_deferred_messages_are_listed(core: Core, owner: TopicOwner) -> None:
    publish(core, b"one", b"two", delay=HOUR_MS)
    assert len(run(core, owner, ListDeferred("t", "c", 10, None))["deferred"]) == 2


def test_a_message_is_cancelled(core: Core, owner: TopicOwner) -> None:
    publish(core, b"one", delay=HOUR_MS)
    [message] = in_backlog(core, owner)
    run(core, owner, CancelMessage("t", "c", int(message["id"], 16)))
    assert channel(core).ledger()["dropped"]["cancelled"] == 1


def test_a_message_is_deleted(core: Core, owner: TopicOwner) -> None:
    publish(core, b"one")
    [message] = in_backlog(core, owner)
    run(core, owner, TakeOut("t", "c", int(message["id"], 16), drop=True))
    assert channel(core).counters()["depth"] == 0


def test_messages_are_redriven(core: Core, owner: TopicOwner) -> None:
    publish(core, b"one", b"two")
    assert run(core, owner, Redrive("t", "c", 0, None)) == 2


def test_messages_are_dropped(core: Core, owner: TopicOwner) -> None:
    publish(core, b"one")
    publish(core, b"two", delay=HOUR_MS)
    run(core, owner, EmptyChannel("t", "c"))
    assert channel(core).ledger()["dropped"]["emptied"] == 2


def test_messages_are_skipped(core: Core, owner: TopicOwner) -> None:
    publish(core, b"one", b"two")
    assert run(core, owner, SeekChannel("t", "c", LATEST, create=False)) == 3


def test_a_topic_that_waits_for_too_long(
    core: Core, owner: TopicOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verb does not claim that the channel has no such message."""
    monkeypatch.setattr(topic_owner, "ARRIVAL_LIMIT", 0.01)
    publish(core, b"one", delay=HOUR_MS)
    for verb in (ListDeferred("t", "c", 10, None), CancelMessage("t", "c", 1)):
        with pytest.raises(Refused, match="NOT_READ"):
            verb.run(owner)


def test_a_turn_passes_on_a_share(core: Core, owner: TopicOwner) -> None:
    """Later turns fan out the rest, for any number of waiting messages."""
    topic = core.topic("t")
    assert topic is not None
    topic.end_hold()
    topic.pause(True)
    publish(core, *[b"x"] * 5000, delay=HOUR_MS)
    assert not topic.pass_on(), "a paused topic keeps its messages"
    topic.pause(False)
    assert channel(core).counters()["deferred_count"] < 5000
    found = ListDeferred("t", "c", 1000, None).run(owner)
    assert len(found["deferred"]) == 1000
    assert channel(core).counters()["deferred_count"] == 5000
