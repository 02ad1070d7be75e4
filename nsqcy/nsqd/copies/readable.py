"""Waits at startup until the small files of all copies can be read.

A file that cannot be read now may be intact. Without the file, nsqd would consider itself a new
node, its copies incomplete, or its topics new.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nsqcy.errors import StartError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies.copy_files import FACTS
from nsqcy.nsqd.copies.file_list import LIST

LIMIT = 30.0  # seconds
INTERVAL = 0.1  # seconds between attempts
WAITING = "nsqd waits for the file"


def await_readable(
    folder: Path,
    log: Lines,
    is_stopping: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Wait until the copies' small files can be read, up to LIMIT seconds. Blocks.

    Raises StartError if a file still cannot be read.

    folder: directory for all workers' copies
    """
    deadline = clock() + LIMIT
    is_logged = False
    while (found := _unreadable(folder)) is not None:
        reason = (found.strerror or str(found)).lower()
        text = f"{found.filename} cannot be read: {reason}"
        if clock() >= deadline or is_stopping():
            raise StartError(
                f"{text}: check the disk and the kernel log; if only this file stays unreadable, "
                "move it away: nsqd then uses an earlier version of it or the other nodes' copies"
            )
        if not is_logged:
            is_logged = True
            events.state_file_damaged(
                log, text, WAITING, path=os.fspath(found.filename), error=reason, used=""
            )
        sleep(INTERVAL)


def _unreadable(folder: Path) -> OSError | None:
    """Return why the first unreadable file cannot be read."""
    path = folder
    try:
        for path in small_files(folder):
            path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        return OSError(error.errno, error.strerror, os.fspath(path))
    return None


def small_files(folder: Path) -> Iterator[Path]:
    """Yield the paths of the copies' small files."""
    yield from folder.glob("*.json")
    yield from folder.glob(f"*/*/{FACTS}")
    yield from folder.glob(f"*/*/{LIST}")
