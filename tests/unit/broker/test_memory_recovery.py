"""Topics restored from the memory of a dead process: what the state machines do not reach."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.left import Remains
from support.worker_core import RESPONSE, SECOND, Client, Core, mpub

OK = (RESPONSE, b"OK")


class Deaths:
    """Cores that die, and those that follow them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.open: list[Core] = []
        self.number = 0

    def path(self) -> Path:
        self.number += 1
        return self.base / str(self.number)

    def first(self, **settings: Any) -> Core:
        path = self.path()
        path.mkdir()
        self.open.append(Core(path, memfd=True, **settings))
        return self.open[-1]

    def kill(self, core: Core) -> Remains:
        remains = Remains(core, self.path())
        self.open.remove(core)
        core.close()
        return remains

    def follow(self, remains: Remains, **settings: Any) -> Core:
        """Return the core that restores what is left, with all topics loaded."""
        core = remains.next_core(**settings)
        self.open.append(core)
        remains.load(core)
        remains.end(core)
        core.settle()
        return core


@pytest.fixture
def deaths(tmp_path: Path) -> Iterator[Deaths]:
    made = Deaths(tmp_path)
    yield made
    for core in made.open:
        core.io.clear_faults()
        core.close()


def bodies(client: Client) -> list[bytes]:
    return [message.body for message in client.messages()]


def drained(core: Core, topic: str = "t", channel: str = "c") -> list[bytes]:
    """Consume and finish everything; return the bodies in order of arrival."""
    client = core.client().subscribe(topic, channel, 2500)
    found = []
    for _ in range(20):
        core.advance(SECOND)
        for message in client.messages():
            found.append(message.body)
            client.finish(message.id)
    core.settle()
    assert core.counters(topic, channel)["depth"] == 0
    return found


def fill(core: Core, count: int, size: int = 0, first: int = 0) -> list[bytes]:
    sent = [b"%d" % number + bytes(size) for number in range(first, first + count)]
    client = core.client()
    for body in sent:
        assert client.publish("t", body) == OK
    core.settle()
    return sent


def test_ephemeral_topics_and_channels_end_with_their_process(deaths: Deaths) -> None:
    core = deaths.first()
    for topic in ("t", "e#ephemeral"):
        core.create(topic).channel("c")
        core.create(topic).channel("c#ephemeral")
        assert core.client().publish(topic, b"kept") == OK
    remains = deaths.kill(core)
    assert set(remains.read().topics) == {b"t", b"e#ephemeral"}
    core = remains.next_core()
    assert core.shard.left_topics == [b"t"]
    core.close()
    core = deaths.follow(remains)
    assert list(core.topic("t").channels) == ["c"]
    assert core.topic("e#ephemeral") is None
    assert drained(core) == [b"kept"]


def test_a_log_that_cannot_be_read_keeps_what_was_in_memory(deaths: Deaths) -> None:
    core = deaths.first(mem_queue_size=5)
    core.create("t").channel("c")
    sent = fill(core, 30, 900)
    core.create("u").channel("c")
    core.client().publish("u", b"other")
    remains = deaths.kill(core)
    following = remains.next_core(mem_queue_size=5)
    deaths.open.append(following)
    following.io.fault("pread", 1, errno.EIO, times=1 << 40)
    remains.load(following)
    assert following.topic("t") is None
    remains.end(following)
    following.settle()
    assert drained(following, "u") == [b"other"]
    fill_other = following.client()
    for _ in range(200):
        fill_other.publish("u", bytes(9000))
    following.advance(SECOND)
    following.io.clear_faults()
    following.advance(10 * SECOND)
    assert following.topic("t") is not None
    assert drained(following) == sent


