"""Data that nsqd keeps about chunks: unit tests, and random programs compared with a slow model."""

from random import Random

import pytest

from nsqcy.broker import producers
from nsqcy.broker.producers import (
    EXPIRY,
    ChunkError,
    ChunkName,
    Producers,
    Ranges,
    complement,
    messages_in,
    producer_id,
    without_first,
)

NOW = 10 * EXPIRY


def name(chunk: int, part: int = 0, epoch: int = 1, producer: int = 7) -> ChunkName:
    return ChunkName(producer, epoch, part, chunk)


class Log:
    """A topic's records, as the producer table sees them."""

    def __init__(self) -> None:
        self.table = Producers()
        self.next_seq = self.visible = 1
        self.now = NOW

    def wanted(self, what: ChunkName, count: int = 1) -> Ranges | None:
        return self.table.wanted(what, count, self.visible, self.now)

    def publish(self, what: ChunkName, count: int = 1, *, visible: bool = True) -> Ranges | None:
        wanted = self.wanted(what, count)
        if wanted:
            self.table.attempted(what)
            self.table.published(what, [(self.next_seq, wanted)])
            self.next_seq += messages_in(wanted)
        if visible:
            self.visible = self.next_seq
        return wanted

    def undo(self, visible: int) -> None:
        self.visible = self.next_seq = visible
        self.table.undo(visible)

    def again(self) -> "Log":
        """Return the log after a restart."""
        log = Log()
        log.now, log.next_seq, log.visible = self.now, self.next_seq, self.visible
        log.table.restore(self.table.state(self.visible))
        return log


def test_the_id_of_a_producer_is_what_it_always_was() -> None:
    """The id is stored on disk, so it must not change."""
    assert producer_id(b"spark") == 0x55F195BD5C6F48F1


def test_what_was_published_is_not_wanted_again() -> None:
    log = Log()
    assert log.publish(name(5), 3) == ((0, 3),)
    assert log.publish(name(5), 3) == ()
    assert log.publish(name(4), 3) == ()  # already skipped, because numbers ascend within a part
    assert log.publish(name(9), 2) == ((0, 2),)
    assert log.publish(name(5, part=1), 1) == ((0, 1),)
    assert log.publish(name(5, epoch=2), 1) == ((0, 1),)
    assert log.publish(name(5, producer=8), 1) == ((0, 1),)


def test_the_first_chunk_may_be_0() -> None:
    log = Log()
    assert log.publish(name(0)) == ((0, 1),)
    assert log.publish(name(0)) == ()


def test_a_repeat_of_a_pending_publish_gets_its_outcome() -> None:
    log = Log()
    log.publish(name(1), 2, visible=False)
    log.publish(name(2), 2, visible=False)
    assert log.wanted(name(1), 2) is None
    assert log.wanted(name(2), 2) is None
    log.visible = 3
    # The chunk is visible, but answers within a part stay in order.
    assert log.wanted(name(1), 2) is None
    log.visible = 5
    assert log.wanted(name(1), 2) == log.wanted(name(2), 2) == ()


def test_what_is_undone_is_not_remembered() -> None:
    log = Log()
    log.publish(name(1), 2)
    log.publish(name(2), 2, visible=False)
    log.publish(name(3), 2, visible=False)
    log.undo(3)
    assert log.wanted(name(3), 2) == log.wanted(name(2), 2) == ((0, 2),)
    assert log.wanted(name(1), 2) == ()


def test_what_was_undone_in_part_is_wanted_in_part() -> None:
    log = Log()
    log.publish(name(1), 5, visible=False)
    log.undo(3)
    assert log.again().publish(name(1), 5) == ((2, 5),)
    assert log.publish(name(1), 5, visible=False) == ((2, 5),)
    log.undo(4)
    assert log.publish(name(1), 5) == ((3, 5),)
    assert log.publish(name(1), 5) == ()


