"""A file of deduplication ids: it is read or refused, and writing what was read gives a file that
is read alike."""

import struct

from nsqcy.base.core import crc32c
from nsqcy.broker.core import Once

COVERS = ["broker/once.pyx"]
WORDS = [b"SQCYIDS\0", bytes(8), b"\xff" * 8, b"\1\0\0\0"]
WINDOW = 1000
WALL = 1_700_000_000_000_000_000
MAXIMUM = 1 << 40
HEAD = b"SQCYIDS\0" + (1).to_bytes(4, "little")
HEAD += crc32c(HEAD).to_bytes(4, "little")
ID = struct.Struct("<16sq")


def _batch(ids: bytes) -> bytes:
    count = (len(ids) // ID.size).to_bytes(4, "little")
    return count + crc32c(count + ids).to_bytes(4, "little") + ids


def seeds() -> list[bytes]:
    ids = [ID.pack(bytes([i]) * 16, WALL + i) for i in range(5)]
    old = ID.pack(b"o" * 16, WALL - WINDOW)
    gone = ID.pack(b"g" * 16, -(1 << 63))
    return [
        HEAD,
        HEAD + _batch(b"".join(ids)),
        HEAD + _batch(ids[0]) + _batch(ids[0] + old + gone),
        HEAD + _batch(b""),
    ]


def sound(data: bytes) -> bytes:
    """Return a file with a correct head, and batches with correct checksums."""
    result, at = HEAD, len(HEAD)
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little") * ID.size
        size = min(size, (len(data) - at - 8) // ID.size * ID.size)
        result += _batch(data[at + 8 : at + 8 + size])
        at += 8 + size
    return result


def one(data: bytes) -> None:
    once = Once(WINDOW, MAXIMUM)
    if not once.restore_file(1, data, WALL):
        return
    assert data.startswith(HEAD)
    counting = set()
    at = len(HEAD)
    while at < len(data):
        count = int.from_bytes(data[at : at + 4], "little")
        for hash, time in ID.iter_unpack(data[at + 8 : at + 8 + count * ID.size]):
            if time != -(1 << 63) and abs(time - WALL) < WINDOW:
                counting.add(hash)
        at += 8 + count * ID.size
    for hash in counting:
        assert not once.publish(hash, WALL, 1)
    assert once.publish(b"an id of no file", WALL, 1) == (b"an id of no file" not in counting)
