"""This process's standard streams, which may be closed, or full.

Imported before all slow modules. Knows no program.
"""

import errno
import os
import sys
from collections.abc import Callable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def open_closed() -> None:
    """Open /dev/null in place of each standard stream that is closed. Otherwise, the next file or
    socket would get its number, and with it log lines."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number, so `fd`
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def show(data: str | bytes) -> None:
    """Write all of the data to stdout, unbuffered. Raises OSError."""
    left = memoryview(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
    while left:
        left = left[os.write(1, left) :]


def guarded(name: str, program: Callable[[], int]) -> int:
    """Run a program that prints, and return its exit code. If its output cannot be written, print
    one line that says so, and return 1."""
    open_closed()
    try:
        try:
            return program()
        finally:
            _flush()
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        sys.stdout = None  # the interpreter would flush it at exit
        reason = os.strerror(error.errno).lower()
        print(f"{name}: cannot write the output: {reason}", file=sys.stderr)
        return 1


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader wants no more
        sys.stdout = None
