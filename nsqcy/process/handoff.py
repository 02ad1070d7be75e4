"""Passing accepted sockets on: from the one process that accepts to the one that serves.

Owns a SOCK_SEQPACKET pair per worker and the certainty that no socket is lost on it. The sender
keeps its copy until the receiver has said that it has the socket, which the receiver says *before*
it reads a byte from it; so what a dead worker never took can be given to another, and nothing is
served twice. Knows nothing of what is spoken on the sockets.

Sender to receiver, with one descriptor beside it (little-endian):

     0  u64 number     counts from 1
     8  u8  kind       index into KINDS
     9  u8  reserved
    10  u16 peer       bytes of the peer's address
    12  the peer's address, then the local address, as text

Receiver to sender: u64s, number << 1 | refused. Refused: the receiver could open no more files.
"""

import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

import gevent

from nsqcy.process import ancillary

KINDS = ("tcp", "http", "https")
MAX_PENDING = 128  # handed to one worker and not yet taken
_HEADER = struct.Struct("<QBBH")
_NUMBER = struct.Struct("<Q")
_SIZE = 4096
_BATCH = 64


class Accepted(NamedTuple):
    """An accepted socket on its way, with what a session wants to know of it."""

    sock: socket.socket
    kind: str
    peer: str
    local: str


class HandoffError(Exception):
    """The sender sent what is not the protocol."""


def encode(number: int, kind: str, peer: str, local: str) -> bytes:
    """The bytes that ride beside a socket."""
    text = peer.encode()
    return _HEADER.pack(number, KINDS.index(kind), 0, len(text)) + text + local.encode()


def decode(data: bytes) -> tuple[int, str, str, str]:
    """number, kind, peer, local; raises HandoffError."""
    if len(data) < _HEADER.size:
        raise HandoffError(f"a hand-off of {len(data)} bytes")
    number, kind, _, length = _HEADER.unpack_from(data)
    texts = data[_HEADER.size :]
    if kind >= len(KINDS) or length > len(texts):
        raise HandoffError("a malformed hand-off")
    peer = texts[:length].decode(errors="replace")
    return number, KINDS[kind], peer, texts[length:].decode(errors="replace")


class Sender:
    """The accepting end, for one worker. Owns its socket and the sockets not yet taken."""

    def __init__(
        self,
        sock: socket.socket,
        taken: Callable[[], None],
        refused: Callable[[Accepted], None],
    ) -> None:
        self._sock = sock
        self._taken = taken
        self._refused = refused
        self._number = 0
        self._pending: dict[int, Accepted] = {}
        self._reader = gevent.get_hub().loop.io(sock.fileno(), 1)
        self._reader.start(self._readable)
        self.closed = False

    @property
    def pending(self) -> int:
        """How many sockets were handed over and are not yet taken."""
        return len(self._pending)

    def send(self, item: Accepted) -> bool:
        """Hand a socket over; False when the worker takes no more just now (or is gone)."""
        if self.closed or len(self._pending) >= MAX_PENDING:
            return False
        number = self._number + 1
        data = encode(number, item.kind, item.peer, item.local)
        try:
            ancillary.send(self._sock, data, [item.sock.fileno()])
        except OSError:  # full, gone, or too many descriptors in flight: the caller picks another
            return False
        self._number = number
        self._pending[number] = item
        return True

    def close(self) -> list[Accepted]:
        """Stop; gives back the sockets the worker never took."""
        if not self.closed:
            self.closed = True
            self._reader.stop()
            self._reader.close()
            self._drain()
            self._sock.close()
        back = list(self._pending.values())
        self._pending.clear()
        return back

    def _readable(self) -> None:
        if self._drain():
            self._reader.stop()  # gone; whoever watches the process calls close
        self._taken()

    def _drain(self) -> bool:
        """Take the notes that are there; True at the end of the stream."""
        for _ in range(MAX_PENDING):
            try:
                datagram = ancillary.receive(self._sock, _SIZE)
            except (BlockingIOError, InterruptedError):
                return False
            if datagram is None:
                return True
            for (value,) in _NUMBER.iter_unpack(datagram.data[: len(datagram.data) & ~7]):
                self._note(value >> 1, bool(value & 1))
        return False

    def _note(self, number: int, refused: bool) -> None:
        item = self._pending.pop(number, None)
        if item is None:
            return
        if refused:
            self._refused(item)
        else:
            item.sock.close()


class Receiver:
    """The serving end. `adopt(fd, kind, peer, local)` becomes the owner of each descriptor."""

    def __init__(self, sock: socket.socket, adopt: Callable[[int, str, str, str], None]) -> None:
        self._sock = sock
        self._adopt = adopt
        self._reader = gevent.get_hub().loop.io(sock.fileno(), 1)
        self.closed = False

    def start(self) -> None:
        """Begin to take sockets."""
        self._reader.start(self._readable)

    def close(self) -> None:
        """Take no more."""
        if not self.closed:
            self.closed = True
            self._reader.stop()
            self._reader.close()
            self._sock.close()

    def _readable(self) -> None:
        for _ in range(_BATCH):
            if self.closed:
                return
            try:
                datagram = ancillary.receive(self._sock, _SIZE)
            except (BlockingIOError, InterruptedError):
                return
            if datagram is None:
                self.close()
                return
            self._take(datagram)

    def _take(self, datagram: ancillary.Datagram) -> None:
        try:
            number, kind, peer, local = decode(datagram.data)
        except HandoffError:
            ancillary.close_all(datagram.fds)
            raise
        refused = len(datagram.fds) != 1
        try:
            self._sock.send(_NUMBER.pack(number << 1 | refused))
        except OSError:  # the sender is gone, and its clients with it
            ancillary.close_all(datagram.fds)
            return
        if refused:
            ancillary.close_all(datagram.fds)
        else:
            self._adopt(datagram.fds[0], kind, peer, local)
