"""The disk format in slow, obvious Python: builds records and runs, and reads segments back.

Written only from docs/DISKFORMAT.md; shares no code with the product.
"""

import struct
from pathlib import Path
from typing import NamedTuple

RECORD = struct.Struct("<IIQQqIHH")
SEGMENT_HEADER = struct.Struct("<8sII16sQQqQ")
FOOTER = struct.Struct("<QQQqqQQQ")
RUN = struct.Struct("<QQQQIIqq")
TRAILER = struct.Struct("<II8s")
JOURNAL_HEADER = struct.Struct("<8sII16s")
IDS_HEADER = 16
DELAYED = 1
COPY = 2
DAMAGED = 0x8000

_TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = (_n >> 1) ^ (0x82F63B78 if _n & 1 else 0)
    _TABLE.append(_n)


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Message(NamedTuple):
    seq: int
    body: bytes
    id: int = 0
    timestamp: int = 0
    delay: int = 0
    copy: bool = False


def record(message: Message, crc: bool = False) -> bytes:
    """Return a record as in memory; with `crc`, as on disk."""
    extensions = struct.pack("<HHIq", 1, 8, 0, message.delay) if message.delay else b""
    tail = extensions + message.body
    length = max(48, (RECORD.size + len(tail) + 7) // 8 * 8)
    head = RECORD.pack(
        length,
        0,
        message.seq,
        message.id,
        message.timestamp,
        len(message.body),
        len(extensions),
        (DELAYED if message.delay else 0) | (COPY if message.copy else 0),
    )
    image = (head + tail).ljust(length, b"\0")
    if crc:
        image = image[:4] + struct.pack("<I", crc32c(image[8:])) + image[8:]
    return image


def segment_header(number: int, log_id: bytes = bytes(16)) -> bytes:
    """Return the header of a segment that begins with the record `number`."""
    head = bytearray(struct.pack("<8sII16sQQqQ", b"SQCYSEG\0", 1, 0, log_id, number, number, 1, 0))
    struct.pack_into("<I", head, 12, crc32c(bytes(head)))
    return bytes(head)


def run(messages: list[Message], crc: bool = False) -> bytearray:
    return bytearray(b"".join(record(m, crc) for m in messages))


def message(seq: int, size: int = 20, delay: int = 0) -> Message:
    """Return a message with content derived from its seq."""
    body = (b"%d " % seq * (size // 2 + 1))[:size]
    return Message(seq, body, seq * 16 + 1, 1_700_000_000_000_000_000 + seq, delay)


def messages(first: int, count: int, size: int = 20) -> list[Message]:
    return [message(seq, size) for seq in range(first, first + count)]


class Walked(NamedTuple):
    offset: int
    length: int
    message: Message
    damaged: bool


def walk(data: bytes) -> list[Walked]:
    """Parse the records in a run. The framing must be intact."""
    found, at = [], 0
    while at < len(data):
        length, _, seq, id_, timestamp, body, ext, attributes = RECORD.unpack_from(data, at)
        assert length >= 48 and length % 8 == 0 and at + length <= len(data)
        assert RECORD.size + ext + body <= length
        delay = struct.unpack_from("<q", data, at + 48)[0] if attributes & DELAYED else 0
        start = at + RECORD.size + ext
        found.append(
            Walked(
                at,
                length,
                Message(
                    seq,
                    bytes(data[start : start + body]),
                    id_,
                    timestamp,
                    delay,
                    bool(attributes & COPY),
                ),
                bool(attributes & DAMAGED),
            )
        )
        at += length
    return found


class Footer(NamedTuple):
    records: int
    first_seq: int
    last_seq: int
    first_time: int
    last_time: int
    max_id: int
    data_end: int
    runs: list[tuple[int, ...]]


def footer(data: bytes) -> Footer | None:
    length, crc, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    if magic != b"SQCYEND\0" or length > len(data):
        return None
    image = data[len(data) - length : len(data) - TRAILER.size]
    if crc32c(image) != crc:
        return None
    *facts, count = FOOTER.unpack_from(image)
    runs = [RUN.unpack_from(image, FOOTER.size + i * RUN.size) for i in range(count)]
    return Footer(*facts, runs)


def segment_messages(path: Path) -> list[Message]:
    """Return the messages in a closed segment, after checking every checksum."""
    data = path.read_bytes()
    end = footer(data)
    assert end is not None, f"{path} has no footer"
    records = data[SEGMENT_HEADER.size : end.data_end]
    for found in walk(records):
        image = records[found.offset : found.offset + found.length]
        assert struct.unpack_from("<I", image, 4)[0] == crc32c(image[8:])
    return [found.message for found in walk(records)]


TAKEN_KEY, TAKEN_PRIORITY, TAKEN_ID = 1, 2, 4
HAS_TAKEN, ONCE = 64, 128


class Taken(NamedTuple):
    """The key, priority and id that a record stores; None: its headers give the value."""

    given: int | None = None
    key: bytes | None = None
    priority: int | None = None
    id: bytes | None = None
    once: bool = False


def extensions(data: bytes) -> dict[int, bytes]:
    """Return the values of a record's extensions, by type."""
    found, at = {}, RECORD.size
    end = at + RECORD.unpack_from(data)[6]
    while at < end:
        kind, size, _ = struct.unpack_from("<HHI", data, at)
        found[kind] = data[at + 8 : at + 8 + size]
        at += 8 + (size + 7) // 8 * 8
    return found


def taken(data: bytes) -> Taken:
    attributes = RECORD.unpack_from(data)[7]
    value = extensions(data).get(6)
    once = bool(attributes & ONCE)
    assert (value is not None) == bool(attributes & HAS_TAKEN)
    if value is None:
        return Taken(once=once)
    given, priority, key, id_ = value[:4]
    assert len(value) == 4 + key + id_
    return Taken(
        given,
        value[4 : 4 + key] if given & TAKEN_KEY else None,
        priority if given & TAKEN_PRIORITY else None,
        value[4 + key :] if given & TAKEN_ID else None,
        once,
    )


def stored(folder: Path) -> list[Taken]:
    """Return what the records in a topic's segments store, in the order of the files."""
    found = []
    for path in sorted(folder.glob("*.seg")):
        data = path.read_bytes()
        end = footer(data)
        records = data[SEGMENT_HEADER.size : end.data_end if end else len(data)]
        found += [taken(records[each.offset :][: each.length]) for each in walk(records)]
    return found


def renumbered(content: bytes, header: int, number: int) -> bytes:
    """Return a file with this version in its header, which has `header` bytes and a valid
    checksum."""
    changed = bytearray(content)
    struct.pack_into("<II", changed, 8, number, 0)
    covered = bytes(changed[: 12 if header == IDS_HEADER else header])
    struct.pack_into("<I", changed, 12, crc32c(covered))
    return bytes(changed)