def test_an_exit_reports_what_a_log_that_cannot_be_read_had_in_memory(deaths: Deaths) -> None:
    core = deaths.first()
    core.create("t").channel("c")
    fill(core, 7)
    remains = deaths.kill(core)
    (remains.path / "t.topic").mkdir()
    (remains.path / "t.topic" / "00000000000000000001.seg").write_bytes(bytes(64))
    following = remains.next_core()
    deaths.open.append(following)
    following.io.fault("pread", 1, errno.EIO, times=1 << 40)
    remains.load(following)
    remains.end(following)
    assert following.topic("t") is None
    assert following.shard.unsaved() == {"t": 7}
    following.io.clear_faults()
    following.advance(10 * SECOND)
    assert following.shard.unsaved() == {"t": 7}  # they are not on disk yet
    assert len(drained(following)) == 7


def test_topics_that_only_the_dead_process_knew(deaths: Deaths) -> None:
    core = deaths.first()
    core.create("t").channel("c")
    sent = fill(core, 3)
    remains = deaths.kill(core)
    remains.topics = {}
    following = remains.next_core()
    deaths.open.append(following)
    assert following.shard.left_topics == [b"t"]
    following.shard.load_topic(b"t", False, {})
    assert following.shard.left_topics == []
    remains.end(following)
    assert drained(following) == sent


def test_the_reader_may_die_and_be_read_again(deaths: Deaths) -> None:
    core = deaths.first()
    core.create("t").channel("c")
    core.create("u").channel("c")
    sent = fill(core, 40, 5000)
    client = core.client().subscribe("t", "c", 10)
    core.settle()
    for message in client.messages()[:4]:
        client.finish(message.id)
    core.settle()
    core.client().publish("u", b"other")
    remains = deaths.kill(core)
    for _ in range(2):
        reader = remains.next_core()
        reader.shard.load_topic(b"t", False, {"c": False})
        # What is consumed before the adoption ends does not count.
        assert len(drained(reader)) == 36
        reader.close()
    following = deaths.follow(remains)
    assert sorted(drained(following)) == sorted(sent[4:])
    assert drained(following, "u") == [b"other"]


def test_records_that_are_partly_on_disk_are_there_once(deaths: Deaths) -> None:
    """A block is written up to its middle, and then receives more records."""
    settings = {"policies": Policies(TopicPolicy(retention_time=3600 * SECOND))}
    core = deaths.first(**settings)
    core.create("t").channel("c")
    sent = fill(core, 5, 300)
    core.advance(3 * SECOND)
    sent += fill(core, 5, 300, first=5)
    log_id = core.topic("t").log_facts()["log_id"]
    core = deaths.follow(deaths.kill(core), **settings)
    assert core.pool.blocks == 2
    assert core.topic("t").log_facts()["log_id"] == log_id
    assert drained(core) == sent


class Marks:
    """Records the marks; leaves out some parts."""

    def __init__(self, *left_out: tuple[bytes, int]) -> None:
        self.left_out = set(left_out)
        self.seen: list[tuple[bytes, int] | None] = []

    def begin(self, key: bytes, number: int) -> None:
        self.seen.append((key, number))

    def end(self) -> None:
        self.seen.append(None)

    def leaves_out(self, key: bytes, number: int) -> bool:
        return (key, number) in self.left_out


def test_a_block_can_be_left_out(deaths: Deaths) -> None:
    core = deaths.first()
    core.create("t").channel("c")
    sent = fill(core, 60, 9000)
    remains = deaths.kill(core)
    marks = Marks()
    reader = remains.next_core(marks=marks)
    remains.load(reader)
    reader.close()
    blocks = [each[1] for each in marks.seen if each and each[1]]
    assert len(blocks) > 2 and blocks == sorted(set(blocks))
    assert marks.seen[0] == (b"t", 0) and marks.seen[-1] is None
    following = deaths.follow(remains, marks=Marks((b"t", blocks[1])))
    found = drained(following)
    assert 0 < len(found) < len(sent)
    assert set(found) < set(sent)
    assert any("records" in line for line in following.log.lines)


