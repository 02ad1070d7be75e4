"""Every file call nsq_to_file makes, each by itself.

The seam at which tests let the disk fill up, fail or lose power. Knows nothing of what is written.
All raise OSError; what a call promises is durable only after the sync that belongs to it.
"""

import errno
import fcntl
import os
from typing import NamedTuple

from nsqcy.util import files

NOTE = "user.nsqcy.nsq_to_file"

# What a file system says that knows no such thing.
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOSYS)


class Entry(NamedTuple):
    name: str
    is_folder: bool


class Disk:
    def open(self, path: str, *, exclusive: bool) -> int:
        """A file to append to and to read, made if there is none; with `exclusive` always."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(path, flags | os.O_EXCL if exclusive else flags, 0o666)

    def reopen(self, path: str) -> int:
        """A file that exists; FileNotFoundError otherwise."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)

    def lock(self, fd: int) -> bool:
        """Whether the file is now this descriptor's alone, until it is closed. On a file system
        without locks everybody may."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, *_UNSUPPORTED):
                raise
        return True

    def is_at(self, fd: int, path: str) -> bool:
        """Whether the open file is the one that has this name."""
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
        """Fewer bytes than asked for only at the end."""
        parts = []
        while count > 0 and (part := os.pread(fd, count, offset)):
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return b"".join(parts)

    def write(self, fd: int, data: bytes) -> None:
        """All of it."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        # fsync, not fdatasync: the note is to be as durable as the bytes it speaks of.
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
        """Where the file system has no place for it, nothing."""
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
        """Whether files in this folder can have notes."""
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
        """Nothing where there is no such folder. Links to elsewhere are not listed."""
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
        """When, in ns; 0 for a file that is gone."""
        try:
            return os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return 0

    def make_folder(self, path: str) -> bool:
        """Whether it was not there."""
        try:
            os.mkdir(path, 0o770)
        except FileExistsError:
            return False
        return True

    def link(self, source: str, target: str) -> None:
        """A second name; FileExistsError if it is taken, by whatever."""
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Names in it are durable, where the file system knows how."""
        try:
            files.sync_directory(path)
        except OSError as error:
            if error.errno not in (errno.EINVAL, *_UNSUPPORTED):
                raise
