"""Failing inputs are kept, no matter how the process fails.

libFuzzer itself writes a failing input last, after stacks that another process symbolises. If that
process or its pipe fails, the input is lost. Each input is therefore in a file while it runs. After
a failure, it is saved with its exception before anything is reported.
"""

import hashlib
import mmap
import traceback
from collections.abc import Callable
from pathlib import Path

ROOM = 1 << 20  # maximum size of a libFuzzer input
SIZE = 8  # size of an input's length field, in bytes
RUNNING = "running"
KINDS = ("crash-*", "timeout-*", "oom-*", "leak-*")
RAISED = ".txt"


def kept(one: Callable[[bytes], None], folder: Path) -> Callable[[bytes], None]:
    """Return a target's `one`, wrapped so that it saves failing inputs in a directory."""
    path = folder / RUNNING
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(SIZE + ROOM)
        # The kernel writes the mapping to the file even if the process is killed.
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
    """Write a failing input to a file with the name that libFuzzer would use. Return the path of
    the file."""
    path = folder / f"crash-{hashlib.sha1(data).hexdigest()}"
    path.write_bytes(data)
    return path


def save_running(folder: Path) -> None:
    """Save the input that a dead process was running, unless it is already saved."""
    path = folder / RUNNING
    content = path.read_bytes() if path.exists() else b""
    data = content[SIZE:][: int.from_bytes(content[:SIZE], "little")]
    if data and not any(data == each.read_bytes() for each in failed(folder)):
        write(folder, data)


def failed(folder: Path) -> list[Path]:
    """Return the files of the failing inputs in a directory."""
    found = [path for kind in KINDS for path in sorted(folder.glob(kind))]
    return [path for path in found if path.suffix != RAISED]
