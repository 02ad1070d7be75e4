"""Sizes and identities of a copy's files, kept up to date without accessing the disk.

A segment is identified by its first bytes: its header contains the log, the segment number and the
creation time. Other files are replaced or changed in place, and have no identity.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from nsqcy.copies.messages import Extent
from nsqcy.copies.ports import Unreadable
from nsqcy.net.core import FrameData
from nsqcy.nsqd.copies.file_list import SEGMENT, FileList, is_listed
from nsqcy.storage.core import RunBytes, is_segment_header
from nsqcy.util.files import read_start

Contents = bytes | bytearray | FrameData | RunBytes

HEADER = 64  # bytes in a segment header


class FileTable:
    """Files in a directory, by relative path."""

    def __init__(self) -> None:
        self.list: FileList | None = None
        """The list of these files on the disk."""
        self._sizes: dict[str, int] = {}
        self._headers: dict[str, bytes] = {}
        self._growing: set[str] = set()
        """Segments whose sizes on the list may be too small."""
        self._noted: dict[str, int] = {}
        """Sizes of these segments at the last call of `list_sizes`."""

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

    def sizes(self) -> Mapping[str, int]:
        return self._sizes

    def total(self) -> int:
        """Return the total size of all files, in bytes."""
        return sum(self._sizes.values())

    def written(self, path: str, offset: int, data: Contents) -> None:
        """Record a write that has been submitted."""
        self._sizes[path] = max(self._sizes.get(path, 0), offset + len(data))
        if offset and path in self._growing:
            return  # the most frequent case
        if path.endswith(SEGMENT):
            self._growing.add(path)
            if offset == 0 and len(data) >= HEADER:
                self._headers[path] = bytes(memoryview(data)[:HEADER])
        self._put_on_list(path)  # a new file is created by its first write

    def shrinks(self, path: str, size: int | None) -> None:
        """Record that a file is about to be truncated or replaced, and may then have this smaller
        size. If `size` is None, the file is about to be deleted."""
        if self.list is not None:
            self.list.reduce(path, size)

    def truncated(self, path: str, size: int) -> None:
        self._sizes[path] = size
        if size < HEADER:
            self._headers.pop(path, None)

    def renamed(self, path: str, to: str) -> None:
        """Record a submitted change of a name."""
        self._sizes[to] = self._sizes.pop(path, 0)
        header = self._headers.pop(path, None)
        if header is not None:
            self._headers[to] = header
        self._put_on_list(to)

    def deleted(self, path: str) -> None:
        self._sizes.pop(path, None)
        self._headers.pop(path, None)

    def list_sizes(self) -> None:
        """List the sizes of the segments that have not grown since the last call: by then, the disk
        has their data."""
        sizes = {path: self._sizes[path] for path in self._growing if path in self._sizes}
        resting = {path: size for path, size in sizes.items() if self._noted.get(path) == size}
        self._growing = sizes.keys() - resting.keys()
        self._noted = sizes
        if resting and self.list is not None:
            self.list.put(resting)

    def list_final_sizes(self) -> None:
        """List the sizes of all files: none of them changes any more."""
        files = self.list
        if files is not None:
            files.replace({path: size for path, size in self._sizes.items() if path in files})

    def listed_sizes(self, listed: Mapping[str, int]) -> dict[str, int]:
        """Return the files that belong on the list, and the size that each has at least, according
        to an earlier list. A journal may be replaced with a shorter one."""
        return {
            path: min(size, listed.get(path, 0)) if path.endswith(SEGMENT) else 0
            for path, size in self._sizes.items()
            if is_listed(path)
        }

    def _put_on_list(self, path: str) -> None:
        if self.list is not None and path not in self.list and is_listed(path):
            self.list.put({path: 0})

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


def _read_header(path: Path) -> bytes:
    """Return a segment's header; empty if it is damaged. Blocks; raises OSError."""
    for _ in range(2):  # a second read may return intact data
        header = read_start(path, HEADER)
        if is_segment_header(header):
            return header
    return b""
