"""Deferred messages: listed, cancelled, and kept across a crash at any moment."""

import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import ChannelPolicy, Policies, TopicPolicy
from support.worker_core import ERROR, MILLISECOND, MOMENT, RESPONSE, SECOND, Client, Core

Make = Callable[..., Core]
DAY_MS = 24 * 3600 * 1000
OS = Policies(TopicPolicy("os"))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        path = tmp_path / str(len(made))
        path.mkdir(exist_ok=True)
        longest = 31 * DAY_MS * MILLISECOND
        made.append(Core(path, **{"policies": OS, "max_defer_timeout": longest, **settings}))
        return made[-1]

    yield make
    for core in made:
        core.close()


def killed(make: Make, core: Core, wait: int = 0, **settings: Any) -> Core:
    """Start again with the current content of the disk."""
    assert core.path is not None
    path = core.path.parent / str(int(core.path.name) + 1)
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(core.path, path)
    fresh = make(now=9 * SECOND, wall=core.wall + wait, **settings)
    assert fresh.path == path
    fresh.shard.load_topic(b"t", False, {})
    return fresh


def defer(core: Core, delays: list[int], size: int = 10) -> None:
    """Publish with these delays in ms; the body of each message begins with its delay."""
    producer = core.client()
    for delay in delays:
        assert producer.publish("t", (b"%d:" % delay).ljust(size, b"."), delay) == (RESPONSE, b"OK")


def listed(core: Core, limit: int = 1000, after: Any = None) -> list[tuple[Any, ...]]:
    """Return (place, seq, due, id, attempts, size) for each deferred message."""
    topic = core.topic("t")
    assert topic is not None
    return topic.channels["c"].upcoming(limit, after)


def ledger(core: Core) -> dict[str, Any]:
    topic = core.topic("t")
    assert topic is not None
    found = topic.channels["c"].ledger()
    dropped = found.pop("dropped")
    return {name: count for name, count in {**found, **dropped}.items() if count}


def cancel(core: Core, id: int) -> bool:
    topic = core.topic("t")
    assert topic is not None
    written: list[str | None] = []
    if not topic.cancel("c", id, written.append):
        return False
    core.settle()
    assert written == [None]
    return True


def taken(core: Core, wait: int = 0) -> list[bytes]:
    """Return the bodies delivered within `wait` ms, without their padding."""
    consumer = core.client().subscribe("t", "c", 1000)
    core.advance(wait * MILLISECOND)
    found = []
    while messages := consumer.messages():
        for message in messages:
            consumer.finish(message.id)
            found.append(message.body.partition(b":")[0])
        core.settle()
    consumer.send(b"CLS\n")
    consumer.transport.end()
    core.settle()
    return found


def begin(core: Core) -> Client:
    return core.client().subscribe("t", "c")


# -- equal delays --


