"""Reserves ports on 127.0.0.1 until their owner binds them or calls `close()`.

The ports are outside the kernel's ephemeral range. Any connection could use a port in that range,
and a client that retries such a port could connect to itself. A lock file per port prevents other
users of this module, in any process, from getting the same port.
"""

import errno
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO, Self

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, LAST = 10_000, 65_535


class Ports:
    """Reserved ports, until `close()` or the end of a `with` block."""

    def __init__(self) -> None:
        self._locks: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self) -> int:
        """Reserve a free port and return it. Raises OSError if there is none."""
        candidates = _candidates()
        random.shuffle(candidates)
        for port in candidates:
            lock = _lock(port)
            if lock is None:
                continue
            if _is_free(port):
                self._locks.append(lock)
                return port
            lock.close()
        raise OSError(errno.EADDRINUSE, f"no free port from {FIRST} to {LAST}")

    def close(self) -> None:
        """Release all ports."""
        while self._locks:
            self._locks.pop().close()


def _candidates() -> list[int]:
    """Return the ports outside the ephemeral range; all ports if none are left."""
    low, high = map(int, EPHEMERAL.read_text().split())
    return [*range(FIRST, low), *range(max(high + 1, FIRST), LAST + 1)] or [*range(FIRST, LAST + 1)]


def _lock(port: int) -> IO[bytes] | None:
    """Lock a port's file. Return None if it is already locked."""
    try:
        lock = open(os.path.join(_folder(), str(port)), "ab")  # noqa: SIM115
    except OSError:
        return None  # the file belongs to a different user
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _folder() -> str:
    """Return the directory of the lock files, which all users share. Lock files are never removed:
    removing a file that another process has just opened would assign its port twice."""
    path = os.path.join(tempfile.gettempdir(), "nsqcy-ports")
    try:
        os.mkdir(path)
        os.chmod(path, 0o1777)
    except FileExistsError:
        pass
    return path


def _is_free(port: int) -> bool:
    """Return whether nothing is bound to the port, on any address."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
