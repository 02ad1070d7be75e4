"""NSQ's disk queues for tests, written and read in NSQ's exact format.

Shares no code with the product.
"""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

EPOCH = 1_700_000_000_000_000_000
FIRST_ID = 0x18A1D16A9F669000


class Message(NamedTuple):
    """A message in NSQ's format on disk."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


def message(number: int, size: int = 20, attempts: int = 0) -> Message:
    """Return a message with content derived from its number."""
    body = (b"<%06d>" % number).ljust(size, b"-")[: max(size, 8)]
    return Message(EPOCH + number, attempts, b"%016x" % (FIRST_ID + number), body)


def messages(first: int, count: int, size: int = 20, attempts: int = 0) -> list[Message]:
    return [message(number, size, attempts) for number in range(first, first + count)]


def record(one: Message) -> bytes:
    payload = struct.pack(">qH", one.timestamp, one.attempts) + one.id + one.body
    return struct.pack(">i", len(payload)) + payload


def image(several: Iterable[Message]) -> bytes:
    return b"".join(map(record, several))


def parse(data: bytes) -> list[Message]:
    """Return the messages in a file, which must be complete."""
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        assert 26 <= length <= len(data) - at - 4, (at, length)
        timestamp, attempts = struct.unpack_from(">qH", data, at + 4)
        found.append(
            Message(
                timestamp, attempts, data[at + 14 : at + 30], bytes(data[at + 30 : at + 4 + length])
            )
        )
        at += 4 + length
    return found


def data_file(directory: Path, queue: str, number: int = 0) -> Path:
    return directory / f"{queue}.diskqueue.{number:06d}.dat"


def meta_file(directory: Path, queue: str) -> Path:
    return directory / f"{queue}.diskqueue.meta.dat"


def write_meta(
    directory: Path, queue: str, depth: int, read: tuple[int, int], write: tuple[int, int]
) -> None:
    text = f"{depth}\n{read[0]},{read[1]}\n{write[0]},{write[1]}\n"
    meta_file(directory, queue).write_text(text)


def write_queue(
    directory: Path,
    queue: str,
    content: list[Message],
    *,
    read: int = 0,
    limit: int = 100 << 20,
    unsynced: int = 0,
) -> None:
    """Write a queue of `content`. Its first `read` messages are consumed, and the last `unsynced`
    ones are missing from the metadata. Files roll at `limit` bytes."""
    files = [bytearray()]
    ends = []
    for one in content:
        if files[-1] and len(files[-1]) + len(record(one)) > limit:
            files.append(bytearray())
        files[-1] += record(one)
        ends.append((len(files) - 1, len(files[-1])))
    ends = [(0, 0), *ends]
    for number, data in enumerate(files):
        if number >= ends[read][0]:
            data_file(directory, queue, number).write_bytes(data)
    known = len(content) - unsynced
    write_meta(directory, queue, known - read, ends[read], ends[known])


def read_meta(directory: Path, queue: str) -> tuple[int, tuple[int, int], tuple[int, int]]:
    depth, read, write = meta_file(directory, queue).read_text().split("\n")[:3]
    pairs = [tuple(map(int, pair.split(","))) for pair in (read, write)]
    return int(depth), pairs[0], pairs[1]  # type: ignore[return-value]


def read_queue(directory: Path, queue: str) -> list[Message]:
    """Return the messages that nsqd delivers from a cleanly closed queue; its metadata must
    agree."""
    if not meta_file(directory, queue).exists():
        assert not data_file(directory, queue).exists()
        return []
    depth, (first, offset), (last, end) = read_meta(directory, queue)
    found = []
    for number in range(first, last + 1):
        data = data_file(directory, queue, number).read_bytes()
        assert number < last or len(data) == end
        found += parse(data[offset:] if number == first else data)
    assert len(found) == depth
    return found


def queues(directory: Path) -> dict[str, list[Message]]:
    """Return everything in a data path, by queue."""
    names = {path.name.split(".diskqueue.")[0] for path in directory.glob("*.diskqueue.*")}
    return {name: read_queue(directory, name) for name in sorted(names)}
