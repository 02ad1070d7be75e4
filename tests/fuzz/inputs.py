"""Inputs that fail are kept, whatever becomes of the process that they fail in.

libFuzzer writes such an input down last of all, after stacks that another process makes readable;
when that one or its pipe breaks, the input is lost. So each input is in a file while it is run, and
in one of its own, beside what was raised, before anybody hears of it.
"""

import hashlib
import mmap
import traceback
from collections.abc import Callable
from pathlib import Path

ROOM = 1 << 20  # of one input: libFuzzer makes none that is longer
SIZE = 8  # bytes that say how long it is
RUNNING = "running"
KINDS = ("crash-*", "timeout-*", "oom-*", "leak-*")
RAISED = ".txt"


def kept(one: Callable[[bytes], None], folder: Path) -> Callable[[bytes], None]:
    """A target's `one`, which leaves an input that fails in a folder."""
    path = folder / RUNNING
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(SIZE + ROOM)
        # What is in there is the kernel's to write down, also when the process is killed.
        running = mmap.mmap(file.fileno(), SIZE + ROOM)

    def run(data: bytes) -> None:
        _set(running, data)
        try:
            one(data)
        except BaseException:
            name = write(folder, data)
            name.with_name(name.name + RAISED).write_text(traceback.format_exc())
            raise
        _set(running, b"")

    return run


def _set(running: mmap.mmap, data: bytes) -> None:
    data = data[:ROOM]
    running[:SIZE] = bytes(SIZE)
    running[SIZE : SIZE + len(data)] = data
    running[:SIZE] = len(data).to_bytes(SIZE, "little")


def write(folder: Path, data: bytes) -> Path:
    """The file of an input that fails, by the name that libFuzzer gives it."""
    path = folder / f"crash-{hashlib.sha1(data).hexdigest()}"
    path.write_bytes(data)
    return path


def save_running(folder: Path) -> None:
    """A process has ended before its time: what it was running is kept, unless it is already."""
    path = folder / RUNNING
    content = path.read_bytes() if path.exists() else b""
    data = content[SIZE:][: int.from_bytes(content[:SIZE], "little")]
    if data and not any(data == each.read_bytes() for each in failed(folder)):
        write(folder, data)


def failed(folder: Path) -> list[Path]:
    """The inputs in a folder that have failed."""
    found = [path for kind in KINDS for path in sorted(folder.glob(kind))]
    return [path for path in found if path.suffix != RAISED]
