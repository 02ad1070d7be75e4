"""Durability classes of the core: what an OK means, and what a start finds after a kill.

Files are copied as they are at one moment, which is what a process that is killed leaves behind.
"""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.policies import Policies, TopicPolicy
from tests.core import ERROR, MILLISECOND, RESPONSE, SECOND, Client, Core, mpub

OK = (RESPONSE, b"OK")
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(durability: str, path: Path | None = None, **more: Any) -> Core:
        path = path or tmp_path / f"data{len(made)}"
        path.mkdir(exist_ok=True)
        core = Core(path, policies=Policies(TopicPolicy(durability=durability)), **more)
        made.append(core)
        return core

    yield make
    for core in made:
        core.close()


def killed(make: Make, core: Core, durability: str, later: int = 0) -> Core:
    """What a start finds, had the process ended now; metadata say nothing."""
    assert core.path is not None
    copy = core.path.with_name(f"{core.path.name}-copy")
    shutil.copytree(core.path, copy)
    again = make(durability, copy, now=core.now + 77 * SECOND, wall=core.wall + later)
    for folder in sorted(copy.glob("*.topic")):
        again.shard.load_topic(folder.name.removesuffix(".topic").encode(), False, {})
    again.settle()
    return again


def bodies(core: Core, topic: str = "t", channel: str = "c") -> list[bytes]:
    return [each.body for each in received(core.client().subscribe(topic, channel, 2500))]