def test_a_chunk_that_was_longer_is_refused() -> None:
    log = Log()
    log.publish(name(1), 5, visible=False)
    log.undo(3)
    with pytest.raises(ChunkError, match="chunk 1 had at least 5 messages, not 4"):
        log.wanted(name(1), 4)


def test_the_state_knows_what_is_visible_and_nothing_else() -> None:
    log = Log()
    log.publish(name(1), 2)
    log.publish(name(2), 2, visible=False)
    assert log.table.unspoken(log.visible) == 3
    assert log.table.unspoken(4) == 3
    assert log.again().wanted(name(1), 2) == ()
    assert log.again().wanted(name(2), 2) == ((0, 2),)
    log.visible = 5
    assert log.table.unspoken(log.visible) == 5
    assert log.again().wanted(name(2), 2) == ()


@pytest.mark.parametrize("order", [1, -1])
def test_what_a_crash_has_left_is_found(order: int) -> None:
    log = Log()
    log.publish(name(1), 5)
    after = log.again()
    for first, end in [(0, 1), (3, 4)][::order]:
        after.table.found(name(2), first, end, 5)
    after.table.found_all(NOW)
    assert after.wanted(name(1), 5) == ()
    assert after.publish(name(2), 5) == ((1, 3), (4, 5))
    # Restart once more, before a journal includes the resent chunk.
    later = log.again()
    for first, end in [(0, 1), (3, 4), (1, 3), (4, 5)]:
        later.table.found(name(2), first, end, 5)
    later.table.found_all(NOW)
    assert later.wanted(name(2), 5) == ()


def test_what_the_state_says_is_missing_may_be_found() -> None:
    log = Log()
    log.publish(name(1), 5, visible=False)
    log.undo(3)
    after = log.again()
    after.table.found(name(1), 2, 4, 5)
    after.table.found_all(NOW)
    assert after.wanted(name(1), 5) == ((4, 5),)


def test_an_older_chunk_that_is_found_changes_nothing() -> None:
    log = Log()
    log.publish(name(2), 5)
    log.table.found(name(1), 0, 1, 5)
    log.table.found_all(NOW)
    assert log.wanted(name(2), 5) == ()


def test_what_is_not_used_is_forgotten() -> None:
    log = Log()
    log.publish(name(1))
    log.publish(name(1, producer=8))
    log.now += EXPIRY // 2
    log.publish(name(2, producer=8))
    log.now += EXPIRY // 2 + 1
    assert log.table.expire(log.visible, log.now)
    assert log.publish(name(1, producer=8)) == ()
    assert log.publish(name(1)) == ((0, 1),)
    assert not log.table.expire(log.visible, log.now)
    log.now += EXPIRY + 1
    assert log.table.expire(log.visible, log.now)
    assert not log.table


def test_the_oldest_epochs_of_a_producer_go_first() -> None:
    log = Log()
    for epoch in range(producers.MAX_EPOCHS):
        log.publish(name(1, epoch=epoch))
    assert log.publish(name(1, epoch=0)) == ()
    log.publish(name(1, epoch=1000))
    assert log.wanted(name(1, epoch=0)) == ()
    assert log.wanted(name(1, epoch=1)) == ((0, 1),)


def test_the_oldest_producers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    log = Log()
    for producer in range(3):
        log.publish(name(1, producer=producer))
    log.publish(name(1, producer=0))
    log.publish(name(1, producer=3))
    assert log.wanted(name(1, producer=0)) == ()
    assert log.wanted(name(1, producer=1)) == ((0, 1),)


def test_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "MAX_PARTS", 3)
    monkeypatch.setattr(producers, "PARTS_OF_TOPIC", 5)
    log = Log()
    for part in range(3):
        log.publish(name(1, part))
    with pytest.raises(ChunkError, match="epoch 1 has more than 3 parts"):
        log.publish(name(1, 3))
    for part in range(2):
        log.publish(name(1, part, epoch=2))
    assert log.publish(name(1, 0)) == ()
    log.publish(name(1, 0, epoch=3))
    # The least recently used epoch was forgotten completely.
    assert log.wanted(name(1, 0, epoch=2)) == ((0, 1),)
    assert log.wanted(name(1, 0)) == ()


