"""What one process tells of itself under /debug: stacks, threads, memory; and its profile.

Owns the running of the profiler, a program that reads this process from outside. Knows no HTTP and
no other process. Imports what it needs when it is asked: hardly anybody ever does.
"""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import gevent

PROFILER = "py-spy"
RATE = 100  # samples a second
_PR_SET_PTRACER = 0x59616D61
_LATE = 30.0  # seconds the profiler may need beyond what it was asked for


class NoProfiler(Exception):
    """It is not installed."""


class ProfilerBusy(Exception):
    """A profile is being taken."""


class ProfilerFailed(Exception):
    """It said why it cannot."""


def stacks() -> str:
    """Where every greenlet and every thread is."""
    from gevent.util import format_run_info

    return "\n".join(format_run_info()) + "\n"


def threads() -> str:
    """Every thread the kernel knows of, and what it is called."""
    lines = []
    for task in sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name)):
        try:
            lines.append(f"{task.name:>8} {(task / 'comm').read_text().strip()}\n")
        except OSError:
            pass  # it has ended
    return "".join(lines)


def memory() -> str:
    """What the interpreter and the kernel have counted."""
    counted = {
        "allocated blocks": sys.getallocatedblocks(),
        "tracked objects": len(gc.get_objects()),
    }
    for number, generation in enumerate(gc.get_stats()):
        counted |= {f"generation {number} {name}": value for name, value in generation.items()}
    status = Path("/proc/self/status").read_text().splitlines()
    return table(counted) + "".join(
        f"{line}\n" for line in status if line.startswith(("Vm", "Rss"))
    )


def table(counted: dict[str, int]) -> str:
    """A line for each."""
    return "".join(f"{name}: {value}\n" for name, value in counted.items())


def free() -> str:
    """Give the kernel what is not needed; tells nothing."""
    import ctypes

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return ""


_TOLD: dict[str, Callable[[], str]] = {
    "stacks": stacks,
    "threads": threads,
    "memory": memory,
    "free": free,
}


def tell(what: str) -> str:
    """One of the above, by name."""
    return _TOLD[what]()


class Profiler:
    """Takes profiles of this process, one at a time.

    The program reads our memory from outside and never stops us. It sees the frames of Python, not
    those of compiled code: what reads both cannot follow greenlets from stack to stack.
    """

    def __init__(self) -> None:
        self._busy = False

    def profile(self, seconds: int) -> str:
        """Stacks and how often each was met, a line each. Blocks the greenlet, not the hub."""
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
    """In a thread: whether there is a profile, and the profile or why there is none."""
    import ctypes
    import subprocess

    # Where the kernel lets only a parent look into a process, our children may look into us.
    libc = ctypes.CDLL(None)
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