def received(client: Client) -> list:
    client.core.settle()
    return client.messages()


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_ok_comes_when_it_is_kept(make: Make, durability: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    core.settle()
    core.io.hold("pwrite" if durability == "os" else "fdatasync")
    client = core.client()
    client.send(b"PUB t\n\0\0\0\3one")
    core.home.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.io.poll_now()
    core.home.run_turn(core.now, core.wall)
    assert client.answer() is None
    assert core.counters("t")["depth"] == core.counters("t", "c")["depth"] == 0
    core.io.release()
    core.settle()
    assert client.answer() == OK
    assert core.counters("t", "c")["depth"] == 1
    assert bodies(core) == [b"one"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_was_acknowledged_is_there_after_a_kill(make: Make, durability: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", b"one") == OK
    assert client.ask(mpub("t", [b"two", b"three"])) == OK
    assert client.publish("t", b"four") == OK
    assert bodies(killed(make, core, durability)) == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("durability, syncs", [("memory", 3), ("os", 0)])
def test_only_a_topic_of_class_os_is_not_synced_by_count(
    make: Make, durability: str, syncs: int
) -> None:
    options = {"max_bytes_per_file": 100 << 20, "sync_every": 2, "sync_timeout": 2 * SECOND}
    core = make(durability, mem_queue_size=0, log_options=options)
    core.create("t").channel("c")
    client = core.client()
    for _ in range(7):
        assert client.publish("t", b"one") == OK
    assert core.io.calls_made("fdatasync") == syncs
    core.advance(3 * SECOND)
    assert core.io.calls_made("fdatasync") > syncs


def test_memory_promises_less(make: Make) -> None:
    core = make("memory")
    core.create("t").channel("c")
    assert core.client().publish("t", b"one") == OK
    core.advance(5 * SECOND)
    assert core.files() == []


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_channel_is_known_before_its_messages(make: Make, durability: str) -> None:
    """It was made and never checkpointed; the metadata may not be on disk either."""
    core = make(durability)
    client = core.client()
    assert client.publish("t", b"early") == OK
    core.create("t").channel("c")
    assert client.publish("t", b"one") == OK
    core.create("t").channel("d")
    assert client.publish("t", b"two") == OK
    again = killed(make, core, durability)
    assert bodies(again, channel="c") == [b"early", b"one", b"two"]
    assert bodies(again, channel="d") == [b"two"]


def test_a_deleted_channel_stays_deleted(make: Make) -> None:
    core = make("os")
    topic = core.create("t")
    topic.channel("c")
    topic.channel("d")
    assert core.client().publish("t", b"one") == OK
    topic.delete_channel("d")
    core.settle()
    assert list(killed(make, core, "os").topic("t").channels) == ["c"]


def test_what_was_emptied_stays_empty(make: Make) -> None:
    core = make("os")
    topic = core.create("t")
    topic.channel("c")
    client = core.client()
    for n in range(10):
        assert client.publish("t", b"%d" % n) == OK
    topic.empty_channel("c")
    assert client.publish("t", b"last") == OK
    assert bodies(killed(make, core, "os")) == [b"last"]


def test_what_the_topic_dropped_stays_dropped(make: Make) -> None:
    core = make("os")
    topic = core.create("t")
    client = core.client()
    assert client.publish("t", b"dropped") == OK
    topic.empty()
    assert client.publish("t", b"kept") == OK
    again = killed(make, core, "os")
    assert again.counters("t")["depth"] == 1
    assert bodies(again) == [b"kept"]


def test_finished_messages_are_known_after_a_checkpoint(make: Make) -> None:
    core = make("os")
    core.create("t").channel("c")
    client = core.client()
    for n in range(100):
        client.publish("t", b"%d" % n)
    consumer = core.client().subscribe("t", "c", 100)
    some = received(consumer)
    for each in some[1:99]:
        consumer.finish(each.id)
    consumer.requeue(some[99].id, 60_000)
    core.settle()
    core.advance(3 * SECOND)
    core.settle()
    again = killed(make, core, "os", later=SECOND)
    reader = again.client().subscribe("t", "c", 100)
    (first,) = received(reader)
    assert (first.body, first.attempts) == (b"0", 2)
    again.advance(57 * SECOND)
    last = [each for each in received(reader) if each.body == b"99"]
    assert [each.attempts for each in last] == [2]


@pytest.mark.parametrize("checkpoint", [0, 5 * SECOND])
def test_a_delay_goes_on_from_the_publish(make: Make, checkpoint: int) -> None:
    core = make("os")
    core.create("t").channel("c")
    assert core.client().publish("t", b"later", delay=60_000) == OK
    core.advance(checkpoint)
    again = killed(make, core, "os", later=40 * SECOND)
    consumer = again.client().subscribe("t", "c", 1)
    assert received(consumer) == []
    again.advance(20 * SECOND - checkpoint - MILLISECOND)
    assert received(consumer) == []
    again.advance(MILLISECOND)
    assert [each.body for each in received(consumer)] == [b"later"]


def test_a_delay_begins_with_the_first_channel(make: Make) -> None:
    core = make("os")
    assert core.client().publish("t", b"later", delay=60_000) == OK
    again = killed(make, core, "os", later=40 * SECOND)
    consumer = again.client().subscribe("t", "c", 1)
    again.advance(59 * SECOND)
    assert received(consumer) == []
    again.advance(SECOND)
    assert [each.body for each in received(consumer)] == [b"later"]


def test_a_checkpoint_does_not_speak_of_what_is_not_written(make: Make) -> None:
    """A deferred record that is being written when the journal is: its delay is not forgotten."""
    core = make("os")
    topic = core.create("t")
    topic.channel("c")
    core.client().publish("t", b"first")
    client = core.client()
    client.send(b"DPUB t 60000\n\0\0\0\5later")
    topic.pause(False)  # has a journal written in the same turn
    core.settle()
    assert client.answer() == OK
    again = killed(make, core, "os")
    assert [again.counters("t", "c")[key] for key in ("depth", "deferred_count")] == [1, 1]


@pytest.mark.parametrize(("durability", "call"), [("os", "pwrite"), ("fsync", "fdatasync")])
def test_a_failure_refuses_and_heals(make: Make, durability: str, call: str) -> None:
    core = make(durability)
    core.create("t").channel("c")
    client = core.client()
    assert client.publish("t", b"before") == OK
    core.io.fault(call, 1, errno.EIO)
    kind, text = client.publish("t", b"lost")
    assert kind == ERROR and text.startswith(b"E_PUB_FAILED ") and b"input/output error" in text
    assert core.shard.health.startswith("NOK - ")
    client = core.client()
    assert client.publish("t", b"after") == OK
    assert core.shard.health == "OK"
    assert core.counters("t")["message_count"] == 2
    again = killed(make, core, durability)
    assert bodies(core) == [b"before", b"after"]
    assert bodies(again) == [b"before", b"after"]


def test_one_sync_serves_all_that_came_meanwhile(make: Make) -> None:
    core = make("fsync")
    core.create("t").channel("c")
    core.settle()
    clients = [core.client() for _ in range(20)]
    core.io.hold("fdatasync")
    clients[0].send(b"PUB t\n\0\0\0\1x")
    core.home.run_turn(core.now, core.wall)
    core.io.wait_parked()
    before = core.io.calls_made("fdatasync")
    for client in clients[1:]:
        client.send(b"PUB t\n\0\0\0\1x")
        core.home.run_turn(core.now, core.wall)
    core.io.release()
    core.settle()
    assert [client.answer() for client in clients] == [OK] * 20
    assert core.io.calls_made("fdatasync") == before + 1


def test_ephemeral_topics_are_never_on_disk(make: Make) -> None:
    core = make("fsync")
    core.create("t#ephemeral").channel("c")
    assert core.client().publish("t#ephemeral", b"x") == OK
    assert core.topic("t#ephemeral").durability == "memory"
    assert core.files() == []


def log_id(core: Core) -> str:
    core.settle()
    found = core.topic("t").log_facts()["log_id"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("durability", "rebooted", "same"),
    [
        ("memory", False, False),
        ("os", False, True),
        ("os", True, False),
        ("fsync", False, True),
        ("fsync", True, True),
    ],
)
def test_a_log_that_may_have_lost_something_is_another_log(
    make: Make, durability: str, rebooted: bool, same: bool
) -> None:
    """Sequence numbers that were seen are used again."""
    core = make(durability, mem_queue_size=0)
    core.create("t").channel("c")
    assert core.client().publish("t", b"one") == OK
    core.advance(3 * SECOND)
    assert core.client().publish("t", b"two") == OK
    old = log_id(core)
    if rebooted:
        core.shard.boot = b"the boot before "
        core.create("t").channel("d")
        core.advance(3 * SECOND)
    assert (log_id(killed(make, core, durability)) == old) == same


def test_a_clean_exit_keeps_the_log(make: Make, tmp_path: Path) -> None:
    core = make("memory")
    core.create("t").channel("c")
    assert core.client().publish("t", b"one") == OK
    old = log_id(core)
    core.save()
    core.close = lambda: None  # type: ignore[method-assign]
    again = make("memory", core.path)
    again.shard.load_topic(b"t", False, {})
    assert log_id(again) == old
    # But it is not clean for ever.
    assert again.client().publish("t", b"two") == OK
    assert log_id(killed(make, again, "memory")) != old


def test_counts_are_right_where_the_journal_is_older_than_the_files(make: Make) -> None:
    """Segments that everybody is done with go at once; the journal learns of it later."""
    core = make("os", log_options={"max_bytes_per_file": 16_000, "sync_timeout": 10 * SECOND})
    core.create("t").channel("c")
    client = core.client()
    for n in range(30):
        assert client.publish("t", b"%02d" % n * 2500) == OK
    core.advance(11 * SECOND)
    consumer = core.client().subscribe("t", "c", 20)
    for each in received(consumer)[:20]:
        consumer.finish(each.id)
    core.settle()
    again = killed(make, core, "os")
    depth = again.counters("t", "c")["depth"]
    channel = again.topic("t").channels["c"]
    assert channel.ledger()["received"] == depth < 30
    assert len(bodies(again)) == depth