def test_ranges() -> None:
    assert messages_in(((1, 3), (5, 6))) == 3
    assert without_first(((1, 3), (5, 8)), 3) == ((6, 8),)
    assert without_first(((1, 3),), 0) == ((1, 3),)
    assert without_first(((1, 3),), 2) == ()
    assert complement([(5, 6), (0, 2)], 8) == ((2, 5), (6, 8))
    assert complement([], 2) == ((0, 2),)
    assert complement([(0, 1), (0, 4)], 4) == ()


def test_a_crash_may_leave_a_chunk_and_not_the_one_before() -> None:
    log = Log()
    log.publish(name(1), 2)
    after = log.again()
    after.table.found(name(3), 0, 2, 2)
    after.table.found(name(5), 0, 1, 2)
    after.table.found_all(NOW)
    after = after.again()
    assert after.wanted(name(1), 2) == after.wanted(name(3), 2) == ()
    assert after.publish(name(2), 2) == ((0, 2),)
    assert after.publish(name(3), 2) == ()
    after = after.again()
    assert after.publish(name(4), 2) == ((0, 2),)
    assert after.publish(name(5), 2) == ((1, 2),)
    assert after.wanted(name(5), 2) == after.wanted(name(3), 2) == after.wanted(name(4), 2) == ()


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    """Every message in every answered chunk exists exactly once; messages in other chunks exist at
    most once."""
    chance = Random(seed)
    log = Log()
    records: list[tuple[ChunkName, int]] = []  # by seq
    spoken: Log | None = log.again()
    unspoken = 1
    counts: dict[ChunkName, int] = {}
    highest: dict[tuple[int, ...], int] = {}
    answered: set[ChunkName] = set()
    given_up: set[ChunkName] = set()

    def publish(what: ChunkName) -> None:
        count = counts.setdefault(what, chance.randint(1, 4))
        wanted = log.wanted(what, count)
        if wanted is None:
            return
        if wanted:
            log.table.attempted(what)
            log.table.published(what, [(log.next_seq, wanted)])
            for first, end in wanted:
                records.extend((what, index) for index in range(first, end))
            log.next_seq = len(records) + 1
        else:
            answered.add(what)

    for _ in range(80):
        action = chance.random()
        stream = (chance.randint(0, 1), chance.randint(0, 1), chance.randint(0, 2))
        if action < 0.5:
            last = highest.get(stream, 0)
            step = chance.choice([0, 0, 1, 2])
            if step:
                before = ChunkName(*stream, last)
                if before in counts and before not in answered:
                    given_up.add(before)
            highest[stream] = last + step
            publish(ChunkName(*stream, last + step))
        elif action < 0.7:
            log.visible = chance.randint(log.visible, log.next_seq)
        elif action < 0.8:
            log.visible = chance.randint(log.visible, log.next_seq)
            del records[log.visible - 1 :]
            log.undo(log.visible)
        elif action < 0.9:
            unspoken = log.table.unspoken(log.visible)
            spoken = log.again()
        else:
            # A crash: any of the records that were not visible may be lost.
            assert spoken is not None
            kept = [
                (seq, record)
                for seq, record in enumerate(records, 1)
                if seq < log.visible or chance.random() < 0.7
            ]
            log = spoken.again()
            for seq, (what, index) in kept:
                if seq >= unspoken:
                    log.table.found(what, index, index + 1, counts[what])
            log.table.found_all(NOW)
            records = [record for _, record in kept]
            log.visible = log.next_seq = len(records) + 1
            unspoken = log.visible
            spoken = log.again()
    log.visible = log.next_seq
    for stream, chunk in highest.items():
        publish(ChunkName(*stream, chunk))
        log.visible = log.next_seq
        publish(ChunkName(*stream, chunk))
    assert len(set(records)) == len(records)
    for what in answered - given_up:
        assert sum(record[0] == what for record in records) == counts[what]
