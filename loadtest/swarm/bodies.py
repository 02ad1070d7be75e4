"""Message bodies: their sizes, and their header with publisher and time.

8 bytes   due time, nanoseconds since 1970; for a deferred message, including its delay
8         run, so that messages left behind by a different run are recognised
4         publisher
4         number of the message, from 0, for this publisher and topic
1         whether the message was deferred
"""

import os
import random
import struct
from dataclasses import dataclass
from typing import NamedTuple, Self

HEADER = struct.Struct(">qQII?")
MIN_BYTES = HEADER.size  # minimum bytes of a body
MAX_BYTES = 64 << 20


class Stamp(NamedTuple):
    due: int
    run: int
    publisher: int
    number: int
    deferred: bool


def read(body: bytes) -> Stamp | None:
    """Return the stamp of a body; None if it is too short for one."""
    return Stamp(*HEADER.unpack_from(body)) if len(body) >= MIN_BYTES else None


@dataclass(frozen=True)
class Sizes:
    """Body sizes: ranges of bytes, each with its weight."""

    ranges: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, *, minimum: int = MIN_BYTES) -> Self:
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
    """Creates bodies. The bytes after the header are random, so that compression gains nothing."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._filling = os.urandom(sizes.largest - MIN_BYTES)

    def make(self, stamp: Stamp) -> bytes:
        return HEADER.pack(*stamp) + self._filling[: self._sizes.draw() - MIN_BYTES]
