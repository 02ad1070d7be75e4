"""A topic's journal: it is read or refused. Reading it and writing it again does not change its
meaning."""

import random
from dataclasses import replace

from nsqcy.storage import journal
from nsqcy.storage.journal import ChannelState, Delta, Kind, TopicState

COVERS = ["storage/journal.py"]
WORDS = [bytes([kind, 0]) for kind in range(1, 14)] + [b"\1\x80", b"\2\x80", b"\xff" * 8, b"\0" * 8]
ENTRY = journal.Entry(5, 1, 64, 0, 2, 0, 10).pack()


def state() -> TopicState:
    channel = ChannelState(
        "c", True, 4, 2, ENTRY * 3, ((6, 7), (9, 12)), 8, ids=b"\1\0\0\0\0\0\0\0" * 3
    )
    return TopicState(
        log_id=bytes(range(16)),
        next_seq=20,
        fanout_seq=10,
        channels=(channel, ChannelState("d")),
        missing=((3, 5), (8, 9)),
    )


def seeds() -> list[bytes]:
    """Return a snapshot after byte 0, and deltas after byte 1."""
    snapshot = journal.encode_snapshot(state())
    deltas = [
        Delta(Kind.CHANNEL_CREATED, "e", 3),
        Delta(Kind.CHANNEL_DELETED, "c"),
        Delta(Kind.CURSOR_MOVED, "c", 9),
        Delta(Kind.ENTRY_FINISHED, "c", 5),
    ]
    return [b"\0" + snapshot, *(b"\1" + journal.encode_delta(each) for each in deltas)]


def fresh(chance: random.Random) -> bytes:
    kind = chance.choice([*range(1, 14), 0x8001, 0x8002])
    payload = chance.choice([b"", ENTRY, b"\1\0\0\0\0\0\0\0c", bytes(40), chance.randbytes(32)])
    return kind.to_bytes(2, "little") + b"\0\0" + len(payload).to_bytes(4, "little") + payload


def sound(data: bytes) -> bytes:
    """Reduce each announced section length to the number of bytes that are left."""
    result, at = bytearray(data), 5
    while data[:1] == b"\0" and at + 8 <= len(result):
        size = min(int.from_bytes(result[at + 4 : at + 8], "little"), len(result) - at - 8)
        result[at + 4 : at + 8] = size.to_bytes(4, "little")
        at += 8 + size
    return bytes(result)


def one(data: bytes) -> None:
    kind, content = data[:1], data[1:]
    try:
        if kind == b"\0":
            found = journal.decode_snapshot(content)
            assert journal.decode_snapshot(journal.encode_snapshot(found)) == found
            journal.replay([content])
        else:
            delta = journal.decode_delta(content)
            assert journal.decode_delta(journal.encode_delta(delta)) == delta
            after = journal.apply(state(), delta)
            again = journal.decode_snapshot(journal.encode_snapshot(after))
            assert _written(again) == _written(after)
    except journal.JournalError:
        pass


def _written(found: TopicState) -> bytes:
    return journal.encode_snapshot(replace(found))
