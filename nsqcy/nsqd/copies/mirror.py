"""Forwards this process's changes to the files of its groups to the holders.

Uses the owner of a group, but is independent of streams and topics.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from nsqcy.copies.owner import Owner
from nsqcy.nsqd.copies.copy_files import Data
from nsqcy.nsqd.copies.file_table import FileTable
from nsqcy.storage.core import MirroredIo, RunBytes


class Mirror:
    """Passes the changes to an owned group to its owner.

    A group that is being created has no owner yet. Its first changes are counted: the owner's
    position 0 includes them, because each holder is filled with all files first.
    """

    def __init__(
        self,
        table: FileTable,
        owner: Callable[[], Owner | None],
        failed: Callable[[int], object],
    ) -> None:
        """
        table: the group's files on this node
        failed: called with the errno of the first change that failed here
        """
        self._table = table
        self._owner = owner
        self.failed = failed
        self.first = 0
        """Number of changes before the group existed."""

    def write(self, path: str, offset: int, data: bytes | RunBytes, are_records: bool) -> int:
        self._table.written(path, offset, data)
        owner = self._owner()
        if owner is None:
            return self._count()
        change = Data(data, are_records)
        return self.first + owner.write(path, offset, change, time.monotonic())

    def shrinks(self, path: str, size: int | None) -> None:
        self._table.shrinks(path, size)

    def truncate(self, path: str, size: int) -> int:
        self._table.truncated(path, size)
        owner = self._owner()
        if owner is None:
            return self._count()
        return self.first + owner.truncate(path, size, time.monotonic())

    def rename(self, path: str, to: str) -> int:
        self._table.renamed(path, to)
        owner = self._owner()
        if owner is None:
            return self._count()
        return self.first + owner.rename(path, to, time.monotonic())

    def delete(self, path: str) -> int:
        self._table.deleted(path)
        owner = self._owner()
        if owner is None:
            return self._count()
        return self.first + owner.delete(path, time.monotonic())

    def _count(self) -> int:
        self.first += 1
        return self.first


class OwnedFiles(NamedTuple):
    """Files of a group that this node owns or is creating."""

    io: MirroredIo
    mirror: Mirror
