"""Ports of 127.0.0.1 that stay free until their holder binds them, or calls `close()`.

They lie outside the range that the kernel gives to connections: such a port could be taken by any
connection, and a client that keeps calling it could connect to itself. A lock on a file for each
port keeps it from everyone else who asks here, in this process or another.
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
    """Holds the ports that it has taken, until `close()` or the end of a `with`."""

    def __init__(self) -> None:
        self._locks: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self) -> int:
        """Return a port that is free and stays free; raises OSError if there is none."""
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
        """Release all of them."""
        while self._locks:
            self._locks.pop().close()


def _candidates() -> list[int]:
    """The ports outside the ephemeral range; all of them where it leaves none."""
    low, high = map(int, EPHEMERAL.read_text().split())
    return [*range(FIRST, low), *range(max(high + 1, FIRST), LAST + 1)] or [*range(FIRST, LAST + 1)]


def _lock(port: int) -> IO[bytes] | None:
    """Lock the file of a port; None if another holder has it."""
    try:
        lock = open(os.path.join(_folder(), str(port)), "ab")  # noqa: SIM115
    except OSError:
        return None  # of another user
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def _folder() -> str:
    """The folder of the lock files, which all users share. The files stay: to remove one that
    another process has just opened would give the port to two holders."""
    path = os.path.join(tempfile.gettempdir(), "nsqcy-ports")
    try:
        os.mkdir(path)
        os.chmod(path, 0o1777)
    except FileExistsError:
        pass
    return path


def _is_free(port: int) -> bool:
    """Whether nothing is bound to it, on any address."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
