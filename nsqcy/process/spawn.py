"""Starting a child by exec, with the descriptors it needs and no others.

Owns the call and the state a child is born in; knows nothing of what the child does. Not fork:
after a fork of a running hub the child would also run its parent's greenlets.
"""

import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

_PACKAGE_ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))

# Blocked at birth, so that a child that has not come to set its handlers is not killed by a
# terminal's ^C or a service manager's SIGTERM to the whole group: children leave when told to.
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def spawn(argv: list[str], fds: Iterable[int]) -> int:
    """Start `argv` with `fds` open under their own numbers; gives the pid.

    The child's stdin is empty and its stdout is our stderr, so that whoever reads our stdout to
    its end does not wait for children.
    """
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, 2, 1),
    ]
    # A dup2 of a descriptor onto itself only clears its close-on-exec flag, in the child alone.
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]
    return os.posix_spawn(argv[0], argv, environment(), file_actions=actions, setsigmask=BLOCKED)


def python(module: str, *args: str) -> list[str]:
    """The command that runs a module in this interpreter.

    -P: a file `json.py` in the current directory, often the data path, must not be imported.
    """
    return [sys.executable, "-P", "-m", module, *args]


def pack(value: object) -> int:
    """Put a JSON value into a memfd; its descriptor, at the beginning, is the caller's."""
    fd = os.memfd_create("boot", os.MFD_CLOEXEC)
    with os.fdopen(fd, "wb", closefd=False) as file:
        file.write(json.dumps(value).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def unpack(fd: int) -> Any:
    """The JSON value in a descriptor that came by `pack`; closes it."""
    with os.fdopen(fd, "rb") as file:
        return json.loads(file.read())


def environment() -> dict[str, str]:
    """Ours, and this package can be found in it, whatever led us to it."""
    env = dict(os.environ)
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = os.path.basename(_PACKAGE_ROOT) in ("site-packages", "dist-packages")
    if not installed and _PACKAGE_ROOT not in paths:
        env["PYTHONPATH"] = os.pathsep.join([_PACKAGE_ROOT, *paths])
    return env
