"""A log that cannot be read now: nothing is skipped, the topic waits and retries, and other topics
continue.

The fault table makes the reads fail, and the tests control the clock.
"""

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.nsqd.data.exporter import TopicReader
from nsqcy.storage.core import Unreadable
from nsqcy.storage.io_faults import FaultyIoThread
from support.log_columns import ALL, read_columns
from support.worker_core import ERROR, MILLISECOND, RESPONSE, SECOND, Client, Core, mpub

Make = Callable[..., Core]
OS = Policies(TopicPolicy("os"))
DAY = 86400 * SECOND
COUNT = 60
BODIES = [b"%03d" % number + bytes(900) for number in range(COUNT)]
OPTIONS = {"max_bytes_per_file": 12_000, "sync_every": 2500, "sync_timeout": 2 * SECOND}
OK = (RESPONSE, b"OK")


class Fault(NamedTuple):
    call: str
    error: int
    short: int = -1

    def strike(self, core: Core, nth: int = 1, times: int = 1 << 40) -> None:
        core.io.fault(self.call, nth, self.error, times, self.short)


FAULTS = {
    "EIO": Fault("pread", errno.EIO),
    "EAGAIN": Fault("pread", errno.EAGAIN),
    "ETIMEDOUT": Fault("pread", errno.ETIMEDOUT),
    "ENOMEM": Fault("pread", errno.ENOMEM),
    "EMFILE": Fault("open", errno.EMFILE),
    "ENOENT": Fault("open", errno.ENOENT),
    "short": Fault("pread", 0, 0),
}
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(path: Path | None = None, **settings: Any) -> Core:
        path = path or tmp_path / f"data{len(made)}"
        path.mkdir(exist_ok=True)
        made.append(Core(path, **{"policies": OS, "log_options": OPTIONS, **settings}))
        return made[-1]

    yield make
    for core in made:
        core.io.clear_faults()
        core.close()


def saved(make: Make, policies: Policies = OS) -> Path:
    """Return the files of a topic with COUNT messages in several segments, after a clean exit."""
    core = make(policies=policies)
    core.create("t").channel("c")
    producer = core.client()
    for body in BODIES:
        assert producer.publish("t", body) == OK
    core.advance(3 * SECOND)
    assert core.path is not None
    return core.copied()


def loaded(make: Make, **settings: Any) -> Core:
    """Return a core whose messages are only on disk, without a consumer."""
    core = make(saved(make, settings.get("policies", OS)), **settings)
    core.load_all()
    return core


def took(consumer: Client) -> list[bytes]:
    found = consumer.messages()
    for each in found:
        consumer.finish(each.id)
    return [each.body for each in found]


def lines(core: Core, part: str) -> list[str]:
    return [line for line in core.log.lines if part in line]


def heal(core: Core) -> None:
    """Make reads succeed, and wait for longer than the longest pause."""
    core.io.clear_faults()
    core.advance(6 * SECOND)


# -- delivery --


@every_fault
def test_delivery_waits_and_resumes(make: Make, fault: Fault) -> None:
    core = loaded(make)
    fault.strike(core)
    consumer = core.client().subscribe("t", "c", 2500)
    for _ in range(60):
        core.advance(SECOND)
    assert took(consumer) == []
    heal(core)
    assert took(consumer) == BODIES
    core.advance(SECOND)
    assert took(consumer) == [] and core.shard.host.damages == 0


@every_fault
def test_a_single_failure_costs_a_short_pause(make: Make, fault: Fault) -> None:
    core = loaded(make)
    consumer = core.client().subscribe("t", "c", 2500)
    found = []
    for nth in range(1, 10):
        fault.strike(core, nth, 1)
    for _ in range(COUNT):
        core.advance(100 * MILLISECOND)
        found += took(consumer)
    assert found == BODIES and core.shard.host.damages == 0


