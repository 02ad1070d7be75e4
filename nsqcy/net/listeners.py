"""Addresses that a daemon listens on: parsing, binding and display.

Owns the unix socket files, and the listening sockets until they are closed. At startup, replaces a
socket file that a crash left behind. Independent of protocols. Imported before all slow modules.

As in NSQ, the IPv4 wildcard (and an empty host) also accepts IPv6 if the machine supports it,
because `localhost` is often ::1. The address is shown as 0.0.0.0.
"""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from nsqcy.errors import StartError
from nsqcy.names import host_port
from nsqcy.net import address_hints

_BACKLOG = 65_535  # the kernel limits this to net.core.somaxconn
_KEEPALIVE = 15  # seconds
_WILDCARDS = ("", "0.0.0.0")


class Address(NamedTuple):
    """`host:port`, or the path to a unix socket."""

    host: str = ""
    port: str = ""
    path: str | None = None


class Listener(NamedTuple):
    """A bound, listening, non-blocking socket, of kind tcp, http or https."""

    sock: socket.socket
    kind: str
    text: str  # address as shown to users, with the actual port
    port: int  # port; 0 for a unix socket
    path: str | None  # unix socket file, if this process created it
    file: tuple[int, int] | None = None  # device and inode of the file

    def dump(self, keep: Callable[[int], int]) -> list[Any]:
        """Return the state for the next program of this process. keep: keeps a descriptor open"""
        return [keep(self.sock.fileno()), *self[1:]]

    @classmethod
    def restore(cls, dumped: list[Any]) -> "Listener":
        fd, kind, text, port, path, file = dumped
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        return cls(sock, kind, text, port, path, None if file is None else tuple(file))

    @property
    def title(self) -> str:
        """Prefix of log lines about the listener."""
        return self.kind.upper()

    def close(self) -> None:
        """Close the socket and remove its file."""
        # No other daemon takes over the path while the socket is listening.
        if self.path:
            with suppress(OSError):
                if _file_of(self.path) == self.file:
                    os.unlink(self.path)
        self.sock.close()


def parse(text: str) -> Address:
    """Parse an address like Go's SplitHostPort. Any text that SplitHostPort rejects is treated as a
    path."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return Address(path=text)
    if host.startswith("["):
        if host.endswith("]") and "[" not in host[1:] and "]" not in host[:-1]:
            return Address(host[1:-1], port)
        return Address(path=text)
    if ":" in host or "[" in text or "]" in text:
        return Address(path=text)
    return Address(host, port)


def bind(text: str, kind: str, daemon: str = "nsqd", *, unix: bool = True) -> Listener:
    """Bind and listen; raises StartError with NSQ's text.

    Without `unix`, paths are invalid, and an empty address means any port on all interfaces.
    """
    address = parse(text) if text or unix else Address()
    try:
        if address.path is None:
            return _bind_inet(address, kind)
        if unix:
            return _bind_unix(address.path, kind)
        raise ValueError(f"listen tcp: address {text}: missing port in address")
    except (OSError, ValueError) as error:
        reason = _reason(error, address) + _hint(error, text, address, kind)
        raise StartError(
            f"failed to instantiate {daemon} - listen ({text}) failed - {reason}"
        ) from None


def _hint(error: Exception, text: str, address: Address, kind: str) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"; stop the process that uses it, or change --{kind}-address"
    if number == errno.EADDRNOTAVAIL:
        return "; no network interface of this machine has the address"
    if number == errno.EACCES and address.path is None:
        return "; ports below 1024 require root or CAP_NET_BIND_SERVICE"
    return "" if os.path.isabs(text) else address_hints.listen_hint(text)


def adopt(sock: socket.socket, kind: str) -> Listener:
    """Wrap a listening socket that another process has bound. That process keeps the socket
    file."""
    where = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return Listener(sock, kind, _show_unix(where), 0, None)
    _tune(sock)
    host, port = where[0], where[1]
    if host == "::" and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        host = "0.0.0.0"
    return Listener(sock, kind, host_port(host, port), port, None)


def is_at(listener: Listener, text: str) -> bool:
    """Return whether a listener has the configured address's port or path."""
    address = parse(text)
    if address.path is not None:
        return not listener.port and listener.text == address.path
    try:
        return 0 < listener.port == _port(address.port)
    except ValueError:
        return False


