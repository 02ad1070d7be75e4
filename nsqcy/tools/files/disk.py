"""All file operations of nsq_to_file.

Tests replace this module to simulate a full disk, errors and power loss. Does not interpret the
written data. All functions may raise OSError; their effects are durable only after the
corresponding sync.
"""

import errno
import fcntl
import os
from typing import NamedTuple

from nsqcy.util import files

NOTE = "user.nsqcy.nsq_to_file"

# Errors from file systems that do not support an operation.
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS)


class Entry(NamedTuple):
    name: str
    is_folder: bool


class Disk:
    def open(self, path: str, *, exclusive: bool) -> int:
        """Open a file for appending and reading. Creates it if missing; with `exclusive` it must
        not exist."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(path, flags | os.O_EXCL if exclusive else flags, 0o666)

    def reopen(self, path: str) -> int:
        """Open an existing file. Raises FileNotFoundError."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)

    def lock(self, fd: int) -> bool:
        """Lock the file until the descriptor is closed; return whether that succeeded. Always
        succeeds on a file system without locks."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, *_UNSUPPORTED):
                raise
        return True

    def is_at(self, fd: int, path: str) -> bool:
        """Return whether the path refers to the open file."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            return False

    def links(self, fd: int) -> int:
        return os.fstat(fd).st_nlink

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, offset: int, count: int) -> bytes:
        """Read bytes at an offset. Returns fewer than `count` only at the end."""
        parts = []
        while count > 0 and (part := os.pread(fd, count, offset)):
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return b"".join(parts)

    def write(self, fd: int, data: bytes) -> None:
        """Write all of the data."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        # fsync, not fdatasync: the note must be as durable as its bytes.
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def note(self, fd: int) -> bytes | None:
        try:
            return os.getxattr(fd, NOTE)
        except OSError as error:
            if error.errno in (errno.ENODATA, *_UNSUPPORTED):
                return None
            raise

    def set_note(self, fd: int, note: bytes) -> None:
        """Set a file's note. Does nothing if the file system has no extended attributes."""
        try:
            os.setxattr(fd, NOTE, note)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise

    def drop_note(self, fd: int) -> None:
        try:
            os.removexattr(fd, NOTE)
        except OSError as error:
            if error.errno not in (errno.ENODATA, *_UNSUPPORTED):
                raise

    def has_notes(self, folder: str) -> bool:
        """Return whether files in this directory can have notes."""
        try:
            os.getxattr(folder, NOTE)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return False
            if error.errno != errno.ENODATA:
                raise
        return True

    def is_noted(self, path: str) -> bool:
        try:
            os.getxattr(path, NOTE)
        except OSError:
            return False
        return True

    def listing(self, folder: str) -> list[Entry]:
        """Return the entries of a directory, except symbolic links; empty if it does not exist."""
        try:
            with os.scandir(folder) as entries:
                return [
                    Entry(entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in entries
                    if not entry.is_symlink()
                ]
        except FileNotFoundError:
            return []

    def is_empty(self, path: str) -> bool:
        try:
            return os.stat(path).st_size == 0
        except FileNotFoundError:
            return False

    def modified(self, path: str) -> int:
        """Return the modification time in ns; 0 if the file does not exist."""
        try:
            return os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return 0

    def make_folder(self, path: str) -> bool:
        """Create a directory; return False if it exists."""
        try:
            os.mkdir(path, 0o770)
        except FileExistsError:
            return False
        return True

    def link(self, source: str, target: str) -> None:
        """Create a hard link. Raises FileExistsError."""
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Make the entries of a directory durable, if the file system supports that."""
        try:
            files.sync_directory(path)
        except OSError as error:
            if error.errno not in (errno.EINVAL, *_UNSUPPORTED):
                raise
