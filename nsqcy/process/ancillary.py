"""Passes file descriptors with datagrams: SCM_RIGHTS over SOCK_SEQPACKET.

Owns the two system calls and the handling of lost descriptors. Independent of the datagram content.
"""

import array
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

MAX_FDS = 16  # maximum descriptors per datagram; the kernel's limit is 253
_INT = array.array("i").itemsize
_ROOM = socket.CMSG_SPACE(MAX_FDS * _INT)


Keep = Callable[[int], int]
"""Keeps a descriptor open for the next program of this process; returns its number."""


class Datagram(NamedTuple):
    """Result of one recvmsg. `cut`: descriptors were lost due to the open-files limit."""

    data: bytes
    fds: list[int]
    cut: bool


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected, non-blocking, close-on-exec SOCK_SEQPACKET pair."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send one datagram; raises the same errors as sendmsg. The caller keeps the descriptors."""
    if not fds:
        sock.send(data)
        return
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    sock.sendmsg([data], [rights])


def receive(sock: socket.socket, size: int) -> Datagram | None:
    """Receive one datagram of at most `size` bytes; None at the end of the stream.

    Raises BlockingIOError if no datagram is available. The caller owns the received descriptors.
    """
    try:
        data, rights, flags, _ = sock.recvmsg(size, _ROOM, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # This is raised once if the peer exited with unread input. The peer's own datagrams are
        # still readable.
        data, rights, flags, _ = sock.recvmsg(size, _ROOM, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % _INT])
    if not data and not fds:
        return None
    return Datagram(data, list(fds), bool(flags & socket.MSG_CTRUNC))


def close_all(fds: Iterable[int]) -> None:
    """Close unused descriptors. A descriptor that is already closed is not an error."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass
