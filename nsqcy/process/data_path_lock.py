"""The data-path lock: one nsqd per directory, whether nsqcy's or NSQ's.

Two locks are on the directory itself; there is no lock file.

- `flock(LOCK_EX)`, as in NSQ, on a descriptor that every worker inherits. It stays locked until the
  last process that may still write has exited.
- An open-file-description read lock on a second descriptor, which no worker inherits. It shows that
  the master is running; the kernel drops it as soon as the master exits.

An nsqd that finds the directory locked at startup can therefore distinguish two cases: a running
nsqd (fail immediately, as NSQ does), and workers that outlived their master and are about to exit
(wait for them). Unlike process record locks, neither lock is dropped by listing the directory.
"""

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from nsqcy.process.ancillary import Keep

ORPHANS_WAIT = 5.0  # seconds
_POLL = 0.02
_HINTS = {
    errno.ENOENT: "; create the directory, or change --data-path",
    errno.ENOTDIR: "; --data-path must be a directory",
    errno.EACCES: "; give the user that runs nsqd access to the directory",
}
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class DataPathError(Exception):
    """The data path could not be locked; str() begins with NSQ's text."""


class DataPathLock:
    """Locked data path. `fd` is inheritable: pass it to every worker."""

    def __init__(self, path: str, fd: int, master_fd: int) -> None:
        self.path = path
        self.fd = fd
        self._master_fd = master_fd

    def dump(self, keep: Keep) -> dict[str, Any]:
        """Return the state for the next program of this process, which keeps both locks."""
        found = os.fstat(self.fd)
        return {
            "path": self.path,
            "directory": [found.st_dev, found.st_ino],
            "fd": keep(self.fd),
            "master_fd": keep(self._master_fd),
        }

    @classmethod
    def restore(cls, dumped: dict[str, Any]) -> "DataPathLock":
        return cls(dumped["path"], dumped["fd"], dumped["master_fd"])

    @staticmethod
    def is_of(dumped: dict[str, Any], path: str | int) -> bool:
        """Return whether a path, or a descriptor, leads to the locked directory."""
        try:
            found = os.stat(path if path != "" else ".")
        except OSError:
            return False
        return bool([found.st_dev, found.st_ino] == dumped["directory"])

    @staticmethod
    def drop_inherited(dumped: dict[str, Any]) -> None:
        """Close the lock in a process that has inherited it by chance: it would stay locked until
        that process exits, too."""
        if DataPathLock.is_of(dumped, dumped["fd"]):
            os.close(dumped["fd"])

    def release(self) -> None:
        """Release the master's lock. The path stays locked while a worker has `fd` open."""
        for fd in (self._master_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self._master_fd = -1

    def __enter__(self) -> "DataPathLock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        text = f"failed to lock data-path: open {path}: {_text(error)}{hint}"
        raise DataPathError(text) from error


def _try_flock(fd: int) -> OSError | None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None


def _mark_master(fd: int) -> None:
    lock = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)


def _master_lives(fd: int) -> bool:
    """Return whether another nsqd's master holds the read lock; True if unknown."""
    lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, lock)
    except OSError:
        return True
    kind: int = _FLOCK.unpack(found)[0]
    return kind != fcntl.F_UNLCK


def lock_data_path(
    path: str,
    *,
    orphans_wait: float = ORPHANS_WAIT,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> DataPathLock:
    """Lock the directory ("" is the current directory); raises DataPathError.

    Waits up to `orphans_wait` seconds, only for workers that outlived their master. A flock without
    the read lock may also belong to a Go nsqd, or to a master between its two locks. In the first
    case the call fails after the wait, in the second as soon as the read lock appears.
    """
    path = path or os.getcwd()
    fd = _open(path)
    deadline = clock() + orphans_wait
    while (error := _try_flock(fd)) is not None:
        waits = error.errno in (errno.EAGAIN, errno.EACCES) and clock() < deadline
        if not waits or _master_lives(fd):
            os.close(fd)
            raise DataPathError(
                f"failed to lock data-path: cannot flock directory {path} - {_text(error)}"
                " (possibly in use by another instance of nsqd)"
            )
        sleep(_POLL)
    os.set_inheritable(fd, True)
    master_fd = _open(path)
    try:
        _mark_master(master_fd)
    except OSError:
        pass  # the file system lacks such locks, so nsqd does not wait for orphans
    return DataPathLock(path, fd, master_fd)
