"""Owners: their numbers, notes and positions, as another process finds them."""

import errno
import os
import random

import pytest

from nsqcy import formats
from nsqcy.errors import NsqError
from nsqcy.storage.core import BlockPool, LeftMemory, LeftTopic, MemoryRange
from nsqcy.storage.memory_faults import FaultyMemoryRange
from nsqcy.storage.state_probe import OwnersProbe, sizes
from support.left import copy_memory
from support.runs import runs

CHUNK = 2 << 20
UNIT = 65536
FOREVER = 1 << 40
NOTE_HEADER = sizes()[1]
CELLS = (256, 2048, 16368)  # of notes
NOTE_SIZES = sorted(
    {0, 1, 100_000, 3_000_000, UNIT - NOTE_HEADER, UNIT - NOTE_HEADER + 1}
    | {cell - NOTE_HEADER + more for cell in CELLS for more in (-1, 0, 1)}
)
LOG_ID = bytes(range(16))


def made(chunks: int = 32) -> tuple[BlockPool, OwnersProbe]:
    pool = BlockPool(1 << 40, state=MemoryRange(chunks * CHUNK, memfd=True))
    return pool, OwnersProbe(pool)


def read(pool: BlockPool) -> LeftMemory:
    left = LeftMemory(MemoryRange(fd=copy_memory(pool.state.fileno())))
    left.read()
    return left


def only(pool: BlockPool) -> LeftTopic:
    (topic,) = read(pool).topics.values()
    return topic


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# -- numbers --


def test_topics_and_channels_are_found() -> None:
    pool, owners = made()
    numbers = [owners.add(name) for name in (b"a", b"b", b"n" * 64)]
    numbers += [owners.add(name, numbers[0]) for name in (b"x", b"y")]
    numbers.append(owners.add(b"x", numbers[1]))
    assert len(set(numbers)) == 6 and 0 not in numbers
    owners.set_log(numbers[0], LOG_ID, 7, 9)
    owners.move(numbers[0], 5)
    owners.move(numbers[3], 3)
    left = read(pool)
    assert (left.refusal, left.damaged) == (None, 0)
    found = {key: sorted(topic.channels) for key, topic in left.topics.items()}
    assert found == {b"a": ["x", "y"], b"b": ["x"], b"n" * 64: []}
    topic = left.topics[b"a"]
    assert (topic.key, topic.log_id, topic.log_first) == (b"a", LOG_ID, 7)
    assert (topic.visible, topic.seq, topic.note) == (9, 5, None)
    channel = topic.channels["x"]
    assert (channel.name, channel.seq, channel.skipped, channel.replay_end) == ("x", 3, 4, 5)
    assert (channel.note, channel.bits) == (None, b"")
    other = topic.channels["y"]
    assert (other.seq, left.topics[b"b"].log_first) == (1, 1)


def test_a_removed_owner_is_not_found() -> None:
    pool, owners = made()
    first, second = owners.add(b"a"), owners.add(b"b")
    owners.add(b"x", second)
    owners.remove(first)
    assert list(read(pool).topics) == [b"b"]
    third = owners.add(b"a")
    assert third not in (first, second), "what has the old number must not appear again"
    assert set(read(pool).topics) == {b"a", b"b"}


def test_a_channel_of_a_deleted_topic_is_no_damage() -> None:
    """A process that dies while it deletes a topic leaves the topic's channels."""
    pool, owners = made()
    topic = owners.add(b"a")
    channel = owners.add(b"x", topic)
    owners.remove(topic)
    left = read(pool)
    assert (left.topics, left.damaged) == ({}, 0)
    owners.remove(channel)
    assert owners.in_use == (0, 0)


def test_a_new_number() -> None:
    pool, owners = made()
    topic = owners.add(b"a")
    channel = owners.add(b"x", topic)
    owners.move(channel, 12, note=b"note")
    again = owners.renumber(channel)
    assert again not in (topic, channel)
    found = only(pool).channels["x"]
    assert (found.seq, found.note) == (12, b"note")


def test_a_channel_of_a_channel_is_not_found() -> None:
    pool, owners = made()
    channel = owners.add(b"x", owners.add(b"a"))
    owners.add(b"y", channel)
    left = read(pool)
    assert list(left.topics[b"a"].channels) == ["x"]


@pytest.mark.parametrize("topic", [False, True], ids=["topics", "channels"])
def test_the_same_name_twice_is_damage(topic: bool) -> None:
    pool, owners = made()
    of = owners.add(b"t") if topic else 0
    owners.add(b"a", of)
    owners.add(b"a", of)
    assert read(pool).damaged == 1


@pytest.mark.parametrize("name", [b"", b"$", b"a b", b"n" * 65, b"\xff"])
def test_an_invalid_name_is_damage(name: bytes) -> None:
    pool, owners = made()
    owners.add(name)
    left = read(pool)
    assert (left.topics, left.damaged) == ({}, 1)


def test_a_name_without_room() -> None:
    pool, owners = made()
    with pytest.raises(NsqError, match="too long"):
        owners.add(b"n" * 73)
    assert owners.in_use == (0, 0)
    assert read(pool).topics == {}


# -- notes --


