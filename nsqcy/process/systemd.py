"""Service manager protocols (systemd or compatible): sd_notify(3) and sd_listen_fds(3).

Owns their environment variables, and removes them so that children do not use them. Independent of
the service's tasks. Imported before all slow modules.
"""

import os
import socket
import time
from collections.abc import MutableMapping
from typing import NamedTuple

from nsqcy.errors import StartError
from nsqcy.logging import events
from nsqcy.logging.types import Lines

FIRST_FD = 3  # the first descriptor of sd_listen_fds(3)
SEND_LIMIT = 0.1  # maximum seconds for sending a notification; after that, it is dropped
MORE_TIME = 30.0  # seconds by which the timeout is extended
AGAIN = 5.0  # seconds between extensions

_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


class Notifier:
    """Sends datagrams to the service manager; does nothing if there is none.

    `watchdog` is the manager's watchdog timeout in seconds; 0 if the watchdog is off.
    """

    def __init__(self, address: str = "", watchdog: float = 0.0, log: Lines | None = None) -> None:
        self.watchdog = watchdog if address else 0.0
        self._environ = {"NOTIFY_SOCKET": address} if address else {}
        if self.watchdog:
            self._environ |= {
                "WATCHDOG_USEC": str(int(self.watchdog * 1_000_000)),
                "WATCHDOG_PID": str(os.getpid()),
            }
        self._log = log
        self._status = ""
        self._asked = -AGAIN  # time of the last extension
        self._sock: socket.socket | None = None
        if address:
            self._connect(address)

    def _connect(self, address: str) -> None:
        if address[0] not in "/@":
            self._complain(f"cannot notify {address}: not a path or an abstract socket")
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.settimeout(SEND_LIMIT)
        try:
            sock.connect("\0" + address[1:] if address[0] == "@" else address)
        except OSError as error:
            sock.close()
            self._complain(f"cannot notify {address}: {error.strerror}")
            return
        self._sock = sock

    @property
    def heard(self) -> bool:
        """Return whether a service manager receives the notifications."""
        return self._sock is not None

    def environ(self) -> dict[str, str]:
        """Return the variables from which the next program of this process makes its notifier."""
        return dict(self._environ)

    def ready(self, status: str) -> None:
        """Report that the service is ready, or ready again after `reloading`."""
        self._status = status
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being reloaded; call `ready` afterwards."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._status = status
        self._send(f"STOPPING=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """Report the service's state in readable form. Sends only the first line, because each line
        is a field."""
        text = text.partition("\n")[0]
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Send the watchdog notification."""
        self._send("WATCHDOG=1")

    def prolong(self) -> None:
        """Extend the start or stop timeout by MORE_TIME from now."""
        self._asked = time.monotonic()
        self._send(f"EXTEND_TIMEOUT_USEC={int(MORE_TIME * 1_000_000)}")

    def still_starting(self, status: str) -> None:
        """Report startup progress. Call this often: it extends the timeout every AGAIN seconds."""
        self.status(status)
        if time.monotonic() - self._asked >= AGAIN:
            self.prolong()

    def _send(self, text: str) -> None:
        if self._sock is None:
            return
        try:
            self._sock.send(text.encode())
        except TimeoutError:
            pass
        except OSError as error:
            self._complain(f"lost the connection to the service manager: {error.strerror}")
            self._sock.close()
            self._sock = None

    def _complain(self, text: str) -> None:
        self.watchdog = 0.0
        if self._log is not None:
            events.service_manager_lost(self._log, text)


def notifier(environ: MutableMapping[str, str], log: Lines) -> Notifier:
    """Return the notifier for the service manager in the environment, if any."""
    address = environ.pop("NOTIFY_SOCKET", "")
    period = environ.pop("WATCHDOG_USEC", "")
    pid = environ.pop("WATCHDOG_PID", "")
    watchdog = 0.0
    if period and pid in ("", str(os.getpid())):
        if period.isascii() and period.isdigit():
            watchdog = int(period) / 1_000_000
        else:
            log.warn(f"WATCHDOG_USEC={period} is not a number; the watchdog is off")
    return Notifier(address, watchdog, log)


class Inherited(NamedTuple):
    """Listening stream socket opened by the service manager, and its name."""

    sock: socket.socket
    name: str


def inherited(environ: MutableMapping[str, str]) -> list[Inherited]:
    """Return the sockets passed to this process; raises StartError if one is unusable."""
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    environ.pop("LISTEN_PIDFDID", "")
    if pid != str(os.getpid()) or not count:
        return []
    if not (count.isascii() and count.isdigit()):
        raise StartError(f"failed to receive sockets - LISTEN_FDS={count} is not a number")
    named = names.split(":") if names else []
    named += [""] * (int(count) - len(named))
    found: list[Inherited] = []
    try:
        for number in range(int(count)):
            found.append(_take(FIRST_FD + number, named[number]))
    except StartError:
        for each in found:
            each.sock.close()
        raise
    return found


def _take(fd: int, name: str) -> Inherited:
    shown = f"descriptor {fd} ({name})" if name else f"descriptor {fd}"
    try:
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
    except OSError as error:
        what = "is not a socket" if os.path.exists(f"/proc/self/fd/{fd}") else "is not open"
        text = (
            f"failed to receive sockets - {shown} from the service manager {what} "
            f"({error.strerror})"
        )
        raise StartError(text) from None
    reason = _unfit(sock)
    if reason:
        sock.close()
        raise StartError(
            f"failed to receive sockets - {shown} from the service manager {reason}"
            " (allowed: listening stream sockets, IPv4, IPv6 or unix, as set up by ListenStream=)"
        )
    sock.setblocking(False)
    return Inherited(sock, name)


def _unfit(sock: socket.socket) -> str:
    if sock.family not in _FAMILIES:
        return f"is of family {sock.family}"
    if sock.type != socket.SOCK_STREAM:
        return f"is of type {socket.SocketKind(sock.type).name}"
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "is not listening (set Accept=no)"
    return ""
