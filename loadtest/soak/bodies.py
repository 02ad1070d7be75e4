"""Message bodies: their sizes, their publisher and number, and a checksum that detects any changed
byte.

4 bytes   publisher
4         number of the message, from 0, for this publisher
4         CRC-32 over the run, the preceding eight bytes, and everything that follows
9         whether the message was deferred, and its due time, nanoseconds since 1970, including the
          delay; only in bodies that are long enough
"""

import random
import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple, Self

NAME, CHECKSUM, DUE = struct.Struct(">II"), struct.Struct(">I"), struct.Struct(">?q")
MIN_BYTES = NAME.size + CHECKSUM.size  # minimum size of a body
TIMED_BYTES = MIN_BYTES + DUE.size  # minimum size of a body with its due time
MAX_BYTES = 64 << 20
SHIFTS = 1021  # number of fill patterns, so that a mixture of two messages is invalid


class Stamp(NamedTuple):
    publisher: int
    number: int
    due: int | None = None
    deferred: bool = False


@dataclass(frozen=True)
class Sizes:
    """Body sizes: ranges of bytes, each with its weight."""

    ranges: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, *, minimum: int = TIMED_BYTES) -> Self:
        """Parse `200`, `100-2000`, or several with their weights: `200:9,1000-65536:1`. Raises
        ValueError for invalid text, and for bodies of fewer than `minimum` bytes."""
        ranges, weights = [], []
        for part in text.split(","):
            size, _, weight = part.partition(":")
            low, dash, high = size.partition("-")
            try:
                ranges.append((int(low), int(high if dash else low)))
                weights.append(float(weight or 1))
            except ValueError:
                raise ValueError(f"sizes {text!r}: {part!r} is no SIZE or LOW-HIGH") from None
        if not all(minimum <= low <= high <= MAX_BYTES for low, high in ranges):
            raise ValueError(f"sizes {text!r}: a body has {minimum} to {MAX_BYTES} bytes")
        if not all(0 < weight < float("inf") for weight in weights):
            raise ValueError(f"sizes {text!r}: a weight is more than 0")
        return cls(tuple(ranges), tuple(weights))

    @property
    def largest(self) -> int:
        return max(high for _, high in self.ranges)

    def draw(self) -> int:
        low, high = self.ranges[0]
        if len(self.ranges) > 1:
            ((low, high),) = random.choices(self.ranges, self.weights)
        return low if low == high else random.randint(low, high)


class Bodies:
    """Creates and parses one run's bodies. Their filler is random, so compression gains nothing."""

    def __init__(self, run: int, sizes: Sizes) -> None:
        self._run = run & 0xFFFFFFFF
        self._sizes = sizes
        self._filling = random.Random(run).randbytes(sizes.largest + SHIFTS)

    def make(self, stamp: Stamp) -> bytes:
        size = self._sizes.draw() - MIN_BYTES
        name = NAME.pack(stamp.publisher, stamp.number)
        at = stamp.number % SHIFTS
        rest = self._filling[at : at + size]
        if size >= DUE.size:
            rest = DUE.pack(stamp.deferred, stamp.due) + rest[DUE.size :]
        return name + self._checksum(name, rest) + rest

    def read(self, body: bytes) -> Stamp | None:
        """Return the stamp of a body; None if the body was changed, or belongs to a different
        run."""
        name, checksum, rest = body[: NAME.size], body[NAME.size : MIN_BYTES], body[MIN_BYTES:]
        if len(body) < MIN_BYTES or self._checksum(name, rest) != checksum:
            return None
        publisher, number = NAME.unpack(name)
        if len(rest) < DUE.size:
            return Stamp(publisher, number)
        deferred, due = DUE.unpack_from(rest)
        return Stamp(publisher, number, due, deferred)

    def _checksum(self, name: bytes, rest: bytes) -> bytes:
        return CHECKSUM.pack(zlib.crc32(rest, zlib.crc32(name, self._run)))
