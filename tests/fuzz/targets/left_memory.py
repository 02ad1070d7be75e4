"""The memory of a dead worker, with damage: the next worker restores all topics and delivers their
messages. Topics without damage lose nothing.

An input is a list of changes: what is changed, a place, and a value.
"""

import random
import struct

from support.damaged_memory import SIZE, UNIT, Scene, Write, scene

COVERS = [
    "storage/left_memory.pyx",
    "storage/block_pool.pyx",
    "broker/memory_recovery.pyx",
    "broker/recovery.pyx",
]
CHANGE = struct.Struct("<BIQ")
MAX_CHANGES = 12
BIT, WORD, FILL, COPY, TABLE, RECORDS_TABLE, RECORD, NOTE = range(8)
WORDS = [
    struct.pack("<Q", value)
    for value in (0, 1, 2, 63, 64, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)
]


def seeds() -> list[bytes]:
    """Return one change of each kind, in many places."""
    chance = random.Random(5)
    found = [b""]
    for kind in range(8):
        for _ in range(6):
            found.append(CHANGE.pack(kind, chance.getrandbits(32), chance.getrandbits(8)))
    found.append(b"".join(found))
    return found


def fresh(chance: random.Random) -> bytes:
    value = chance.choice([0, 1, 2**63, 2**64 - 1, chance.getrandbits(64), chance.getrandbits(12)])
    return CHANGE.pack(chance.randrange(8), chance.getrandbits(32), value)


def writes(found: Scene, data: bytes) -> list[Write]:
    result = []
    whole = len(data) - len(data) % CHANGE.size
    for kind, place, value in list(CHANGE.iter_unpack(data[:whole]))[:MAX_CHANGES]:
        result.append(_write(found, kind % 8, place, value))
    return result


def _write(found: Scene, kind: int, place: int, value: int) -> Write:
    memory = "records" if kind == RECORD else "state"
    parts = [part for part in found.used if part.memory == memory]
    if kind in (TABLE, RECORDS_TABLE):
        memory = "records" if kind == RECORDS_TABLE else "state"
        units = [at // UNIT for _, at, _ in found.pieces[memory]]
        unit = (units[place % len(units)] + place // 1000 % 3) % (SIZE // UNIT)
        return Write(memory, unit, bytes([value & 255]))
    if kind == NOTE:
        # Change the size in the header of a note.
        part = found.notes[place % len(found.notes)]
        return Write(memory, part.offset + 8, struct.pack("<I", value & 0xFFFFFFFF))
    part = parts[place % len(parts)]
    if kind == FILL:
        return Write(memory, part.offset, bytes([value & 255]) * part.size)
    if kind == COPY:
        other = [each for each in parts if each.size == part.size]
        source = other[value % len(other)]
        return Write(memory, part.offset, found.bytes_of(memory, source.offset, part.size))
    # Most fields are words.
    at = place // len(parts) * 8 % max(8, min(part.size, 4096)) + part.offset
    if kind == BIT:
        (word,) = struct.unpack("<Q", found.bytes_of(memory, at, 8))
        return Write(memory, at, struct.pack("<Q", word ^ 1 << value % 64))
    if value >> 60 == 5:  # half a word
        return Write(memory, at + (value >> 59 & 4), struct.pack("<I", value & 0xFFFFFFFF))
    return Write(memory, at, struct.pack("<Q", value))


def one(data: bytes) -> None:
    found = scene()
    outcome = found.survive(writes(found, data))
    found.check(outcome)
    if not data:
        assert outcome.damaged == 0
