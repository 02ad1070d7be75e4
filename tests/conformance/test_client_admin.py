"""NsqdAdmin with a real nsqd, for both interfaces."""

from datetime import UTC, datetime, timedelta

import pytest

from conftest import one_worker
from nsqcy.client import Error
from support.client_interfaces import Face
from support.nsqd_process import Nsqd, free_port


def test_topics_channels_and_policies(face: Face, shared: Nsqd, topic: str) -> None:
    admin = face.module.NsqdAdmin(f"127.0.0.1:{shared.http_port}")
    assert str(shared.http_port) in repr(admin)
    for _ in range(2):
        face.call(admin.create_channel, topic, "c")
    assert shared.web.channel(topic, "c") is not None
    dead = f"{topic}-dead"
    face.call(admin.create_topic, dead)
    policy = face.call(admin.channel_policy, topic, "c", max_attempts=1, dead_letter_topic=dead)
    assert (policy["max_attempts"], policy["dead_letter_topic"]) == (1, dead)
    assert face.call(admin.topic_policy, topic, durability="os")["durability"] == "os"
    assert face.call(admin.topic_policy, topic)["durability"] == "os"
    assert face.call(admin.topic_policy, topic, durability=None)["durability"] == "memory"
    policy = face.call(admin.topic_policy, topic, max_defer_timeout=timedelta(days=30))
    assert policy["max_defer_timeout"] == "720h"

    face.call(admin.create_channel, dead, "look")
    shared.web.pub(topic, b"bad")
    with shared.connect() as consumer:
        consumer.sub(topic, "c", 1)
        consumer.req(consumer.message())
        shared.web.await_counts(dead, "look", depth=1)
    (letter,) = face.call(admin.peek, dead, "look")
    assert (letter.body, letter.size, letter.attempts, letter.due) == (b"bad", 3, 0, None)
    assert letter.headers["origin-channel"] == "c"
    assert face.call(admin.redrive, dead, "look") == 1
    shared.web.await_counts(topic, "c", depth=1)

    face.call(admin.delete_channel, topic, "c")
    assert shared.web.channel(topic, "c") is None
    face.call(admin.delete_topic, topic)
    topics = shared.web.get("/stats", format="json").json()["topics"]
    assert topic not in [each["topic_name"] for each in topics]


@pytest.mark.ours
def test_redriving_some_dead_letters(face: Face, shared: Nsqd, topic: str) -> None:
    """One message by its id, then the next one, then the rest."""
    admin = face.module.NsqdAdmin(f"127.0.0.1:{shared.http_port}")
    dead = f"{topic}-dead"
    face.call(admin.create_channel, topic, "c")
    face.call(admin.create_channel, dead, "look")
    face.call(admin.channel_policy, topic, "c", max_attempts=1, dead_letter_topic=dead)
    shared.web.mpub(topic, [b"0", b"1", b"2", b"3"])
    with shared.connect() as consumer:
        consumer.sub(topic, "c", 1)
        for _ in range(4):
            consumer.req(consumer.message())
        shared.web.await_counts(dead, "look", depth=4)

    def bodies(topic: str, channel: str) -> list[bytes]:
        return [each.body for each in face.call(admin.peek, topic, channel)]

    letters = face.call(admin.peek, dead, "look")
    assert face.call(admin.redrive, dead, "look", id=letters[2].id) == 1
    shared.web.await_counts(dead, "look", depth=3)
    shared.web.await_counts(topic, "c", depth=1)
    assert bodies(topic, "c") == [letters[2].body]
    with pytest.raises(face.module.RequestError, match="MESSAGE_NOT_FOUND") as caught:
        face.call(admin.redrive, dead, "look", id=letters[2].id)
    assert caught.value.status == 404
    assert face.call(admin.redrive, dead, "look", limit=1) == 1
    shared.web.await_counts(dead, "look", depth=2)
    assert bodies(dead, "look") == [letters[1].body, letters[3].body]
    assert face.call(admin.redrive, dead, "look", limit=1000) == 2
    shared.web.await_counts(topic, "c", depth=4)


def test_deleting_twice(face: Face, shared: Nsqd, topic: str) -> None:
    admin = face.module.NsqdAdmin(f"127.0.0.1:{shared.http_port}")
    face.call(admin.create_channel, topic, "c")
    assert face.call(admin.delete_channel, topic, "c") is True
    assert face.call(admin.delete_channel, topic, "c") is False
    assert face.call(admin.delete_topic, topic) is True
    assert face.call(admin.delete_topic, topic) is False
    assert face.call(admin.delete_channel, topic, "c") is False, "the topic is gone as well"
    with pytest.raises(face.module.RequestError, match="TOPIC_NOT_FOUND") as caught:
        face.call(admin.pause_topic, topic)
    assert caught.value.status == 404


