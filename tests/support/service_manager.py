"""A service manager as a daemon sees it: the socket that the daemon notifies, and the sockets that
the manager opens for the daemon."""

import os
import socket
import sys
import time
from pathlib import Path

ACTIVATE = Path(__file__).with_name("exec_with_sockets.py")
PATIENCE = 30.0
Datagram = dict[str, str]


class Manager:
    """The receiving end. `@name` is an abstract socket, anything else a path."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.settimeout(PATIENCE)
        self._sock.bind("\0" + address[1:] if address.startswith("@") else address)

    def environ(self, watchdog: float = 0.0) -> dict[str, str]:
        """Return the environment of a service."""
        found = {"NOTIFY_SOCKET": self.address}
        if watchdog:
            found["WATCHDOG_USEC"] = str(int(watchdog * 1_000_000))
        return found

    def hear(self) -> Datagram:
        """Return the next datagram."""
        text = self._sock.recv(65536).decode()
        return dict(line.split("=", 1) for line in text.split("\n"))

    def hear_all(self, seconds: float = 0.0) -> list[Datagram]:
        """Return the datagrams that have arrived, or arrive within this time."""
        found = []
        deadline = time.monotonic() + seconds
        try:
            while True:
                self._sock.settimeout(max(deadline - time.monotonic(), 0.0))
                found.append(self.hear())
        except (BlockingIOError, TimeoutError):
            return found
        finally:
            self._sock.settimeout(PATIENCE)

    def until(self, key: str, value: str = "") -> list[Datagram]:
        """Return all datagrams up to the first with this key (and, if given, this value)."""
        deadline = time.monotonic() + PATIENCE
        found = [self.hear()]
        while not (key in found[-1] and found[-1][key].startswith(value)):
            assert time.monotonic() < deadline, f"no {key}={value}, but {found[:20]}"
            found.append(self.hear())
        return found

    def close(self) -> None:
        self._sock.close()
        if not self.address.startswith("@"):
            os.unlink(self.address)


def activated(command: list[str], sockets: list[socket.socket], names: str = "") -> list[str]:
    """Return a command that runs `command` with these sockets, whose descriptors it must inherit,
    as a service manager passes them on."""
    if not sockets:
        return command
    numbers = ",".join(str(each.fileno()) for each in sockets)
    return [sys.executable, str(ACTIVATE), names, numbers, *command]
