"""How far a long work is, for whoever sits at the terminal.

Quiet when stderr is no terminal, or without tqdm (`pip install "nsqcy[tools]"`).
"""

import os
import stat
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any


class Progress:
    """Bytes of `total`, if that is known, and messages."""

    def __init__(self, total: int | None) -> None:
        self._messages = 0
        self._bar: Any = None
        if os.isatty(2):
            with suppress(ImportError):
                self._bar = _bar(total)

    def add(self, count: int, messages: int) -> None:
        """So many more bytes, and messages."""
        if self._bar is not None:
            self._messages += messages
            self._bar.set_postfix_str(f"{self._messages} messages", refresh=False)
            self._bar.update(count)

    def aside(self) -> AbstractContextManager[Any]:
        """Room for lines of somebody else, from any thread."""
        return nullcontext() if self._bar is None else self._bar.external_write_mode()

    def close(self) -> None:
        """The last word, and the line's end."""
        if self._bar is not None:
            self._bar.close()


def _bar(total: int | None) -> Any:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread that redraws it
    return tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, dynamic_ncols=True)


def bytes_left(fd: int) -> int | None:
    """Of a file; None for what is none."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return None
    return max(found.st_size - os.lseek(fd, 0, os.SEEK_CUR), 0)
