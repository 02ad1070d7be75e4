"""List of the files that a copy must have, next to them, and the size that each file has at least.

A removed or shortened file leaves no other trace in a copy: without the list, the copy would count
as whole, and the other members would delete what it lacks. Owns the format of the list and its
writes; the caller determines when a file is listed. After a crash at any time, the list names no
file that an intact disk lacks: a file is listed after it has been written, and unlisted before it
is deleted.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nsqcy.formats import FILE_LIST
from nsqcy.storage.core import FileHandle, IoThread
from nsqcy.storage.state_file import parse_object, signed
from nsqcy.util.files import read_start

LIST = "files.list"
SEGMENT = ".seg"
"""Suffix of a segment's name."""
JOURNAL = "journal"
SPARE = 1000  # maximum outdated lines before the list is rewritten


class DamagedList(ValueError):
    """The list is missing or damaged. Whether the files are intact is unknown."""


class FileList:
    """The list of a copy's files. Nothing here blocks."""

    def __init__(
        self,
        io: IoThread,
        root: Path,
        sizes: Mapping[str, int],
        written: Callable[[int], object],
        *,
        is_synced: bool,
    ) -> None:
        """
        sizes: the files at first, and the size that each has at least
        written: called with the errno of each write, or 0
        is_synced: whether the list must be correct even after a power failure
        """
        self._io = io
        self._root = root
        self._written = written
        self._is_synced = is_synced
        self._sizes: dict[str, int] = {}
        self._handle: FileHandle | None = None
        self._end = 0
        self._lines = 0
        self.replace(sizes)

    def __contains__(self, path: str) -> bool:
        return path in self._sizes

    def size(self, path: str) -> int:
        """Return the size that a file must have at least."""
        return self._sizes.get(path, 0)

    def replace(self, sizes: Mapping[str, int]) -> None:
        """Write the list anew. `sizes`: the size that each file has at least."""
        self._sizes = dict(sizes)
        content = _HEAD + _lines(sizes)
        self._handle = self._io.open(self._root / f"{LIST}.tmp", replace=True)
        self._handle.write(content, 0, self._written)
        self._handle.do("fsync", 0, self._written)
        self._handle.rename(self._root / LIST, self._written)
        self._end, self._lines = len(content), len(sizes)

    def put(self, sizes: Mapping[str, int]) -> None:
        """List files, with the minimum size of each. Call this after the changes through which the
        files reached these sizes."""
        self._sizes.update(sizes)
        self._append(_lines(sizes), len(sizes))

    def reduce(self, path: str, size: int | None) -> None:
        """Record that a file may have this smaller size from now on or, if `size` is None, may be
        absent. Call this before the change."""
        listed = self._sizes.get(path)
        if listed is None or (size is not None and size >= listed):
            return
        if size is None:
            del self._sizes[path]
        else:
            self._sizes[path] = size
        self._append(_lines({path: size}), 1)
        if self._is_synced and self._handle is not None:
            self._handle.do("sync", 0, self._written)

    def remove(self) -> None:
        """Delete the list, before all files are deleted."""
        self._sizes.clear()
        self._handle = None
        self._io.on_path_now("unlink", self._root / LIST)

    def _append(self, content: bytes, lines: int) -> None:
        if self._handle is None:
            return
        if self._lines > 2 * len(self._sizes) + SPARE:
            self.replace(self._sizes)
            return
        self._handle.write(content, self._end, self._written)
        self._end += len(content)
        self._lines += lines


def is_listed(path: str) -> bool:
    """Return whether a file belongs in the list: other files may come and go at any time."""
    return path.endswith(SEGMENT) or os.path.basename(path) == JOURNAL


def read_list(root: Path) -> dict[str, int]:
    """Return the files in a copy's list, and the size that each has at least. Blocks.

    The last line may be incomplete, because nsqd may have been killed while it wrote the line.
    Raises DamagedList; raises OSError if the list cannot be read now.
    """
    try:
        content = read_start(root / LIST)
    except FileNotFoundError:
        raise DamagedList(f"{LIST} is missing") from None
    if not content.startswith(_HEAD):
        raise DamagedList(f"{LIST} does not begin with a list of format {FILE_LIST.number}")
    sizes: dict[str, int] = {}
    lines = content.split(b"\n")
    for number, line in enumerate(lines[1:-1], 2):
        try:
            path, size = _parsed(line)
        except ValueError as error:
            if number == len(lines) - 1:
                break  # incomplete
            raise DamagedList(f"{LIST}: line {number} is damaged: {error}") from None
        if size is None:
            sizes.pop(path, None)
        else:
            sizes[path] = size
    return sizes


def lacking(listed: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Return the listed files that are missing, or shorter than listed. `found`: the sizes of the
    existing files."""
    return sorted(path for path, size in listed.items() if found.get(path, -1) < size)


def _lines(sizes: Mapping[str, int | None]) -> bytes:
    return b"".join(_line({"file": path, "size": size}) for path, size in sizes.items())


def _line(fields: Mapping[str, Any]) -> bytes:
    return signed(json.dumps(fields).encode()) + b"\n"


_HEAD = _line({"format": FILE_LIST.number})


def _parsed(line: bytes) -> tuple[str, int | None]:
    """Return a line's file and size. Raises ValueError."""
    fields = parse_object(line)
    if _line(fields) != line + b"\n":
        raise ValueError("its checksum does not match")
    path, size = fields.get("file"), fields.get("size")
    if not isinstance(path, str) or not (size is None or type(size) is int):
        raise ValueError("it does not contain a file and its size")
    return path, size
