"""Progress bar for long operations.

Silent if stderr is not a terminal or tqdm is missing (`pip install "nsqcy[tools]"`).
"""

import os
import stat
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any


class Progress:
    """Progress in bytes, of `total` if known, and in messages."""

    def __init__(self, total: int | None) -> None:
        self._messages = 0
        self._bar: Any = None
        if os.isatty(2):
            with suppress(ImportError):
                self._bar = _bar(total)

    def add(self, count: int, messages: int) -> None:
        """Add bytes and messages to the progress."""
        if self._bar is not None:
            self._messages += messages
            self._bar.set_postfix_str(f"{self._messages} messages", refresh=False)
            self._bar.update(count)

    def aside(self) -> AbstractContextManager[Any]:
        """Return a context in which other lines can be printed. Thread-safe."""
        return nullcontext() if self._bar is None else self._bar.external_write_mode()

    def close(self) -> None:
        """Draw the final state and end the line."""
        if self._bar is not None:
            self._bar.close()


def _bar(total: int | None) -> Any:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # disables tqdm's redraw thread
    return tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, dynamic_ncols=True)


def bytes_left(fd: int) -> int | None:
    """Return the remaining bytes of a file; None if it is not a regular file."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return None
    return max(found.st_size - os.lseek(fd, 0, os.SEEK_CUR), 0)
