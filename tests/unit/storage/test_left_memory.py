"""What a dead process has left in its memory, whole and with damage to single parts.

NSQCY_RUNS=20 tries all values in each place; otherwise, each place gets some of them.
"""

import struct

import pytest

from support.damaged_memory import SIZE, UNIT, Outcome, Scene, Write, scene
from support.runs import FACTOR

MORE, ENTRIES, PAGES, BLOCKS, OWNERS, LARGE = 2, 4, 5, 6, 7, 12  # enum UnitKind
KINDS = [0, MORE, ENTRIES, PAGES, BLOCKS, OWNERS, 11, LARGE, 255]
VALUES = [0, 1, 2**31, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def found() -> Scene:
    return scene()


def parts(found: Scene, kind: str, topic: str) -> list[tuple[int, int]]:
    """Return the offset and size of the cells of a kind."""
    return [(at, size) for name, what, at, size in found.cells
            if (name.decode(), what) == (topic, kind)]  # fmt: skip


def is_due(place: int, number: int) -> bool:
    """Return whether this run tries the value with this number in this place: a third of them in
    the suite, other ones in the next place."""
    return FACTOR > 1 or (place + number) % 3 == 0


def total(outcome: Outcome) -> int:
    return sum(outcome.lost.values())


def test_everything_is_there(found: Scene) -> None:
    outcome = found.survive()
    assert outcome.damaged == 0
    for name, channels in found.expected.items():
        for channel, bodies in channels.items():
            assert sorted(outcome.found[name][channel]) == sorted(bodies), (name, channel)


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x55"])
@pytest.mark.parametrize("kind", ["entry", "page", "block"])
def test_a_cell_that_is_gone(found: Scene, kind: str, fill: bytes) -> None:
    for topic in found.expected:
        for at, size in parts(found, kind, topic)[:2]:
            outcome = found.survive([Write("state", at, fill * size)])
            assert outcome.touched == {topic}
            found.check(outcome)
            if kind == "entry":
                assert total(outcome) <= 1


@pytest.mark.random
@pytest.mark.parametrize("kind", ["entry", "page", "block"])
@pytest.mark.parametrize("number", range(len(VALUES)))
def test_any_word_of_a_cell(found: Scene, kind: str, number: int) -> None:
    at, size = parts(found, kind, "memory")[0]
    for word in range(0, min(size, 320), 8):
        if is_due(word // 8, number):
            write = Write("state", at + word, struct.pack("<Q", VALUES[number]))
            found.check(found.survive([write]))


@pytest.mark.random
@pytest.mark.parametrize("number", range(len(VALUES)))
def test_any_word_of_an_owner(found: Scene, number: int) -> None:
    for owner in found.owners.values():
        if owner.name not in ("memory", "x") or found.topic_of(owner) != "memory":
            continue
        for word in range(8, 240, 8):
            if is_due(word // 8, number):
                write = Write("state", owner.offset + word, struct.pack("<Q", VALUES[number]))
                found.check(found.survive([write]))


def test_a_record_that_is_not_sound_is_counted(found: Scene) -> None:
    at, *_ = [
        part.offset for part in found.parts if (part.memory, part.topic) == ("records", "memory")
    ]
    outcome = found.survive([Write("records", at, struct.pack("<I", 7))])
    found.check(outcome)
    assert outcome.touched == {"memory"}
    assert outcome.damaged >= 1
    assert outcome.lost["memory"] >= 1


def test_a_note_that_has_changed_is_counted(found: Scene) -> None:
    notes = [part for part in found.notes if part.topic == "paused"]
    assert len(notes) >= 2, "of the topic and of its channel"
    for part in notes:
        outcome = found.survive([Write("state", part.offset + 8, struct.pack("<I", 1 << 30))])
        found.check(outcome)
        assert outcome.damaged >= 1
        assert total(outcome) == 0, "a note contains no messages"


@pytest.mark.random
@pytest.mark.parametrize("number", range(len(KINDS)))
@pytest.mark.parametrize("memory", ["state", "records"])
def test_any_entry_of_a_table(found: Scene, memory: str, number: int) -> None:
    for _, at, units in found.pieces[memory]:
        for unit in {at // UNIT, at // UNIT + units} - {0}:
            if unit < SIZE // UNIT and is_due(unit, number):
                found.check(found.survive([Write(memory, unit, bytes([KINDS[number]]))]))


def test_damage_in_a_topic_that_is_lost_entirely(found: Scene) -> None:
    """All blocks of a topic: the topic is empty, and others are not."""
    writes = [Write("state", at, bytes(size)) for at, size in parts(found, "block", "memory")]
    outcome = found.survive(writes)
    found.check(outcome)
    assert outcome.found["memory"]["x"] == []
    assert outcome.damaged >= 1
