"""The blocks of columns that answer LOG_FETCH, decoded as described in docs/PROTOCOL.md."""

import struct
from dataclasses import dataclass
from typing import Any

from nsqcy.base.core import crc32c

HEADER = struct.Struct("<QII16sQIIIIQ")
MAGIC = int.from_bytes(b"SQCYBLK\0", "little")
DAMAGED = 1
COLUMNS = ["timestamp", "id", "defer", "headers", "body"]
ALL = ",".join(COLUMNS)


@dataclass(frozen=True)
class Columns:
    """A block. A column that was not requested is None."""

    log_id: str
    base_seq: int
    count: int
    damaged: bool
    timestamp: tuple[int, ...] | None
    id: tuple[int, ...] | None
    defer: tuple[int, ...] | None
    headers: list[bytes] | None
    body: list[bytes] | None

    @property
    def end(self) -> int:
        return self.base_seq + self.count


def read_columns(block: bytes) -> Columns:
    magic, version, crc, log_id, base_seq, count, flags, wanted, zero, size = HEADER.unpack_from(
        block
    )
    assert magic == MAGIC
    assert version == 1
    assert zero == 0
    assert size == len(block)
    assert crc == crc32c(block[16:])
    at = HEADER.size
    found: dict[str, Any] = {}
    for bit, name in enumerate(COLUMNS):
        if not wanted & 1 << bit:
            found[name] = None
        elif name in ("headers", "body"):
            offsets = struct.unpack_from(f"<{count + 1}I", block, at)
            start = at + 4 * (count + 1)
            assert offsets[0] == 0
            found[name] = [block[start + offsets[i] : start + offsets[i + 1]] for i in range(count)]
            end = start + offsets[count]
            at = end + -end % 8
            assert not any(block[end:at])
        else:
            found[name] = struct.unpack_from(f"<{count}{'Q' if name == 'id' else 'q'}", block, at)
            at += 8 * count
    assert at == len(block)
    assert flags & ~DAMAGED == 0
    return Columns(log_id.hex(), base_seq, count, bool(flags & DAMAGED), **found)
