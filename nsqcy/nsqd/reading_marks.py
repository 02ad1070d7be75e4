"""Marks of what a worker reads while it restores the memory of a dead worker.

Owns the page that the worker and the master share, and the choice of the parts that the next worker
leaves out if this one dies while it reads. Independent of the contents of the memory.

The page holds one mark, little-endian:

     0  8 bytes  MAGIC, or zeros: the worker reads nothing
     8  u64      block; 0: the state of the topic itself
    16  u16      length of the topic's name
    18  the name
"""

import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from nsqcy.names import MAX_NAME_LENGTH, is_valid_name

PAGE = 4096
MAGIC = b"nsqdmrk1"
WHOLE_TOPIC = 0
_HEAD = struct.Struct("<8sQH")
_NOTHING = bytes(len(MAGIC))


class Mark(NamedTuple):
    """A part of the memory: a block of a topic, or WHOLE_TOPIC."""

    topic: str
    block: int


class ReadingMarks:
    """The worker's end of the page. Each mark replaces the previous one.

    Every change is one system call: a worker that dies leaves the old mark or the new one. Raises
    OSError.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def begin(self, topic_key: bytes, block: int) -> None:
        """Mark a block of a topic, or its state (block 0), before it is read."""
        os.pwrite(self._fd, _HEAD.pack(MAGIC, block, len(topic_key)) + topic_key, 0)

    def end(self) -> None:
        """Report that nothing is being read."""
        os.pwrite(self._fd, _NOTHING, 0)


def create_page() -> int:
    """Return the descriptor of a new page without a mark. Raises OSError.

    The page is filled, so that a lack of memory shows here and not in the worker.
    """
    fd = os.memfd_create("nsqd-marks", os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, bytes(PAGE), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> Mark | None:
    """Return the mark on a page; None if there is none. The page may contain anything."""
    try:
        data = os.pread(fd, _HEAD.size + MAX_NAME_LENGTH, 0)
    except OSError:
        return None
    if len(data) < _HEAD.size:
        return None
    magic, block, length = _HEAD.unpack_from(data)
    name = data[_HEAD.size : _HEAD.size + length]
    if magic != MAGIC or len(name) != length or not is_valid_name(name):
        return None
    return Mark(name.decode(), block)


class LeftOut:
    """The parts that the next worker leaves out: at the first death, the block that was being read;
    at the second death in the same topic, the topic. A death while the topic's state was being read
    leaves out the topic at once, because its blocks cannot be read without the state."""

    def __init__(self, parts: Iterable[Mark] = ()) -> None:
        self.parts = list(parts)

    def died_at(self, mark: Mark) -> Mark | None:
        """Handle a death while this was being read. Return the part that is left out from now on;
        None if it already was."""
        before = [each for each in self.parts if each.topic == mark.topic]
        if any(each.block == WHOLE_TOPIC for each in before):
            return None
        found = Mark(mark.topic, WHOLE_TOPIC) if before else mark
        if found.block == WHOLE_TOPIC:
            self.parts = [each for each in self.parts if each.topic != mark.topic]
        self.parts.append(found)
        return found