def test_one_read_in_twenty_fails(make: Make) -> None:
    chance = random.Random(5)
    core = loaded(make, budget=0)
    consumer = core.client().subscribe("t", "c", 3)
    found: list[bytes] = []
    for _ in range(600):
        core.io.clear_faults()
        if chance.random() < 0.05:
            chance.choice(list(FAULTS.values())).strike(core, 1, 1)
        core.advance(50 * MILLISECOND)
        found += took(consumer)
    assert found == BODIES and core.shard.host.damages == 0


def test_pauses_grow(make: Make) -> None:
    core = loaded(make)
    FAULTS["EIO"].strike(core)
    core.client().subscribe("t", "c", 2500)
    start, tries = core.now, []
    for _ in range(500):
        before = core.io.calls_made("pread")
        core.advance(50 * MILLISECOND)
        if core.io.calls_made("pread") > before:
            tries.append((core.now - start) // (50 * MILLISECOND))
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[:8] == [2, 4, 8, 16, 32, 64, 100, 100]


def test_the_scheduler_wakes_for_the_next_try(make: Make) -> None:
    core = loaded(make)
    FAULTS["EIO"].strike(core, 1, 1)
    consumer = core.client().subscribe("t", "c", 2500)
    core.settle()
    assert took(consumer) == [] and core.due <= core.now + SECOND // 10
    core.advance(core.due - core.now)
    core.advance(SECOND // 10)
    assert took(consumer) == BODIES


def test_other_topics_and_publishes_go_on(make: Make) -> None:
    core = loaded(make)
    FAULTS["EIO"].strike(core)
    consumer = core.client().subscribe("t", "c", 2500)
    other = core.client().subscribe("other", "c", 10)
    producer = core.client()
    assert producer.publish("other", b"delivered") == OK
    assert producer.publish("t", b"accepted") == OK
    core.advance(SECOND)
    assert took(other) == [b"delivered"] and took(consumer) == []
    heal(core)
    assert took(consumer) == [*BODIES, b"accepted"]


def test_queued_messages_wait_as_well(make: Make) -> None:
    core = make(budget=0)
    consumer = core.client().subscribe("t", "c", 2500)
    producer = core.client()
    for body in BODIES:
        assert producer.publish("t", body) == OK
    core.settle()
    for message in consumer.messages():
        consumer.requeue(message.id, 1000)
    core.settle()
    FAULTS["EIO"].strike(core)
    core.advance(30 * SECOND)
    first = took(consumer)
    heal(core)
    assert sorted(first + took(consumer)) == BODIES


def test_dead_letters_wait_as_well(make: Make) -> None:
    policies = Policies(
        TopicPolicy("os"),
        channel_sections=[("t/c", {"max_attempts": 1, "dead_letter_topic": "dead"})],
    )
    core = make(budget=0, policies=policies)
    graves = core.client().subscribe("dead", "g", 2500)
    consumer = core.client().subscribe("t", "c", 2500)
    producer = core.client()
    for body in BODIES:
        assert producer.publish("t", body) == OK
    core.settle()
    FAULTS["EIO"].strike(core)
    for message in consumer.messages():
        consumer.requeue(message.id)
    core.advance(30 * SECOND)
    found = took(graves)
    core.io.clear_faults()
    for _ in range(20):
        core.advance(6 * SECOND)
        found += took(graves)
    assert sorted(found) == BODIES


# -- reports to operators --


def test_health_says_it_and_says_when_it_is_over(make: Make) -> None:
    core = loaded(make)
    FAULTS["ETIMEDOUT"].strike(core)
    core.client().subscribe("t", "c", 2500)
    core.advance(SECOND)
    (found,) = core.shard.unreadable()
    path = f"{core.path}/t.topic/00000000000000000001.seg"
    assert (found["topic"], found["path"], found["error"]) == ("t", path, "ETIMEDOUT")
    assert found["text"] == f"read {path}: connection timed out"
    assert found["since"] == core.wall
    heal(core)
    assert core.shard.unreadable() == []
    assert len(lines(core, "cannot read")) == 1
    assert lines(core, "reads succeed") == ["TOPIC(t): reads succeed again; t is delivered"]


def test_it_is_over_once_the_range_is_not_needed(make: Make) -> None:
    core = loaded(make)
    FAULTS["EIO"].strike(core)
    core.client().subscribe("t", "c", 2500)
    core.advance(SECOND)
    assert core.shard.unreadable()
    core.topic("t").empty_channel("c")
    core.advance(10 * SECOND)
    assert not core.shard.unreadable()


def test_a_deleted_topic_is_not_waited_for(make: Make) -> None:
    core = loaded(make)
    FAULTS["EIO"].strike(core)
    core.client().subscribe("t", "c", 2500)
    core.advance(SECOND)
    core.shard.delete_topic(b"t")
    core.advance(10 * SECOND)
    assert not core.shard.unreadable()


def test_lines_are_limited_when_reads_fail_and_succeed_in_turn(make: Make) -> None:
    core = loaded(make, budget=0)
    consumer = core.client().subscribe("t", "c", 1)
    for _ in range(40):
        core.io.clear_faults()
        FAULTS["EIO"].strike(core, 1, 1)
        core.advance(200 * MILLISECOND)
        took(consumer)
    assert len(lines(core, "cannot read")) == 1 and len(lines(core, "reads succeed")) == 1


# -- readers of the log --


def test_a_replay_gets_an_error_and_no_gap(make: Make) -> None:
    policies = Policies(TopicPolicy("os", retention_time=DAY))
    core = loaded(make, policies=policies)
    client = core.client(topic_log=True)
    _, meta = client.ask(b"LOG_META t\n") or (None, b"")
    log_id = json.loads(meta)["log_id"]
    line = f"LOG_FETCH t {log_id} 1 {COUNT + 1} 8388608 {ALL}\n".encode()
    for fault in FAULTS.values():
        fault.strike(core)
        kind, text = client.ask(line) or (None, b"")
        assert kind == ERROR and text.startswith(b"E_LOG_FAILED "), text
        if fault.call == "pread":
            kind, text = client.ask(f"LOG_SEEK t {log_id} 1\n".encode()) or (None, b"")
            assert kind == ERROR and text.startswith(b"E_LOG_FAILED "), text
        heal(core)
    kind, data = client.ask(line) or (None, b"")
    assert kind == RESPONSE
    found = read_columns(data)
    assert found.body == BODIES and not found.damaged
    core.advance(10 * SECOND)
    assert not core.shard.unreadable()


def test_retention_keeps_what_cannot_be_read(make: Make) -> None:
    policies = Policies(TopicPolicy("os", retention_time=DAY))
    core = loaded(make, policies=policies)
    FAULTS["EIO"].strike(core)
    consumer = core.client().subscribe("t", "c", 2500)
    for _ in range(10):
        core.advance(DAY // 4)
    heal(core)
    assert took(consumer) == BODIES


@every_fault
def test_a_peek_fails_and_shows_no_gap(make: Make, fault: Fault) -> None:
    core = loaded(make)
    fault.strike(core)
    problems: list[str | None] = []
    core.topic("t").peek("c", "queued", 100, (0, 0), 10, problems.append)
    core.settle()
    assert len(problems) == 1 and problems[0]
    heal(core)
    problems.clear()
    peek = core.topic("t").peek("c", "queued", 100, (0, 0), 10, problems.append)
    core.settle()
    assert problems == [None] and len(peek.records) == COUNT


def test_a_compaction_that_cannot_read_changes_nothing_and_begins_again(make: Make) -> None:
    core = make(budget=4 << 20, log_options={**OPTIONS, "max_bytes_per_file": 500_000})
    consumer = core.client().subscribe("t", "c", 2500)
    bodies = [b"body %04d" % number + bytes(5000) for number in range(2400)]
    for first in range(0, len(bodies), 100):
        core.client().ask(mpub("t", bodies[first : first + 100]))
    core.advance(3 * SECOND)
    found = consumer.messages()
    FAULTS["EIO"].strike(core)
    for number, message in enumerate(found):
        if number % 100 < 4:
            consumer.requeue(message.id, 3600_000)
        else:
            consumer.finish(message.id)
    for _ in range(20):
        core.advance(SECOND)
    assert core.shard.unreadable() and core.topic("t").log_bytes > 5_000_000
    heal(core)
    for _ in range(20):
        core.advance(SECOND)
    assert core.topic("t").log_bytes < 4_000_000 and core.shard.host.damages == 0
    core.advance(3600 * SECOND)
    kept = [body for number, body in enumerate(bodies) if number % 100 < 4]
    assert sorted(took(consumer)) == kept


# -- the start --


def load(core: Core) -> None:
    core.shard.load_or_wait(b"t", False, {})
    core.settle()


@every_fault
def test_a_start_that_cannot_read_loses_nothing(make: Make, fault: Fault) -> None:
    core = make(saved(make))
    late: list[bytes] = []
    core.shard.on_loaded = late.append
    names = sorted(os.listdir(core.path / "t.topic"))
    fault.strike(core)
    load(core)
    for _ in range(60):
        core.advance(SECOND)
    assert core.topic("t") is None and late == []
    assert core.shard.topic(b"t", create=True) is None, "it must not be created again"
    assert core.shard.is_unloaded(b"t")
    (found,) = core.shard.unreadable()
    assert found["topic"] == "t" and found["path"].startswith(f"{core.path}/t.topic/")
    assert sorted(os.listdir(core.path / "t.topic")) == names
    heal(core)
    assert late == [b"t"] and not core.shard.unreadable()
    consumer = core.client().subscribe("t", "c", 2500)
    core.settle()
    assert took(consumer) == BODIES


@pytest.mark.parametrize("call", ["open", "pread", "fstat"])
def test_every_call_of_a_start_may_fail(make: Make, call: str) -> None:
    """The call may read a segment, a footer, or the journal with the finished messages."""
    before = make()
    consumer = before.client().subscribe("t", "c", COUNT // 2)
    producer = before.client()
    for body in BODIES:
        assert producer.publish("t", body) == OK
    before.settle()
    assert took(consumer) == BODIES[: COUNT // 2]
    consumer.ready(0)
    before.advance(10 * SECOND)
    image = before.copied()
    counted = make(Path(shutil.copytree(image, image.with_name("counted"))))
    counted.load_all()
    calls = counted.io.calls_made(call)
    assert calls >= 4
    for nth in range(1, calls + 1):
        core = make(Path(shutil.copytree(image, image.with_name(f"image{nth}"))))
        core.io.fault(call, nth, errno.EIO)
        load(core)
        heal(core)
        consumer = core.client().subscribe("t", "c", 2500)
        core.settle()
        found = took(consumer)
        assert found[-COUNT // 2 :] == BODIES[COUNT // 2 :], nth
        assert core.shard.host.damages == 0


def test_an_unreadable_directory_is_not_an_empty_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make(saved(make))

    def fail(path: str) -> list[str]:
        raise OSError(errno.EIO, "input/output error", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", fail)
        load(core)
        core.advance(SECOND)
        assert core.shard.is_unloaded(b"t")
    heal(core)
    assert core.topic("t") is not None


def test_a_tool_gets_the_error(make: Make) -> None:
    core = make(saved(make))
    FAULTS["EIO"].strike(core)
    with pytest.raises(Unreadable, match="Input/output error"):
        core.shard.load_topic(b"t", False, {})
    core.io.clear_faults()
    assert core.topic("t") is None
    assert core.shard.load_topic(b"t", False, {}) is not None


def test_a_reader_of_its_log_is_not_told_that_it_is_gone(make: Make) -> None:
    core = make(saved(make))
    FAULTS["EIO"].strike(core)
    load(core)
    client = core.client(topic_log=True)
    client.send(b"LOG_META t\n")
    core.advance(10 * SECOND)
    kind, text = client.answer() or (None, b"")
    assert kind == ERROR and text.startswith(b"E_LOG_FAILED ")


# -- damage --


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def segments(core: Core) -> list[Path]:
    assert core.path is not None
    return sorted((core.path / "t.topic").glob("*.seg"))


def test_a_damaged_record_is_skipped_counted_and_set_aside(make: Make) -> None:
    core = loaded(make)
    path = segments(core)[1]
    flip(path, 500)
    damaged = path.read_bytes()
    consumer = core.client().subscribe("t", "c", 2500)
    core.settle()
    found = took(consumer)
    assert len(found) == COUNT - 1 and set(found) < set(BODIES)
    assert core.shard.host.damages == 1 and len(lines(core, "damaged record")) == 1
    core.advance(10 * SECOND)
    assert not path.exists()
    (aside,) = (core.path / "damaged").iterdir()
    assert aside.name.startswith(f"t.{path.stem}.") and aside.read_bytes() == damaged


def test_damage_is_counted_once(make: Make) -> None:
    core = loaded(make, policies=Policies(TopicPolicy("os", retention_time=DAY)))
    flip(segments(core)[1], 500)
    client = core.client(topic_log=True)
    _, meta = client.ask(b"LOG_META t\n") or (None, b"")
    log_id = json.loads(meta)["log_id"]
    for _ in range(3):
        assert client.ask(f"LOG_FETCH t {log_id} 1 {COUNT} 8388608 body\n".encode())
    assert core.shard.host.damages == 1 and len(lines(core, "damaged record")) == 1


def test_damage_that_is_gone_when_read_again_is_none(make: Make) -> None:
    core = loaded(make)
    path = segments(core)[0]
    flip(path, 500)
    core.io.hold("fadvise")  # called between the two reads
    consumer = core.client().subscribe("t", "c", 2500)
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    flip(path, 500)
    core.io.release()
    core.settle()
    assert took(consumer) == BODIES and core.shard.host.damages == 0


def test_two_reads_that_differ_are_tried_again(make: Make) -> None:
    core = loaded(make)
    path = segments(core)[0]
    flip(path, 500)
    core.io.hold("fadvise")
    consumer = core.client().subscribe("t", "c", 2500)
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    flip(path, 500)
    flip(path, 5000)
    core.io.release()
    core.settle()
    assert took(consumer) == [] and core.shard.host.damages == 0
    flip(path, 5000)
    heal(core)
    assert took(consumer) == BODIES and core.shard.host.damages == 0


def test_a_replaced_file_is_read_without_a_restart(make: Make) -> None:
    core = loaded(make)
    path = segments(core)[0]
    data = path.read_bytes()
    consumer = core.client().subscribe("t", "c", 0)
    FAULTS["EIO"].strike(core, 1, 3)
    consumer.ready(2500)
    core.settle()
    path.unlink()
    core.advance(30 * SECOND)
    assert took(consumer) == []
    path.write_bytes(data)
    heal(core)
    assert took(consumer) == BODIES


def test_a_damaged_journal_is_set_aside(make: Make) -> None:
    core = make(saved(make))
    journal = core.path / "t.topic" / "journal"
    flip(journal, journal.stat().st_size // 2)
    damaged = journal.read_bytes()
    load(core)
    core.advance(10 * SECOND)
    (aside,) = (core.path / "damaged").iterdir()
    assert aside.name.startswith("t.journal.") and aside.read_bytes() == damaged


# -- tools --


def test_an_export_fails_instead_of_leaving_a_gap(make: Make) -> None:
    path = saved(make)
    io = FaultyIoThread()
    reader = TopicReader(io, str(path), "t", ["c"], lambda *damage: pytest.fail(str(damage)))
    io.fault("pread", 3, errno.EIO, times=1 << 40)
    with pytest.raises(Unreadable):
        list(reader.messages())
    io.clear_faults()
    io.fault("pread", 3, errno.EIO)  # nsqd repeats the read after a single failure
    assert len(list(reader.messages())) == COUNT
    io.clear_faults()
    del reader
    io.close()
