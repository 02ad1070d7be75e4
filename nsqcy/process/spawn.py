"""Starts child processes with only the descriptors that they need.

Owns the call and a child's initial state; independent of the child's tasks. A process that has no
hub yet may `fork`, so that its child shares the imported modules. Later only `spawn`, which
executes a program, is safe: the child of a fork would also run the greenlets of its parent.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_PACKAGE_ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))

_MAX_FD = 1 << 20  # the kernel's default limit for every process
# Blocked when a child starts, so that a ^C or SIGTERM to the process group does not kill it before
# it has set its handlers. The parent stops its children. A service manager may send the master's
# SIGUSR2 to all processes.
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)


def spawn(argv: list[str], fds: Iterable[int], env: Mapping[str, str] | None = None) -> int:
    """Start `argv` with `fds` open under the same numbers; return the pid. env: `environment()` by
    default.

    The child's stdin is empty. Its stdout is this process's stderr, so that a reader of this
    process's stdout does not wait for children.
    """
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, 2, 1),
    ]
    # dup2 of a descriptor onto itself only clears close-on-exec, and only in the child.
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]
    env = environment() if env is None else env
    return os.posix_spawn(argv[0], argv, env, file_actions=actions, setsigmask=BLOCKED)


def fork(run: Callable[[], int], fds: Iterable[int]) -> int:
    """Run a function in a fork of this process, with the same descriptors and signals as `spawn`;
    return the pid. The child exits with the function's result, or with 1 if it raises.

    Call it before there is a hub or a second thread: a fork copies neither in a usable state.
    """
    if threading.active_count() > 1:
        raise RuntimeError("a process with threads cannot fork")
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _keep_only(fds)
        signal.pthread_sigmask(signal.SIG_SETMASK, BLOCKED)
        status = run()
    except BaseException:
        traceback.print_exc()
    finally:
        # The parent's objects, such as its sockets, must never be finalised: their descriptors are
        # closed, and the numbers may have been reused.
        os._exit(status)


def _keep_only(fds: Iterable[int]) -> None:
    """Close all descriptors except these and the standard ones, and set up the standard ones as
    `spawn` does."""
    first = 3
    for fd in sorted(fds):
        if first < fd:  # closerange(0, 0) would close everything
            os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, _MAX_FD)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)


def python(module: str, *args: str, interpreter: str = sys.executable) -> list[str]:
    """Return the command that runs a module, by default in this interpreter.

    -P prevents the import of a file like `json.py` in the current directory, often the data path.
    """
    return [interpreter, "-P", "-m", module, *args]


def pack(value: object) -> int:
    """Write a JSON value to a memfd; return its descriptor, which the caller owns."""
    fd = os.memfd_create("boot", os.MFD_CLOEXEC)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(json.dumps(value).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def unpack(fd: int) -> Any:
    """Read the JSON value from a descriptor created by `pack`, and close it."""
    try:
        return peek(fd)
    finally:
        os.close(fd)


def peek(fd: int) -> Any:
    """Read the JSON value from a descriptor created by `pack`, which stays open."""
    return json.loads(os.pread(fd, os.fstat(fd).st_size, 0))


def environment() -> dict[str, str]:
    """Return this process's environment, with PYTHONPATH extended if needed to find this
    package."""
    env = dict(os.environ)
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = os.path.basename(_PACKAGE_ROOT) in ("site-packages", "dist-packages")
    if not installed and _PACKAGE_ROOT not in paths:
        env["PYTHONPATH"] = os.pathsep.join([_PACKAGE_ROOT, *paths])
    return env
