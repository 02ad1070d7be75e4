"""Debug information about one process for /debug: stacks, threads, memory, and a profile.

Runs the profiler, a program that reads this process's memory from outside. Independent of HTTP and
other processes. Imports modules on first use, because most processes never need them.
"""

import functools
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent

from nsqcy.util import procfs
from nsqcy.util.stacks import stacks

PROFILER = "py-spy"
RATE = 100  # samples per second
_PR_SET_PTRACER = 0x59616D61
_LATE = 30.0  # seconds that the profiler may take in addition to the requested time


class NoProfiler(Exception):
    """The profiler is not installed."""


class ProfilerBusy(Exception):
    """Another profile is being recorded."""


class ProfilerFailed(Exception):
    """The profiler failed; the text is its error message."""


def threads() -> str:
    """Return the id and name of every thread in the process."""
    lines = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name)):
        try:
            lines.append(f"{task.name:>8} {(task / 'comm').read_text().strip()}\n")
        except OSError:
            pass  # the thread has ended
    return "".join(lines)


def memory() -> str:
    """Return the memory statistics of the interpreter and the kernel."""
    counted = {
        "allocated blocks": sys.getallocatedblocks(),
        "tracked objects": len(gc.get_objects()),
    }
    for number, generation in enumerate(gc.get_stats()):
        counted |= {f"generation {number} {name}": value for name, value in generation.items()}
    status = procfs.read("/proc/self/status").splitlines()
    return table(counted) + "".join(
        f"{line}\n" for line in status if line.startswith(("Vm", "Rss"))
    )


def table(counted: dict[str, int]) -> str:
    """Format counters, one per line."""
    return "".join(f"{name}: {value}\n" for name, value in counted.items())


def free() -> None:
    """Collect garbage and release free memory to the kernel."""
    gc.collect()
    _trim()


def _trim() -> None:
    _libc().malloc_trim(0)


@functools.cache  # each counter is a reference cycle
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def _free_beside() -> str:
    """Like `free`, but release the memory in a thread: the more there is, the longer it takes.
    Return an empty string."""
    gc.collect()
    gevent.get_hub().threadpool.apply(_trim)
    return ""


_TOLD: dict[str, Callable[[], str]] = {
    "stacks": stacks,
    "threads": threads,
    "memory": memory,
    "free": _free_beside,
}


def tell(what: str) -> str:
    """Call one of the functions above by name."""
    return _TOLD[what]()


class Profiler:
    """Records profiles of this process, one at a time.

    The profiler reads the process's memory from outside and never stops it. It sees Python frames
    but no compiled code: profilers that read both cannot follow greenlets from stack to stack.
    """

    def __init__(self) -> None:
        self._busy = False

    def profile(self, seconds: int) -> str:
        """Return stacks and sample counts, one per line. Blocks the calling greenlet, not the
        hub."""
        program = _find()
        if self._busy:
            raise ProfilerBusy
        self._busy = True
        try:
            recorded, text = gevent.get_hub().threadpool.apply(_record, (program, seconds))
        finally:
            self._busy = False
        if not recorded:
            raise ProfilerFailed(text)
        return str(text)


def _find() -> str:
    import shutil

    beside_us = os.path.dirname(sys.executable)
    program = shutil.which(PROFILER, path=os.pathsep.join([beside_us, os.environ.get("PATH", "")]))
    if program is None:
        raise NoProfiler
    return program


def _record(program: str, seconds: int) -> tuple[bool, str]:
    """Run the profiler, in a thread. Return whether it succeeded, and the profile or the error."""
    import subprocess

    # Allow the child to trace this process: some kernels allow only a process's parent to trace it.
    libc = _libc()
    libc.prctl(_PR_SET_PTRACER, os.getpid(), 0, 0, 0)
    fd = os.memfd_create("profile", os.MFD_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        words = [program, "record", "--format", "raw", "--output", f"/proc/self/fd/{fd}"]
        words += ["--pid", str(os.getpid()), "--rate", str(RATE), "--duration", str(seconds)]
        words.append("--nonblocking")
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(fd,),
                timeout=seconds + _LATE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return False, str(error)
        finally:
            libc.prctl(_PR_SET_PTRACER, 0, 0, 0, 0)
        if done.returncode:
            return False, done.stderr.decode(errors="replace").strip()
        return True, file.read().decode(errors="replace")
