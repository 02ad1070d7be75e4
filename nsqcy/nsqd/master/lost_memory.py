"""Files with the memory of a dead worker, from which a topic could not be restored.

Owns the directory `memory.lost.<worker>.<unix time>` in the data path, and its files `records` and
`state`: the bytes of the two memfds at their offsets, with holes. nsqd never reads or removes them.
Independent of the contents.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping

import gevent

from nsqcy.nsqd.master.disk_guard import free_bytes

FOLDER = "memory.lost"
MARGIN = 64 << 20  # bytes that stay free on the disk
_BUFFER = 256 << 10
_SECTOR = 512  # unit of st_blocks


class LostMemory:
    """Writes the files.

    margin: bytes that must stay free on the disk
    """

    def __init__(
        self,
        data_path: str,
        margin: int = MARGIN,
        *,
        clock: Callable[[], float] = time.time,
        free: Callable[[str], int] = free_bytes,
    ) -> None:
        self._data_path = data_path or "."
        self._margin = max(margin, MARGIN)
        self._clock = clock
        self._free = free

    def keep(self, worker: int, sources: Mapping[str, int]) -> str:
        """Copy memfds, by the names of their files; return the path of the directory. Waits for the
        disk, but lets the hub run. Raises OSError."""
        found: str | OSError = gevent.get_hub().threadpool.apply(
            self._try_to_write, (worker, sources)
        )
        if isinstance(found, OSError):
            raise found
        return found

    def _try_to_write(self, worker: int, sources: Mapping[str, int]) -> str | OSError:
        """Runs in a pool thread. It does not raise, because the pool would print the error."""
        try:
            return self.write(worker, sources)
        except OSError as error:
            return error

    def write(self, worker: int, sources: Mapping[str, int]) -> str:
        """Like `keep`, in this thread."""
        size = sum(os.fstat(fd).st_blocks * _SECTOR for fd in sources.values())
        free = self._free(self._data_path)
        if size + self._margin > free:
            text = f"{size} bytes in memory, but only {free} bytes are free on disk"
            raise OSError(errno.ENOSPC, text)
        path = os.path.join(self._data_path, f"{FOLDER}.{worker}.{int(self._clock())}")
        os.mkdir(path, 0o700)
        try:
            for name, fd in sources.items():
                _copy(fd, os.path.join(path, name))
            _sync(path)
            _sync(self._data_path)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return path


def _copy(source: int, path: str) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for start, end in _runs(source):
            _copy_run(source, target, start, end)
        os.fsync(target)
    finally:
        os.close(target)


def _runs(fd: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each run of pages. A read of a hole would be slow: the memfds
    are larger than the machine's memory."""
    end = 0
    while True:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no pages follow
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def _copy_run(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(source, min(_BUFFER, end - start), start)
        start += os.pwrite(target, data, start)


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
