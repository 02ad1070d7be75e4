"""Sizes and identities of a copy's files, kept up to date without accessing the disk.

A segment is identified by its first bytes: its header contains the log, the segment number and the
creation time. Other files are replaced or changed in place, and have no identity.
"""

import errno
import os
import sys
from pathlib import Path

from nsqcy.copies.messages import Extent
from nsqcy.copies.ports import Unreadable
from nsqcy.storage.core import is_segment_header

HEADER = 64  # bytes in a segment header
SEGMENT = ".seg"


class FileTable:
    """Files in a directory, by relative path."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._headers: dict[str, bytes] = {}

    @classmethod
    def scan(cls, root: Path) -> "FileTable":
        """Return the files in the topic directories below `root`. Blocks; raises Unreadable.

        A damaged header identifies nothing: such a segment has no identity.
        """
        try:
            return cls._scan(root)
        except OSError as error:
            raise Unreadable(error.strerror) from error

    @classmethod
    def _scan(cls, root: Path) -> "FileTable":
        table = cls()
        for directory in root.iterdir():
            if not directory.is_dir():
                continue
            for file in directory.iterdir():
                path = os.fspath(file.relative_to(root))
                size = file.stat().st_size
                header = b""
                if path.endswith(SEGMENT) and size >= HEADER:
                    header = _read_header(file)
                table.written(path, 0, header)
                table._sizes[path] = size
        return table

    def __contains__(self, path: str) -> bool:
        return path in self._sizes

    def paths(self) -> list[str]:
        return list(self._sizes)

    def size(self, path: str) -> int:
        """Return the size of a file; 0 if it does not exist."""
        return self._sizes.get(path, 0)

    def extents(self) -> dict[str, Extent]:
        return {path: Extent(size, self._headers.get(path)) for path, size in self._sizes.items()}

    def total(self) -> int:
        """Return the total size of all files, in bytes."""
        return sum(self._sizes.values())

    def written(self, path: str, offset: int, data: bytes | bytearray) -> None:
        self._sizes[path] = max(self.size(path), offset + len(data))
        if offset == 0 and len(data) >= HEADER and path.endswith(SEGMENT):
            self._headers[path] = bytes(data[:HEADER])

    def truncated(self, path: str, size: int) -> None:
        self._sizes[path] = size
        if size < HEADER:
            self._headers.pop(path, None)

    def renamed(self, path: str, to: str) -> None:
        self._sizes[to] = self._sizes.pop(path, 0)
        header = self._headers.pop(path, None)
        if header is not None:
            self._headers[to] = header

    def deleted(self, path: str) -> None:
        self._sizes.pop(path, None)
        self._headers.pop(path, None)

    def identity(self, path: str) -> bytes | None:
        return self._headers.get(path)

    def unidentified(self) -> list[str]:
        """Return the segments whose headers are damaged."""
        return [
            path
            for path, size in self._sizes.items()
            if path.endswith(SEGMENT) and size >= HEADER and path not in self._headers
        ]

    def forget_identities(self) -> None:
        self._headers.clear()


def read_start(path: Path, limit: int = sys.maxsize) -> bytes:
    """Return the beginning of a file. Blocks; raises OSError, including after a short read:
    the rest may be intact."""
    with path.open("rb") as opened:
        size = min(os.fstat(opened.fileno()).st_size, limit)
        data = opened.read(size)
    if len(data) < size:
        raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
    return data


def _read_header(path: Path) -> bytes:
    """Return a segment's header; empty if it is damaged. Blocks; raises OSError."""
    for _ in range(2):  # a second read may return intact data
        header = read_start(path, HEADER)
        if is_segment_header(header):
            return header
    return b""