def test_a_topic_can_be_left_out(deaths: Deaths) -> None:
    core = deaths.first()
    core.create("t").channel("c")
    core.create("u").channel("c")
    fill(core, 3)
    core.client().publish("u", b"other")
    following = deaths.follow(deaths.kill(core), marks=Marks((b"t", 0)))
    assert drained(following) == []
    assert drained(following, "u") == [b"other"]


def test_what_is_not_in_a_position_is_in_a_note(deaths: Deaths) -> None:
    core = deaths.first()
    topic = core.create("t")
    topic.channel("c")
    fill(core, 3)
    topic.pause(True)
    core.settle()
    fill(core, 4, first=3)
    topic.empty()
    core.settle()
    fill(core, 2, first=7)
    topic.pause_channel("c", True)
    core.settle()
    following = deaths.follow(deaths.kill(core))
    topic = following.topic("t")
    assert topic.paused and following.counters("t", "c")["paused"]
    assert following.counters("t")["depth"] == 2
    assert following.counters("t", "c")["depth"] == 3
    topic.pause(False)
    topic.pause_channel("c", False)
    assert drained(following) == [b"0", b"1", b"2", b"7", b"8"]


def test_twenty_deaths_in_a_row_lose_nothing_and_leak_nothing(deaths: Deaths) -> None:
    core = deaths.first()
    core.create("t").channel("c")
    sent = fill(core, 500, 500)
    used = []
    for _ in range(20):
        client = core.client().subscribe("t", "c", 100)
        core.settle()
        assert len(client.messages()) == 100
        core = deaths.follow(deaths.kill(core))
        core.advance(SECOND)
        used.append((core.pool.records.usage()["used"], core.pool.state.usage()["used"]))
    assert used[-1] == used[1]
    assert sorted(drained(core)) == sorted(sent)


def test_delays_keep_their_order_without_a_channel(deaths: Deaths) -> None:
    """Memory contains the blocks in any order; the next journal lists the delays by seq."""
    core = deaths.first()
    core.create("t")
    sent = [b"%d" % number + bytes(6000) for number in range(12)]
    client = core.client()
    for body in sent:
        assert client.publish("t", body, 1000) == OK
    core.settle()
    core = deaths.follow(deaths.kill(core))
    core.save()
    deaths.open.remove(core)
    assert core.path is not None
    core = Core(core.path, now=core.now, wall=core.wall)
    deaths.open.append(core)
    core.load_all()
    core.topic("t").channel("c")
    core.settle()
    assert core.counters("t", "c")["deferred_count"] == len(sent)
    assert sorted(drained(core)) == sorted(sent)


def test_a_large_message_is_adopted_where_it_is(deaths: Deaths) -> None:
    core = deaths.first(max_msg_size=9 << 20, max_body_size=9 << 20)
    core.create("t").channel("c")
    big = bytes(range(256)) * 20_000
    assert core.client().publish("t", big) == OK
    core.settle()
    before = core.pool.records.usage()["used"]
    core = deaths.follow(deaths.kill(core), max_msg_size=9 << 20, max_body_size=9 << 20)
    assert core.pool.records.usage()["used"] == before
    client = core.client().subscribe("t", "c", 1)
    core.settle()
    (message,) = client.messages()
    assert message.body == big
    client.finish(message.id)
    core.settle()
    core.advance(11 * SECOND)
    assert core.pool.records.usage()["used"] < before


def test_an_mpub_that_was_not_answered_is_dropped(deaths: Deaths) -> None:
    """A publish that waits for the disk has no visible records."""
    core = deaths.first(policies=Policies(TopicPolicy("os")))
    core.create("t").channel("c")
    sent = fill(core, 3)
    client = core.client()
    client.send(mpub("t", [b"a", b"b"]))
    remains = deaths.kill(core)
    assert drained(deaths.follow(remains)) == sent