def is_abandoned(path: str) -> bool:
    """Return whether a path is a unix socket that no process is listening on.

    Raises OSError if the path does not exist, or if connecting to it is not permitted.
    """
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return True
        except PermissionError:
            raise
        except OSError:
            pass  # the listener's backlog is full, or its socket has a different type
    return False


def _bind_unix(path: str, kind: str) -> Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if not path:
            sock.bind(path)
            sock.listen(_BACKLOG)
            return Listener(sock, kind, _show_unix(sock.getsockname()), 0, None)
        with _locked(path):
            _bind_path(sock, path)
            sock.listen(_BACKLOG)
            return Listener(sock, kind, path, 0, path, _file_of(path))
    except BaseException:
        sock.close()
        raise


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Keep other daemons from binding or removing a path.

    A socket that is bound but does not listen yet looks like a socket that a crash left behind.
    """
    name = f"{path}.nsqcy-lock"
    while True:
        fd = os.open(name, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not _is_open_as(fd, name):
                continue  # the lock's previous owner has removed the file
            try:
                yield
            finally:
                with suppress(PermissionError):  # another user's file, in a directory such as /tmp
                    os.unlink(name)
            return
        finally:
            os.close(fd)


def _is_open_as(fd: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.lstat(name))
    return False


def _bind_path(sock: socket.socket, path: str) -> None:
    try:
        sock.bind(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        with suppress(FileNotFoundError):  # the owner removed the file in the meantime
            _remove_abandoned(path)
        sock.bind(path)


def _remove_abandoned(path: str) -> None:
    """Remove a socket file that no process is listening on; keep anything else."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        text = "the file is not a socket: move it or choose another path"
        raise ValueError(f"listen unix {path}: {text}")
    if is_abandoned(path):
        try:
            os.unlink(path)
        except PermissionError as error:
            text = "no process listens there, and the file cannot be removed"
            reason = f"{error.strerror}".lower()
            raise ValueError(f"listen unix {path}: {text}: {reason}") from None


def _file_of(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _show_unix(name: str | bytes) -> str:
    return name if isinstance(name, str) else "@" + name[1:].decode(errors="replace")


def _bind_inet(address: Address, kind: str) -> Listener:
    port = _port(address.port)
    sock = _bind_both(port) if address.host in _WILDCARDS else None
    if sock is None:
        sock = _bind_one(address.host or "0.0.0.0", port)
    actual = sock.getsockname()[1]
    host = "0.0.0.0" if address.host in _WILDCARDS else sock.getsockname()[0]
    return Listener(sock, kind, host_port(host, actual), actual, None)


def _port(text: str) -> int:
    if not text:
        return 0
    if text.isascii() and text.isdigit():
        if int(text) > 65_535:
            raise ValueError(f"listen tcp: address {text}: invalid port")
        return int(text)
    try:
        return socket.getservbyname(text, "tcp")
    except OSError:
        raise ValueError(f"listen tcp: lookup tcp/{text}: unknown port") from None


def _bind_both(port: int) -> socket.socket | None:
    """Bind the wildcard addresses of both families with one socket; return None if there is no
    IPv6."""
    try:
        sock = _socket(socket.AF_INET6)
    except OSError:
        return None
    try:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _listen(sock, ("::", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return None


def _bind_one(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except socket.gaierror:
        raise ValueError(f"listen tcp: lookup {host}: no such host") from None
    # NSQ prefers IPv4 for a name with both kinds of address.
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    family, _, _, _, where = found[0]
    return _listen(_socket(family), where)


def _socket(family: int) -> socket.socket:
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def _listen(sock: socket.socket, where: tuple[object, ...]) -> socket.socket:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _tune(sock)
        sock.bind(where)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    """Set options that accepted sockets inherit on Linux, which saves four system calls per
    socket."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE)


def _reason(error: Exception, address: Address) -> str:
    """Return the error text of Go's net package."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    what = os.strerror(error.errno).lower()
    if address.path is not None:
        return f"listen unix {address.path}: bind: {what}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"listen tcp {host}:{address.port}: bind: {what}"


def show(where: object) -> str:
    """Format a socket address as in NSQ.

    A mapped IPv4 address is shown as IPv4, and an unnamed unix socket as `@`.
    """
    if isinstance(where, tuple):
        host, port = str(where[0]), where[1]
        host = host.removeprefix("::ffff:") if "." in host else host
        return host_port(host, port)
    return where if isinstance(where, str) and where else "@"
