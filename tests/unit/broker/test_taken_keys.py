"""What a topic takes from a message is stored with the message, and goes with it everywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage import journal
from nsqcy.testing.wire_client import sized
from support.disk_format import Taken, stored
from support.header_client import HeaderClient
from support.worker_core import RESPONSE, SECOND, Core, log_pub, mpub

OK = (RESPONSE, b"OK")
JSON = {"key": "json:/k", "priority": "json:/p"}
BODY = b'{"k":"a","p":7}'


def policies(*, channels: Any = (), **values: Any) -> Policies:
    """Return policies with these values for the topic `t`."""
    return Policies(TopicPolicy(durability="os"), [("t", values)], channels)


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    core = Core(tmp_path, policies=policies(**JSON))
    yield core
    core.close()


def on_disk(core: Core, topic: str = "t") -> list[Taken]:
    assert core.path is not None
    return stored(core.path / f"{topic}.topic")


def test_every_way_to_publish_takes_the_key(core: Core) -> None:
    client = core.client()
    client.ask(b"IDENTIFY\n", sized(b'{"feature_negotiation":true,"topic_log":true}'))
    assert client.publish("t", BODY) == OK
    assert client.publish("t", BODY, delay=50) == OK
    assert client.ask(mpub("t", [BODY, b"no json", BODY])) == OK
    assert client.ask(mpub("t", [BODY] * 5000)) == OK
    assert client.ask(log_pub("t", 1, [BODY])) == OK
    found = on_disk(core)
    assert [each.key for each in found] == [b"a"] * 3 + [None] + [b"a"] * 5002
    assert {each.priority for each in found} == {7, None}


def test_messages_without_a_key_are_counted_and_logged_once_a_minute(core: Core) -> None:
    client = core.client()
    for _ in range(3):
        assert client.publish("t", b"no json") == OK
        core.advance(SECOND)
    assert core.counters("t")["without_key"] == 3
    told = "TOPIC(t): 1 messages were published without a key at json:/k"
    assert [line for line in core.log.lines if "without a key" in line] == [told]
    for _ in range(61):
        core.advance(SECOND)
    lines = [line for line in core.log.lines if "without a key" in line]
    assert lines == [told, told.replace("1 messages", "2 messages")]


def test_headers_that_give_the_same_are_not_stored_twice(core: Core) -> None:
    client = HeaderClient(core)
    assert client.publish_with(BODY, {"key": "a", "priority": "7"}) == OK
    assert client.publish_with(BODY, {"key": "b", "priority": "7"}) == OK
    assert client.publish_with(b"{}", {"key": "b"}) == OK
    assert [(each.key, each.priority) for each in on_disk(core)] == [
        (None, None),
        (b"a", None),
        (b"", None),
    ]


def test_without_these_settings_nothing_is_stored(tmp_path: Path) -> None:
    core = Core(tmp_path, policies=policies())
    client = HeaderClient(core)
    assert client.publish_with(BODY, {"key": "a", "dedup-id": "1"}) == OK
    assert [each.given for each in on_disk(core)] == [None]
    core.settle()
    core.advance(3 * SECOND)
    assert b"\x04\x80" not in (tmp_path / "t.topic" / "journal").read_bytes()
    core.close()


def test_the_secret_survives_in_the_journal(tmp_path: Path) -> None:
    state = journal.TopicState(bytes(range(16)), secret=b"s" * 16)
    assert journal.decode_snapshot(journal.encode_snapshot(state)) == state


@pytest.mark.parametrize("taken", [True, False])
def test_a_dead_letter_and_a_redriven_message_keep_their_key(tmp_path: Path, taken: bool) -> None:
    channels = [("t/c", {"dead_letter_topic": "dead", "max_attempts": 1})]
    core = Core(tmp_path, policies=policies(channels=channels, **(JSON if taken else {})))
    core.create("dead").channel("c")
    core.create("t").channel("c")
    client = HeaderClient(core).subscribe("t", "c", 1)
    given = {"nsqcy-taken": "x", "key": "b"}
    assert client.publish_with(BODY, given) == OK
    kept = (b"a", 7) if taken else (None, None)
    (message,) = client.delivered()
    assert message.headers == {"nsqcy-taken": "x", "key": "b"}
    client.requeue(message.id)
    core.settle()
    core.advance(SECOND)
    (dead,) = on_disk(core, "dead")
    assert (dead.key, dead.priority) == kept
    core.topic("dead").channels["c"].redrive(0)
    core.settle()
    core.advance(SECOND)
    client.ready(1)
    core.settle()
    (message,) = client.delivered()
    assert message.headers == {"nsqcy-taken": "x", "key": "b"}
    assert [(each.key, each.priority) for each in on_disk(core)][-1] == kept
    core.close()