def test_pauses_and_statistics(face: Face, shared: Nsqd, topic: str) -> None:
    admin = face.module.NsqdAdmin(f"127.0.0.1:{shared.http_port}")
    face.call(admin.create_channel, topic, "c")
    face.call(admin.create_channel, topic, "other")
    for _ in range(2):
        face.call(admin.pause_topic, topic)
        face.call(admin.pause_channel, topic, "c")
    shared.web.pub(topic, b"m")
    (found,) = face.call(admin.stats, topic)["topics"]
    assert (found["paused"], found["depth"]) == (True, 1)
    (found,) = face.call(admin.stats, topic, "c")["topics"]
    (channel,) = found["channels"]
    assert (channel["channel_name"], channel["paused"], channel["depth"]) == ("c", True, 0)
    face.call(admin.empty_topic, topic)
    face.call(admin.unpause_topic, topic)
    face.call(admin.unpause_channel, topic, "c")
    shared.web.pub(topic, b"m")
    shared.web.await_counts(topic, "c", depth=1)
    face.call(admin.empty_channel, topic, "c")
    (found,) = face.call(admin.stats, topic, "c")["topics"]
    assert (found["channels"][0]["paused"], found["channels"][0]["depth"]) == (False, 0)
    assert topic in [each["topic_name"] for each in face.call(admin.stats)["topics"]]
    assert face.call(admin.stats, "no-such")["topics"] == []


@pytest.mark.ours
def test_seeking(face: Face, shared: Nsqd, topic: str) -> None:
    admin = face.module.NsqdAdmin(f"127.0.0.1:{shared.http_port}")
    face.call(admin.topic_policy, topic, retention_bytes=1 << 20)
    face.call(admin.create_channel, topic, "c")
    before = datetime.now() - timedelta(hours=1)
    shared.web.mpub(topic, [b"0", b"1", b"2"])
    shared.web.await_counts(topic, "c", depth=3)
    first = face.call(admin.seek, topic, "c", "earliest")
    assert face.call(admin.seek, topic, "c", "latest") == first + 3
    shared.web.await_counts(topic, "c", depth=0)
    assert face.call(admin.seek, topic, "c", first + 1) == first + 1
    shared.web.await_counts(topic, "c", depth=2)
    assert face.call(admin.seek, topic, "c", before) == first
    assert face.call(admin.seek, topic, "c", datetime.now(UTC)) == first + 3
    with pytest.raises(face.module.RequestError, match="CHANNEL_NOT_FOUND"):
        face.call(admin.seek, topic, "no-such", "earliest")


def test_a_look_at_messages(face: Face, shared: Nsqd, topic: str) -> None:
    admin = face.module.NsqdAdmin(f"127.0.0.1:{shared.http_port}")
    face.call(admin.create_channel, topic, "c")
    shared.web.mpub(topic, [b"%d" % number for number in range(250)])
    shared.web.pub(topic, b"later", defer=50_000)
    found = face.call(admin.peek, topic, "c", count=220)
    assert [each.body for each in found] == [b"%d" % number for number in range(220)]
    assert len(face.call(admin.peek, topic, "c")) == 20
    (later,) = face.call(admin.peek, topic, "c", "deferred")
    assert later.body == b"later"
    assert abs(later.due - later.timestamp - 50_000_000_000) < 10_000_000_000
    assert isinstance(later, face.module.PeekedMessage)
    assert face.call(admin.peek, topic, "c", state="in_flight") == []


@one_worker
def test_mistakes(face: Face, shared: Nsqd) -> None:
    admin = face.module.NsqdAdmin(f"http://127.0.0.1:{shared.http_port}")
    with pytest.raises(ValueError, match="not a valid topic name"):
        face.call(admin.create_topic, "a b")
    with pytest.raises(
        Error,
        match=r"^http://127\.0\.0\.1:\d+/channel/config: INVALID_CONFIG .* did you mean max_at",
    ):
        face.call(admin.channel_policy, "t", "c", max_atempts=1)
    with pytest.raises(Error, match="TOPIC_NOT_FOUND"):
        face.call(admin.peek, "no-such", "c")
    with pytest.raises(Error, match="INVALID_STATE"):
        face.call(admin.peek, "no-such", "c", state="gone")
    wrong_port = face.module.NsqdAdmin(f"127.0.0.1:{shared.tcp_port}")
    with pytest.raises(
        Error, match=r"^http://127\.0\.0\.1:\d+/topic/create: this is nsqd's TCP port"
    ):
        face.call(wrong_port.create_topic, "t")
    nobody = face.module.NsqdAdmin(f"127.0.0.1:{free_port()}", timeout=2)
    with pytest.raises(Error, match="refused"):
        face.call(nobody.create_topic, "t")
