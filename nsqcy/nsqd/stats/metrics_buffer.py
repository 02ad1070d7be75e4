"""Shared buffer that processes write one page to: memory that travels as a descriptor.

A page has megabytes. They go from the processes that make them to the one that sends them without
passing through the master, and are copied twice. Does not know what is written.

Each writer has its own region, far larger than it needs: unwritten parts take no memory. A plan
lists the pieces of the regions that make the page, in their order.
"""

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

REGION = 1 << 36

BULK = 512 << 10
"""Bytes that are read, written or compressed at once: 0.2 to 0.6 ms."""


class Piece(NamedTuple):
    at: int
    length: int


class SharedBuffer:
    """The descriptor, as long as this object exists."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("metrics", os.MFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)


class Writer:
    """Writes one piece after another into the region of that number."""

    def __init__(self, fd: int, region: int) -> None:
        self._fd = fd
        self._at = region * REGION

    def write(self, data: bytes | memoryview) -> Piece:
        piece = Piece(self._at, len(data))
        while len(data) > 0:
            written = os.pwrite(self._fd, data, self._at)
            self._at += written
            data = data[written:]
        return piece


def pieces(region: int, rows: Iterable[Sequence[int]]) -> list[tuple[Piece, ...]]:
    """Divide what was written there into rows of these sizes; return the pieces of each column."""
    at, found = region * REGION, []
    for row in rows:
        starts = accumulate(row, initial=at)
        found.append([Piece(start, length) for start, length in zip(starts, row, strict=False)])
        at += sum(row)
    return list(zip(*found, strict=True))


def plan(found: Iterable[Piece]) -> bytes:
    """Encode the pieces, to be handed on."""
    return array("Q", [number for piece in found if piece.length for number in piece]).tobytes()


def read(fd: int, plan: bytes, give_way: Callable[[], None]) -> bytearray:
    """Return the page. `give_way` is called between two slices of the work."""
    numbers = array("Q", plan)
    lengths = numbers[1::2]
    page = bytearray(sum(lengths))
    room = memoryview(page)
    left = BULK
    for at, length in zip(numbers[::2], lengths, strict=True):
        if left < length:
            give_way()
            left = BULK
        left -= length
        os.preadv(fd, [room[:length]], at)
        room = room[length:]
    return page
