"""Message bodies: their publisher, and a checksum that detects any changed byte.

2 bytes   publisher
4         number of the message, from 0, for this publisher
4         CRC-32 over the run, the preceding six bytes, and everything that follows
8         due time, nanoseconds since 1970; only in bodies that are long enough
"""

import random
import struct
import zlib
from typing import NamedTuple

from loadtest.swarm.bodies import Sizes

NAME, CHECKSUM, DUE = struct.Struct(">HI"), struct.Struct(">I"), struct.Struct(">q")
MIN_BYTES = NAME.size + CHECKSUM.size  # minimum bytes of a body
SIZES = Sizes.parse("10-100:60,100-1000:30,1000-10000:9,10000-102400:1", minimum=MIN_BYTES)
SHIFTS = 1021  # number of fill patterns, so that a mixture of two messages is invalid


class Stamp(NamedTuple):
    publisher: int
    number: int
    due: int | None


class Bodies:
    """Creates and parses one run's bodies."""

    def __init__(self, run: int, sizes: Sizes = SIZES) -> None:
        self._run = run & 0xFFFFFFFF
        self._sizes = sizes
        self._filling = random.Random(run).randbytes(sizes.largest + SHIFTS)

    def make(self, publisher: int, number: int, due: int) -> bytes:
        size = self._sizes.draw() - MIN_BYTES
        name = NAME.pack(publisher, number)
        at = number % SHIFTS
        rest = self._filling[at : at + size]
        if size >= DUE.size:
            rest = DUE.pack(due) + rest[DUE.size :]
        return name + self._checksum(name, rest) + rest

    def read(self, body: bytes) -> Stamp | None:
        """Return None if the body was changed, or belongs to a different run."""
        name, checksum, rest = body[: NAME.size], body[NAME.size : MIN_BYTES], body[MIN_BYTES:]
        if len(body) < MIN_BYTES or self._checksum(name, rest) != checksum:
            return None
        due = DUE.unpack_from(rest)[0] if len(rest) >= DUE.size else None
        publisher, number = NAME.unpack(name)
        return Stamp(publisher, number, due)

    def _checksum(self, name: bytes, rest: bytes) -> bytes:
        return CHECKSUM.pack(zlib.crc32(rest, zlib.crc32(name, self._run)))
