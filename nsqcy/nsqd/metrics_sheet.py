"""The sheet that processes write a page on together: memory that travels as a descriptor.

A page is megabytes. This way they go from the processes that make them to the one that sends them
without passing through the master, and are copied twice. Knows nothing of what is written.

Each writer has a region of its own, far more than it needs: what is never written takes no memory.
A plan says which pieces of the regions are the page, in their order.
"""

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

REGION = 1 << 36

BULK = 256 << 10
"""Bytes that are written, read or compressed in one: about 0.2 ms."""


class Piece(NamedTuple):
    at: int
    length: int


class Sheet:
    """The descriptor, as long as somebody holds this."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("metrics", os.MFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)


class Writer:
    """Puts one piece after the other into the region of that number."""

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


def pieces(region: int, lengths: Iterable[int]) -> list[Piece]:
    """What was written there, by the length of each piece."""
    at, found = region * REGION, []
    for length in lengths:
        found.append(Piece(at, length))
        at += length
    return found


def plan(found: Iterable[Piece]) -> bytes:
    """These pieces, as they are handed on."""
    return array("Q", [number for piece in found for number in piece]).tobytes()


def read(fd: int, plan: bytes, give_way: Callable[[], None]) -> bytes:
    """The page. `give_way` is called between two slices of the work."""
    numbers = array("Q", plan)
    parts, left = [], BULK
    for piece in map(Piece, numbers[::2], numbers[1::2]):
        for at, length in _slices(piece):
            if left < length:
                give_way()
                left = BULK
            left -= length
            parts.append(os.pread(fd, length, at))
    return b"".join(parts)


def _slices(piece: Piece) -> Iterator[Piece]:
    end = piece.at + piece.length
    for at in range(piece.at, end, BULK):
        yield Piece(at, min(BULK, end - at))