@pytest.mark.parametrize("restart", ["none", "before", "while due"])
@pytest.mark.parametrize("journalled", [False, True])
def test_equal_delays_end_in_the_order_of_publishing(
    make: Make, restart: str, journalled: bool
) -> None:
    core = make()
    begin(core)
    texts = [b"%03d" % number for number in range(300)]
    core.client().send(b"".join(b"DPUB t 1000\n\0\0\0\3" + text for text in texts))
    core.settle()
    if journalled:
        core.advance(SECOND // 2)
    if restart != "none":
        core = killed(make, core, 0 if restart == "before" else 2 * SECOND)
    assert taken(core, 1001) == texts


def test_equal_delays_end_in_the_order_of_requeueing(make: Make) -> None:
    core = make()
    consumer = begin(core)
    consumer.ready(100)
    texts = [b"%02d" % number for number in range(100)]
    for text in texts:
        assert core.client().publish("t", text) == (RESPONSE, b"OK")
    held = {each.body: each.id for each in consumer.messages()}
    random.Random(5).shuffle(texts)
    consumer.send(b"".join(b"REQ %b 1000\n" % held[text] for text in texts))
    core.advance(1000 * MILLISECOND + MOMENT)
    assert [each.body for each in consumer.messages()] == texts


# -- listing --


def test_they_are_listed_in_the_order_of_their_due_times(make: Make) -> None:
    core = make()
    begin(core)
    delays = list(range(1000, 1300))
    random.Random(1).shuffle(delays)
    defer(core, delays, 30)
    found = listed(core)
    assert [(due - core.wall) // MILLISECOND for _, _, due, *_ in found] == sorted(delays)
    assert {(attempts, size) for *_, attempts, size in found} == {(0, 30)}
    assert len({id for _, _, _, id, _, _ in found}) == 300
    assert [seq for _, seq, *_ in found] == [delays.index(delay) + 1 for delay in sorted(delays)]


@pytest.mark.parametrize("limit", [1, 7, 300, 301])
def test_pages_are_the_whole(make: Make, limit: int) -> None:
    """The pages are complete even if many messages are due at the same time."""
    core = make()
    begin(core)
    chance = random.Random(limit)
    defer(core, [chance.choice([1000, 1001, 1002]) for _ in range(300)])
    pages = []
    after = None
    while page := listed(core, limit, after):
        assert len(page) <= limit
        pages += page
        after = page[-1][0]
    assert pages == listed(core) and len(pages) == 300
    assert pages == sorted(pages)


def test_what_was_handed_back_is_listed_with_its_attempts(make: Make) -> None:
    core = make()
    consumer = begin(core)
    consumer.ready(1)
    core.client().publish("t", b"." * 77)
    core.settle()
    (message,) = consumer.messages()
    consumer.requeue(message.id, 5000)
    core.settle()
    ((_, seq, due, id, attempts, size),) = listed(core)
    assert (seq, due, id) == (1, core.wall + 5 * SECOND, int(message.id, 16))
    assert (attempts, size) == (1, 77)


# -- cancelling --


def test_a_cancelled_message_is_never_delivered(make: Make) -> None:
    core = make()
    begin(core)
    defer(core, [1000, 2000, 3000])
    first, second, third = (each[3] for each in listed(core))
    assert cancel(core, second)
    assert not cancel(core, second) and not cancel(core, 12345)
    assert [each[3] for each in listed(core)] == [first, third]
    assert ledger(core) == {"received": 3, "deferred": 2, "cancelled": 1}
    assert taken(core, 5000) == [b"1000", b"3000"]
    assert not cancel(core, first), "it is finished"


def test_many_are_cancelled_in_any_order(make: Make) -> None:
    core = make()
    begin(core)
    defer(core, list(range(1000, 1500)))
    ids = {each[3]: each[1] for each in listed(core)}
    gone = random.Random(3).sample(sorted(ids), 400)
    for id in gone:
        assert cancel(core, id)
    assert [each[3] for each in listed(core)] == [id for id in ids if id not in gone]
    assert core.pool.deferred == 100


@pytest.mark.parametrize("journalled", ["before", "after", "never"])
def test_a_cancelled_message_does_not_come_back(make: Make, journalled: str) -> None:
    """A cancellation holds whether the journal contained the message, the cancellation or
    neither."""
    core = make()
    begin(core)
    core.advance(SECOND)
    if journalled == "never":
        core.advance(3 * SECOND)
    defer(core, [60_000, 90_000])
    if journalled == "before":
        core.advance(3 * SECOND)
    assert cancel(core, listed(core)[0][3])
    if journalled == "after":
        core.advance(3 * SECOND)
    for _ in range(2):
        core = killed(make, core)
        core.settle()
        assert [each[2] - core.wall > 80 * SECOND for each in listed(core)] == [True]
    assert taken(core, 100_000) == [b"90000"]


@pytest.mark.parametrize("delay", [0, 100])
def test_nor_does_it_when_it_was_delivered_before(make: Make, delay: int) -> None:
    """Since the last snapshot, the message has been published, delivered, requeued and
    cancelled."""
    core = make()
    consumer = begin(core)
    consumer.ready(10)
    core.advance(3 * SECOND)
    defer(core, [delay] * 3)
    core.advance(100 * MILLISECOND + MOMENT)
    first, second, _ = consumer.messages()
    consumer.requeue(second.id, 10_000)
    consumer.requeue(first.id, 10_000)
    core.settle()
    place = listed(core)[0]
    assert cancel(core, place[3])
    for _ in range(2):
        core = killed(make, core)
        core.settle()
        assert core.counters("t", "c")["depth"] + core.counters("t", "c")["deferred_count"] == 2
    assert len(taken(core, 20_000)) == 2
    assert "damaged" not in ledger(core)


def test_nor_does_it_from_a_topic_that_is_paused_twice_over(make: Make) -> None:
    """After a restart, messages that another channel may still receive have not been fanned out
    yet."""
    core = make()
    begin(core)
    core.advance(5 * SECOND)
    defer(core, [60_000, 90_000])
    assert cancel(core, listed(core)[0][3])
    for _ in range(2):
        assert core.path is not None
        path = core.path.parent / str(int(core.path.name) + 1)
        shutil.copytree(core.path, path)
        core = make(now=9 * SECOND, wall=core.wall)
        core.shard.load_topic(b"t", True, {})
        core.settle()
        core.advance(5 * SECOND)
    topic = core.topic("t")
    assert topic is not None
    topic.pause(False)
    core.settle()
    assert taken(core, 100_000) == [b"90000"]


def test_a_failed_write_of_a_cancellation_is_reported(make: Make) -> None:
    core = make()
    begin(core)
    defer(core, [60_000, 90_000])
    core.advance(3 * SECOND)
    topic = core.topic("t")
    assert topic is not None and core.io is not None
    core.io.fault("pwrite", 1, 28, 1)
    written: list[str | None] = []
    assert topic.cancel("c", listed(core)[0][3], written.append)
    core.settle()
    assert written == ["no space left on device"]
    core.io.clear_faults()
    core.client().publish("t", b"has the journal written again")
    core.advance(10 * SECOND)
    core = killed(make, core)
    core.settle()
    assert len(listed(core)) == 1


# -- across a crash --


def test_thirty_days_over_a_crash(make: Make) -> None:
    """Due times, ids, sizes and attempts are unchanged; time passes while no nsqd runs."""
    core = make()
    consumer = begin(core)
    delays = [1000, DAY_MS, 7 * DAY_MS, 30 * DAY_MS]
    defer(core, delays, 33)
    consumer.ready(1)
    core.advance(SECOND)
    (message,) = consumer.messages()
    consumer.requeue(message.id, 3_000_000)
    core.advance(3 * SECOND)
    before = [each[1:] for each in listed(core)]
    assert len(before) == 4
    for _ in range(2):
        core = killed(make, core, 3600 * SECOND)
        core.settle()
        after = [each[1:] for each in listed(core)]
        if core.path is not None and core.path.name == "1":
            assert after == before[1:]
            # The message became due in the meantime.
            assert taken(core) == [b"1000"]
            core.advance(4 * SECOND)
        assert after[-3:] == before[-3:]
    assert taken(core, 8 * DAY_MS) == [b"%d" % delay for delay in delays[1:3]]
    assert ledger(core) == {"received": 3, "finished": 2, "deferred": 1}


class History:
    """Messages of one channel: deferred, due, delivered, requeued, finished and cancelled."""

    def __init__(self, core: Core, seed: int) -> None:
        self.core = core
        self.chance = random.Random(seed)
        self.producer = core.client()
        self.consumer = core.client().subscribe("t", "c", 500)
        self.held: list[Any] = []
        self.owed: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        self.number = 0

    def publish(self) -> None:
        self.number += 1
        body = b"%d:" % self.number
        delay = self.chance.choice([0, 300, 1500, 60_000])
        command = b"DPUB t %d\n" % delay if delay else b"PUB t\n"
        self.producer.send(command, struct.pack(">i", len(body)), body)
        self.owed.add(body)

    def take(self) -> None:
        for message in self.consumer.messages():
            assert message.body not in self.cancelled
            self.held.append(message)

    def pick(self) -> Any:
        self.take()
        return self.held.pop(self.chance.randrange(len(self.held))) if self.held else None

    def finish(self) -> None:
        if message := self.pick():
            self.consumer.finish(message.id)
            self.owed.discard(message.body)

    def requeue(self) -> None:
        if message := self.pick():
            self.consumer.requeue(message.id, self.chance.choice([0, 0, 400, 60_000]))

    def touch(self) -> None:
        if message := self.pick():
            self.consumer.touch(message.id)
            self.held.append(message)

    def cancel(self) -> None:
        found = listed(self.core, 5)
        topic = self.core.topic("t")
        assert topic is not None
        if found:
            place = self.chance.choice(found)
            assert topic.cancel("c", place[3], [].append)
            body = b"%d:" % place[1]
            self.owed.discard(body)
            self.cancelled.add(body)

    def tick(self) -> None:
        step = self.chance.choice([1, 100, 2100]) * MILLISECOND
        self.core.now += step
        self.core.wall += step

    def step(self) -> None:
        what = self.chance.choice(
            [
                *(self.publish, self.publish, self.finish, self.requeue),
                *(self.touch, self.cancel, self.tick),
            ]
        )
        what()
        assert not self.producer.closed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_moment_of_a_snapshot(make: Make, seed: int) -> None:
    """Snapshots take one entry per turn, while messages arrive, leave and change their positions.
    At any moment, the disk contains every message that must be delivered, and none that was
    cancelled."""
    core = make(snapshot_budget=1)
    history = History(core, seed)
    chance = random.Random(-seed)
    for _ in range(150):
        history.publish()
    core.settle()
    for _ in range(600):
        for _ in range(chance.choice([0, 0, 1, 3])):
            history.step()
        core.manager.run_turn(core.now, core.wall)
        if core.io is not None and chance.random() < 0.7:
            core.io.drain_now()
    if core.io is not None:
        core.io.drain_now()
    history.take()
    # Answered changes are on disk and wait for nothing; the rest are being written.
    fresh = killed(make, core)
    fresh.settle()
    consumer = fresh.client().subscribe("t", "c", 2500)
    found: list[bytes] = []
    for _ in range(70):
        fresh.advance(SECOND)
        for message in consumer.messages():
            consumer.finish(message.id)
            found.append(message.body)
    assert history.owed <= set(found), sorted(history.owed - set(found))
    assert not history.cancelled & set(found)
    assert len(found) == len(set(found))
    assert fresh.pool.deferred == fresh.pool.entries == 0


def test_what_is_touched_while_a_snapshot_passes_is_in_it(make: Make) -> None:
    """The snapshot includes the message even if its new deadline is earlier than those of the
    entries already passed."""
    core = make(snapshot_budget=1)
    consumer = begin(core)
    consumer.ready(10)
    defer(core, [0] * 5)
    messages = consumer.messages()
    core.now += 3 * SECOND
    core.wall += 3 * SECOND
    core.manager.run_turn(core.now, core.wall)
    core.manager.run_turn(core.now, core.wall)
    topic = core.topic("t")
    assert topic is not None
    topic.channels["c"].set_policy(ChannelPolicy(msg_timeout=SECOND))
    consumer.touch(messages[4].id)
    core.settle()
    assert len(taken(killed(make, core))) == 5


def test_what_a_channel_was_emptied_of_stays_away_while_a_snapshot_is_made(make: Make) -> None:
    """Publishes are answered only once the journal has caught up."""
    core = make(snapshot_budget=1)
    begin(core)
    defer(core, list(range(60_000, 60_050)))
    topic = core.topic("t")
    assert topic is not None
    core.now += 3 * SECOND
    core.wall += 3 * SECOND
    core.manager.run_turn(core.now, core.wall)  # a snapshot is in progress
    topic.empty_channel("c")
    producer = core.client()
    producer.send(b"PUB t\n", struct.pack(">i", 6), b"after:")
    turns = 0
    while (answer := producer.answer()) is None:
        core.manager.run_turn(core.now, core.wall)
        assert core.io is not None
        core.io.drain_now()
        turns += 1
    assert answer == (RESPONSE, b"OK") and turns < 100
    fresh = killed(make, core)
    fresh.settle()
    assert taken(fresh, 100_000) == [b"after"]


def test_a_big_backlog_of_a_topic_without_channels(make: Make) -> None:
    """The journal contains the first of the topic's delays; the records contain the others."""
    core = make(mem_queue_size=100_000)
    core.create("t")
    count = 17_000
    producer = core.client()
    message = b"DPUB t 60000\n" + struct.pack(">i", 1) + b"."
    producer.send(message * count)
    core.advance(5 * SECOND)
    fresh = killed(make, core)
    fresh.settle()
    topic = fresh.topic("t")
    assert topic is not None and topic.delayed_count == count
    begin(fresh)
    fresh.settle()
    assert topic.channels["c"].deferred_count == count


# -- limits --


def test_the_longest_delay_of_a_publish(make: Make) -> None:
    core = make()
    begin(core)
    producer = core.client()
    assert producer.publish("t", b".", 31 * DAY_MS) == (RESPONSE, b"OK")
    maximum = 31 * DAY_MS
    expected = b"E_INVALID DPUB timeout %d out of range 0-%d" % (maximum + 1, maximum)
    assert producer.publish("t", b".", maximum + 1) == (ERROR, expected)