@pytest.mark.parametrize("size", NOTE_SIZES)
def test_a_note_of_any_size(size: int) -> None:
    pool, owners = made()
    number = owners.add(b"a")
    owners.move(number, 2, note=content(size))
    assert only(pool).note == content(size)
    assert owners.in_use == (1, 1)
    owners.move(number, 3)
    assert only(pool).note is None
    assert owners.in_use == (1, 0)


def test_notes_replace_each_other() -> None:
    pool, owners = made()
    number = owners.add(b"a")
    for size in [*NOTE_SIZES, *reversed(NOTE_SIZES)]:
        owners.move(number, size + 1, note=content(size))
        assert only(pool).note == content(size)
        assert owners.in_use == (1, 1)


@pytest.mark.parametrize("size", NOTE_SIZES[1:])
def test_a_note_that_has_changed_is_left_out(size: int) -> None:
    pool, owners = made()
    number = owners.add(b"a")
    owners.move(number, 7, note=content(size))
    fd = copy_memory(pool.state.fileno())
    at = owners.note_offset(number) + size - 1
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
    left = LeftMemory(MemoryRange(fd=fd))
    left.read()
    assert (left.topics[b"a"].note, left.topics[b"a"].seq) == (None, 7)
    assert left.damaged == 1


# -- positions --


def test_the_next_position_is_valid_after_the_turn() -> None:
    pool, owners = made()
    number = owners.add(b"a")
    for seq in range(1, 12):
        owners.move(number, seq, note=b"%d" % seq)
        owners.move(number, 1000 + seq, note=b"not yet", turn=False)
        topic = only(pool)
        assert (topic.seq, topic.note) == (seq, b"%d" % seq)


# -- memory --


def test_a_lack_of_memory_changes_nothing() -> None:
    memory = FaultyMemoryRange(32 * CHUNK, memfd=True)
    pool = BlockPool(1 << 40, state=memory)
    owners = OwnersProbe(pool)
    numbers = [owners.add(b"first")]
    memory.fault("populate", errno.ENOMEM, times=FOREVER)
    memory.fault("collapse", errno.ENOMEM, times=FOREVER)
    # The rest of the first chunk may have pages already.
    with pytest.raises(MemoryError):
        for number in range(100_000):
            numbers.append(owners.add(b"t%d" % number))
    assert owners.in_use == (len(numbers), 0)
    for size in NOTE_SIZES:
        with pytest.raises(MemoryError):
            owners.move(numbers[0], 5, note=content(size))
    memory.clear_faults()
    assert owners.in_use == (len(numbers), 0)
    owners.move(numbers[0], 9, note=b"note")
    left = read(pool)
    assert len(left.topics) == len(numbers)
    assert (left.topics[b"first"].seq, left.topics[b"first"].note) == (9, b"note")


def test_any_history_leaks_nothing() -> None:
    chance = random.Random(11)
    pool, owners = made()
    empty = pool.state.usage()["used"]
    model: dict[int, tuple[bytes, int, bytes | None]] = {}
    for step in range(runs(3000)):
        action = chance.random()
        if action < 0.3 or not model:
            name = b"t%d" % step
            model[owners.add(name)] = name, 1, None
        elif action < 0.45:
            number = chance.choice(sorted(model))
            owners.remove(number)
            del model[number]
        elif action < 0.55:
            number = chance.choice(sorted(model))
            model[owners.renumber(number)] = model.pop(number)
        else:
            number = chance.choice(sorted(model))
            size = chance.choice([None, None, *NOTE_SIZES[:-1]])
            note = None if size is None else content(size)
            owners.move(number, step, note=note)
            model[number] = model[number][0], step, note
        notes = sum(note is not None for _, _, note in model.values())
        assert owners.in_use == (len(model), notes)
        if step % 500 == 0:
            found = {(each.key, each.seq, each.note) for each in read(pool).topics.values()}
            assert found == set(model.values())
    for number in list(model):
        owners.remove(number)
    assert owners.in_use == (0, 0)
    assert read(pool).topics == {}
    del owners
    assert pool.state.usage()["used"] == empty


# -- formats --


def test_memory_that_was_never_used() -> None:
    memory = MemoryRange(32 * CHUNK, memfd=True)
    memory.open()
    left = LeftMemory(MemoryRange(fd=copy_memory(memory.fileno())))
    left.read()
    assert left.topics == {}
    assert left.refusal == "it had not begun to use its memory"


@pytest.mark.parametrize("field", range(7))
def test_an_unknown_format(field: int) -> None:
    pool, owners = made()
    owners.add(b"a")
    fd = copy_memory(pool.state.fileno())
    at = [0, 8, 12, 16, 20, 24, 4][field]
    head = next(offset for kind, offset, _ in pool.state.pieces() if kind == 11)
    byte = os.pread(fd, 1, head + at)[0]
    os.pwrite(fd, bytes([byte ^ 1]), head + at)
    left = LeftMemory(MemoryRange(fd=fd))
    left.read()
    assert left.topics == {}
    if at == 8:
        assert left.refusal == formats.WORKER_MEMORY.refusal(0)
    else:
        assert left.refusal == "the head of its memory is damaged"
