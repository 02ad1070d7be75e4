"""Small files: complete reads, and changes that survive a power loss.

All calls block; do not call them on a hub. Independent of the file content.
"""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path


def sync_directory(path: str) -> None:
    """Sync a directory's entries to disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(
    directory: str, name: str, content: bytes, written: Callable[[], None] = lambda: None
) -> None:
    """Replace a file atomically; only its owner can read it. Raises OSError.

    After a crash, the file has either the old or the new content.

    written: called once the new content is on disk, before it takes the file's name
    """
    temporary = os.path.join(directory, name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(fd)
    finally:
        os.close(fd)
    written()
    os.rename(temporary, os.path.join(directory, name))
    sync_directory(directory)


def read_start(path: Path, limit: int = sys.maxsize) -> bytes:
    """Return the beginning of a file. Blocks; raises OSError, including after a short read:
    the rest may be intact."""
    with path.open("rb") as opened:
        size = min(os.fstat(opened.fileno()).st_size, limit)
        data = opened.read(size)
    if len(data) < size:
        raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
    return data
