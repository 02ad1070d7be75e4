"""Policies that change while a topic is in use: earlier guarantees still hold, later ones take
effect immediately, and no (log_id, seq) ever identifies two messages."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.worker_core import ERROR, RESPONSE, SECOND, Core, mpub

OK = (RESPONSE, b"OK")
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(default: TopicPolicy | None = None, path: Path = tmp_path, **more: Any) -> Core:
        core = Core(path, policies=Policies(default), **more)
        made.append(core)
        return core

    yield make
    for core in made:
        core.close()


def change(core: Core, name: str = "t", **values: Any) -> None:
    """Change a policy as HTTP does."""
    assert core.shard.policies is not None
    core.shard.policies.set(name, values)
    core.shard.policies_changed(name)


def killed(make: Make, core: Core) -> Core:
    """Return what would be found at startup if the process were killed now."""
    again = make(path=core.copied(), now=core.now + 77 * SECOND)
    again.shard.load_topic(b"t", False, {"c": False})
    again.settle()
    return again


def log_id(core: Core) -> str:
    topic = core.topic("t")
    assert topic is not None
    return str(topic.log_facts()["log_id"])


def bodies(core: Core) -> list[bytes]:
    consumer = core.client().subscribe("t", "c", 2500)
    core.settle()
    return [each.body for each in consumer.messages()]


def publish(core: Core, *texts: bytes) -> None:
    client = core.client()
    for text in texts:
        assert client.publish("t", text) == OK


@pytest.mark.parametrize("wanted", ["os", "fsync"])
def test_what_is_published_after_durability_was_raised_survives(make: Make, wanted: str) -> None:
    core = make()
    core.create("t").channel("c")
    publish(core, b"before")
    change(core, durability=wanted)
    publish(core, b"after")
    assert core.counters("t")["durability"] == wanted
    again = killed(make, core)
    assert b"after" in bodies(again)
    assert again.topic("t").log_facts()["next_seq"] == 3


def test_a_topic_that_is_raised_while_it_is_empty_knows_its_channels(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    core.settle()
    change(core, durability="os")
    core.settle()
    again = killed(make, core).topic("t")
    assert again is not None
    assert list(again.channels) == ["c"]


@pytest.mark.parametrize("was", ["os", "fsync"])
def test_a_log_whose_durability_was_lowered_gets_another_name_when_it_loses(
    make: Make, was: str
) -> None:
    core = make(TopicPolicy(was))
    core.create("t").channel("c")
    publish(core, b"before")
    change(core, durability="memory")
    publish(core, b"after", b"much after")
    assert "durability" not in core.counters("t")
    again = killed(make, core)
    assert bodies(again)[0] == b"before"
    assert log_id(again) != log_id(core)


def test_less_is_not_promised_before_the_journal_says_so(make: Make) -> None:
    core = make(TopicPolicy("os"))
    core.create("t").channel("c")
    publish(core, b"before")
    core.settle()
    core.io.hold("rename")  # ends the write of the journal
    change(core, durability="memory")
    client = core.client()
    core.manager.run_turn(core.now, core.wall)
    client.send(b"PUB t\n\0\0\0\5after")
    core.manager.run_turn(core.now, core.wall)
    assert client.answer() is None
    core.io.release()
    core.settle()
    assert client.answer() == OK
    client.send(b"PUB t\n\0\0\0\5later")
    assert client.answer() == OK
    assert bodies(core) == [b"before", b"after", b"later"]


def test_durability_goes_up_and_down(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    for n, durability in enumerate(["fsync", "os", "memory", "os", "fsync", "memory"] * 2):
        change(core, durability=durability)
        publish(core, b"%d" % n)
        assert core.counters("t").get("durability", "memory") == durability
    assert bodies(core) == [b"%d" % n for n in range(12)]


def test_retention_that_is_turned_on_keeps_what_comes(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    publish(core, *(b"%03d" % n for n in range(100)))
    change(core, retention_time=3600 * SECOND)
    publish(core, *(b"%03d" % n for n in range(100, 200)))
    topic = core.topic("t")
    assert topic is not None
    topic.empty_channel("c")
    core.advance(10 * SECOND)
    assert topic.first_seq <= 101
    topic.seek("c", 101)
    assert bodies(core) == [b"%03d" % n for n in range(100, 200)]


def test_retention_that_is_turned_off_lets_go(make: Make) -> None:
    core = make(log_options={"max_bytes_per_file": 8192, "sync_every": 10, "sync_timeout": SECOND})
    core.create("t").channel("c")
    change(core, retention_bytes=1 << 30)
    publish(core, *(b"%0100d" % n for n in range(200)))
    topic = core.topic("t")
    assert topic is not None
    topic.empty_channel("c")
    core.advance(10 * SECOND)
    assert topic.first_seq == 1
    change(core)
    core.advance(10 * SECOND)
    assert topic.first_seq > 190
    assert topic.log_bytes < 8192


def test_mem_queue_size_changes_at_once(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    core.create("t").channel("d")
    publish(core, *(b"%d" % n for n in range(10)))
    assert core.counters("t", "c")["backend_depth"] == 0
    change(core, mem_queue_size=3)
    change(core, "t/d", mem_queue_size=8)
    assert core.counters("t", "c")["backend_depth"] == 7
    assert core.counters("t", "d")["backend_depth"] == 2
    assert core.counters("t", "c")["policy"] == {"mem_queue_size": 3}
    assert core.counters("t", "d")["policy"] == {"mem_queue_size": 8}
    publish(core, b"10")
    assert core.topic("t").log_bytes > 0
    change(core)
    assert core.counters("t", "c")["backend_depth"] == 0
    assert "policy" not in core.counters("t")


def test_what_is_said_of_nobody_yet_is_for_later(make: Make) -> None:
    core = make()
    change(core, "t", ttl=SECOND)
    change(core, "t/c", rate=7)
    core.create("t").channel("c")
    assert core.counters("t")["policy"] == {"ttl": "1s"}
    assert core.counters("t", "c")["policy"] == {"rate": 7}


def test_sizes_are_those_of_this_moment(make: Make) -> None:
    core = make()
    change(core, min_msg_size=2, max_msg_size=4)
    client = core.client()
    assert client.publish("t", b"1234") == OK
    assert core.client().publish("t", b"12345") == (
        ERROR,
        b"E_BAD_MESSAGE PUB message too big 5 > 4",
    )
    assert core.client().ask(mpub("t", [b"12", b"123", b"1"])) == (
        ERROR,
        b"E_BAD_MESSAGE MPUB message too small 1 < 2",
    )
    assert core.counters("t")["message_count"] == 1
    change(core, max_msg_size=5, min_msg_size=1)
    assert client.publish("t", b"12345") == OK
    assert core.client().publish("t", b"123456") == (
        ERROR,
        b"E_BAD_MESSAGE PUB message too big 6 > 5",
    )
    change(core)
    assert client.publish("t", b"123456") == OK


def test_a_refused_topic_takes_nothing_of_what_comes_before_it(make: Make) -> None:
    core = make(TopicPolicy("os"), max_topics=1)
    core.create("t")
    client = core.client()
    client.send(b"PUB t\n\0\0\0\3one", b"PUB more\n\0\0\0\3two", b"PUB t\n\0\0\0\5three")
    core.settle()
    assert client.answer() == OK
    assert client.answer() == (ERROR, b'E_BAD_TOPIC PUB topic "more" exceeds limit of 1 topics')
    assert core.counters("t")["message_count"] == 1
    assert core.topic("more") is None
    core.shard.delete_topic(b"t")
    assert core.client().publish("more", b"x") == OK


def test_a_channel_is_pruned_when_its_time_has_come(make: Make) -> None:
    core = make()
    topic = core.create("t")
    core.create("used")
    for name in ("a", "b", "c"):
        topic.channel(name)
    change(core, "t/a", prune_after=10 * SECOND)
    change(core, "t/b", prune_after=10 * SECOND, prune_messages=True)
    core.advance(9 * SECOND)
    assert set(topic.channels) == {"a", "b", "c"}
    publish(core, b"x")
    consumer = core.client().subscribe("t", "b")
    for _ in range(20):
        core.advance(SECOND)
    assert set(topic.channels) == {"a", "b", "c"}, "one has a message, the other a consumer"
    consumer.transport.end()
    core.settle()
    topic.empty_channel("a")
    for _ in range(9):
        core.advance(SECOND)
    assert set(topic.channels) == {"a", "b", "c"}
    for _ in range(2):
        core.advance(SECOND)
    assert set(topic.channels) == {"c"}


def test_a_topic_is_pruned_when_it_is_the_last_to_go(make: Make) -> None:
    core = make(TopicPolicy(prune_after=10 * SECOND))
    events = []
    for name in ("channel", "messages", "published", "idle"):
        core.create(name)
    core.topic("channel").channel("c")
    client = core.client()
    assert client.publish("messages", b"x") == OK
    for _ in range(12):
        core.advance(SECOND)
        assert client.publish("published", b"x") == OK
        core.topic("published").empty()
        events.append(sorted(key.decode() for key in core.shard.topics))
    assert events[8] == ["channel", "idle", "messages", "published"]
    assert events[-1] == ["channel", "messages", "published"]
    core.topic("channel").delete_channel("c")
    for _ in range(9):
        core.advance(SECOND)
    assert core.topic("channel") is not None
    for _ in range(3):
        core.advance(SECOND)
    assert sorted(core.shard.topics) == [b"messages"]
    change(core, "messages", prune_messages=True)
    core.advance(SECOND)
    assert not core.shard.topics


def test_what_retention_keeps_is_not_pruned(make: Make) -> None:
    core = make(TopicPolicy(retention_bytes=1 << 20, prune_after=SECOND))
    core.create("t").channel("c")
    publish(core, b"x")
    assert bodies(core) == [b"x"]
    core.clients[-1].transport.end()
    core.settle()
    topic = core.topic("t")
    topic.empty_channel("c")
    topic.delete_channel("c")
    for _ in range(5):
        core.advance(SECOND)
    assert core.topic("t") is not None


def test_a_timeout_is_the_channels_unless_the_client_asked(make: Make) -> None:
    core = make()
    change(core, msg_timeout=5 * SECOND)
    plain = core.client().subscribe("t", "c")
    asked = core.client(msg_timeout=7000).subscribe("t", "c")
    assert plain.session.msg_timeout == 5 * SECOND
    change(core, "t/c", msg_timeout=3 * SECOND)
    assert plain.session.msg_timeout == 3 * SECOND
    change(core, "t/c")
    change(core)
    assert plain.session.msg_timeout == 60 * SECOND
    assert asked.session.msg_timeout == 7 * SECOND