def step_back(remains: Remains, name: bytes) -> None:
    """Make the earlier of a channel's two positions the valid one, as if the turn that stored the
    later one had died first. `name` is in no message."""
    state = remains.state
    at = os.lseek(state, 0, os.SEEK_DATA)
    data = os.pread(state, 64 << 20, at)
    found = data.find(name)
    while data[found - 36 : found - 32] != len(name).to_bytes(4, "little"):
        found = data.index(name, found + 1)
    current = data[found - 40]
    assert current in (0, 1)
    os.pwrite(state, bytes([1 - current]), at + found - 40)


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_what_the_last_turn_delivered_is_there_once(deaths: Deaths, durability: str) -> None:
    """The turn took messages from the log, and died before it stored how far it came. Their records
    may be on disk only."""
    channel = "read-until-the-death"
    settings = {"policies": Policies(TopicPolicy(durability=durability)), "mem_queue_size": 0}
    core = deaths.first(**settings)
    core.create("t").channel(channel)
    sent = fill(core, 20, 300)
    core.advance(3 * SECOND)
    client = core.client().subscribe("t", channel, 10)
    core.manager.run_turn(core.now, core.wall)
    while not (delivered := bodies(client)):
        core.settle()
    remains = deaths.kill(core)
    step_back(remains, channel.encode())
    core = deaths.follow(remains, **settings)
    assert delivered and core.counters("t", channel)["depth"] == len(sent)
    assert sorted(drained(core, channel=channel)) == sorted(sent)


# --- ids ----------------------------------------------------------------------------------------

DEDUP = Policies(TopicPolicy(dedup_window=60 * SECOND, dedup_id="json:/id"))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b'{"id":"%d"}' % number for number in range(first, first + count)]


def refused(core: Core, sent: list[bytes]) -> int:
    """Publish messages again; return how many of them are not kept."""
    before = core.counters("t")["duplicates"]
    assert core.client().ask(mpub("t", sent)) == OK
    core.settle()
    return core.counters("t")["duplicates"] - before


@pytest.mark.parametrize("count", [1, 30, 2_000])
def test_ids_of_messages_that_were_finished(deaths: Deaths, count: int) -> None:
    core = deaths.first(policies=DEDUP)
    core.create("t").channel("c")
    sent = numbered(count)
    assert refused(core, sent) == 0
    assert drained(core) == sent
    for _ in range(2):
        core = deaths.follow(deaths.kill(core), policies=DEDUP)
        assert refused(core, sent) == count
    assert refused(core, numbered(5, first=count)) == 0
    assert drained(core) == numbered(5, first=count)


def test_ids_of_messages_that_wait_or_were_finished(deaths: Deaths) -> None:
    """The topic overflows to disk, so some of the ids are in files."""
    core = deaths.first(policies=DEDUP, mem_queue_size=20)
    core.create("t").channel("c")
    finished, waiting = numbered(1_200), numbered(1_200, first=1_200)
    assert refused(core, finished) == 0
    assert drained(core) == finished
    assert refused(core, waiting) == 0
    core = deaths.follow(deaths.kill(core), policies=DEDUP, mem_queue_size=20)
    assert refused(core, finished) == refused(core, waiting) == 1_200
    assert drained(core) == waiting
    core = deaths.follow(deaths.kill(core), policies=DEDUP, mem_queue_size=20)
    assert refused(core, finished) == refused(core, waiting) == 1_200


def test_ids_are_forgotten_after_their_window(deaths: Deaths) -> None:
    core = deaths.first(policies=DEDUP)
    core.create("t").channel("c")
    sent = numbered(3)
    assert refused(core, sent) == 0
    assert drained(core) == sent
    core.advance(61 * SECOND)
    core = deaths.follow(deaths.kill(core), policies=DEDUP)
    assert refused(core, sent) == 0


def test_ids_of_a_deleted_topic_are_not_found(deaths: Deaths) -> None:
    core = deaths.first(policies=DEDUP)
    core.create("t").channel("c")
    sent = numbered(3)
    assert refused(core, sent) == 0
    core.shard.delete_topic(b"t")
    core.create("t").channel("c")
    core.settle()
    core = deaths.follow(deaths.kill(core), policies=DEDUP)
    assert refused(core, sent) == 0
