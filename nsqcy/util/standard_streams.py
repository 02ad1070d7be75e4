"""This process's standard streams, which may be closed, or full.

Imported before all slow modules. Independent of the programs.
"""

import errno
import os
import sys
from collections.abc import Callable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def open_closed() -> None:
    """Open /dev/null in place of each standard stream that is closed. Otherwise, the next file or
    socket would have its number and receive log lines."""
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number, so `fd`
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def show(data: str | bytes, fd: int = 1) -> None:
    """Write all of the data to stdout or stderr, unbuffered. Raises OSError."""
    left = memoryview(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
    while left:
        left = left[os.write(fd, left) :]


def complaint(name: str, error: OSError) -> str | None:
    """Return the line to print if the error is a failed write of the program's output, otherwise
    None."""
    if error.errno not in _FULL or error.filename is not None:
        return None
    return f"{name}: cannot write the output: {os.strerror(error.errno).lower()}\n"


def guarded(name: str, program: Callable[[], int]) -> int:
    """Run a program that prints, and return its exit code. If its output cannot be written, print
    one line about the failure, and return 1."""
    open_closed()
    try:
        try:
            return program()
        finally:
            _flush()
    except OSError as error:
        text = complaint(name, error)
        if text is None:
            raise
        sys.stdout = None  # otherwise, the interpreter would flush it at exit
        print(text, end="", file=sys.stderr)
        return 1


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        sys.stdout = None
