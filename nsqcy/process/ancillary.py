"""File descriptors beside bytes: SCM_RIGHTS over SOCK_SEQPACKET, one datagram at a time.

Owns the two system calls and what can go wrong with the descriptors in them. Knows nothing of
what the bytes mean.
"""

import array
import os
import socket
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_FDS = 16  # beside one datagram; the kernel's own limit is 253
_INT = array.array("i").itemsize
_ROOM = socket.CMSG_SPACE(MAX_FDS * _INT)


class Datagram(NamedTuple):
    """What one recvmsg gave. `cut`: descriptors were lost, as this process may open no more."""

    data: bytes
    fds: list[int]
    cut: bool


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected, non-blocking, close-on-exec SOCK_SEQPACKET pair."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send one datagram; raises as sendmsg does. The descriptors stay the caller's."""
    if not fds:
        sock.send(data)
        return
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    sock.sendmsg([data], [rights])


def receive(sock: socket.socket, size: int) -> Datagram | None:
    """Receive one datagram of at most `size` bytes; None at the end of the stream.

    Raises BlockingIOError when there is none. The descriptors received are the caller's.
    """
    try:
        data, rights, flags, _ = sock.recvmsg(size, _ROOM, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # Said once, when the other end died with something unread. What it sent is still there.
        data, rights, flags, _ = sock.recvmsg(size, _ROOM, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % _INT])
    if not data and not fds:
        return None
    return Datagram(data, list(fds), bool(flags & socket.MSG_CTRUNC))


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors nobody wants; one that is closed already is no error."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass
