"""Start of a child process with only the descriptors that it needs.

Owns the call and the initial state of a child; independent of what the child does. Uses exec, not
fork alone: after a fork of a running hub, the child would also run the greenlets of its parent.
"""

import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

_PACKAGE_ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Blocked at the start of a child, so that a ^C or SIGTERM to the process group does not kill it
# before it has set its handlers. The parent stops its children.
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def spawn(argv: list[str], fds: Iterable[int]) -> int:
    """Start `argv` with `fds` open under the same numbers; return the pid.

    The child's stdin is empty. Its stdout is this process's stderr, so that a reader of this
    process's stdout does not wait for children.
    """
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, 2, 1),
    ]
    # dup2 of a descriptor onto itself only clears close-on-exec, and only in the child.
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]
    return os.posix_spawn(argv[0], argv, environment(), file_actions=actions, setsigmask=BLOCKED)


def python(module: str, *args: str) -> list[str]:
    """Return the command that runs a module in this interpreter.

    -P prevents the import of a file like `json.py` in the current directory, often the data path.
    """
    return [sys.executable, "-P", "-m", module, *args]


def pack(value: object) -> int:
    """Write a JSON value to a memfd; return its descriptor, which the caller owns."""
    fd = os.memfd_create("boot", os.MFD_CLOEXEC)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(json.dumps(value).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def unpack(fd: int) -> Any:
    """Read the JSON value from a descriptor created by `pack`, and close it."""
    with os.fdopen(fd, "rb") as file:
        return json.loads(file.read())


def environment() -> dict[str, str]:
    """Return this process's environment, with PYTHONPATH extended if needed to find this
    package."""
    env = dict(os.environ)
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = os.path.basename(_PACKAGE_ROOT) in ("site-packages", "dist-packages")
    if not installed and _PACKAGE_ROOT not in paths:
        env["PYTHONPATH"] = os.pathsep.join([_PACKAGE_ROOT, *paths])
    return env
