"""Passes accepted sockets from the process that accepts to the worker that serves.

Owns a SOCK_SEQPACKET pair per worker, and guarantees that no socket is lost on it. The sender keeps
its copy until the receiver acknowledges the socket, which the receiver does *before* it reads a
byte from the socket. Sockets that a dead worker never acknowledged can therefore be passed to
another worker, and no socket is served twice. Independent of the protocol on the sockets.

Sender to receiver, with one descriptor (little-endian):

     0  u64 number     counts from 1
     8  u8  kind       index into KINDS
     9  u8  reserved
    10  u16 peer       bytes of the peer's address
    12  the peer's address, then the local address, as text

Receiver to sender: u64s, number << 1 | refused. Refused: the receiver has only its reserve of
descriptors left.
"""

import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import gevent

from nsqcy.process import ancillary
from nsqcy.util import descriptors

KINDS = ("tcp", "http", "https")
MAX_PENDING = 128  # maximum sockets sent to one worker and not yet acknowledged
_HEADER = struct.Struct("<QBBH")
_NUMBER = struct.Struct("<Q")
_SIZE = 4096
_BATCH = 64


class Accepted(NamedTuple):
    """An accepted socket with its kind and addresses."""

    sock: socket.socket
    kind: str
    peer: str
    local: str

    def dump(self, keep: ancillary.Keep) -> list[Any]:
        return [keep(self.sock.fileno()), self.kind, self.peer, self.local]

    @classmethod
    def restore(cls, dumped: list[Any]) -> "Accepted":
        fd, kind, peer, local = dumped
        return cls(socket.socket(fileno=fd), kind, peer, local)


class HandoffError(Exception):
    """The sender violated the protocol."""


def encode(number: int, kind: str, peer: str, local: str) -> bytes:
    """Encode the datagram that accompanies a socket."""
    text = peer.encode()
    return _HEADER.pack(number, KINDS.index(kind), 0, len(text)) + text + local.encode()


def decode(data: bytes) -> tuple[int, str, str, str]:
    """Decode number, kind, peer and local; raises HandoffError."""
    if len(data) < _HEADER.size:
        raise HandoffError(f"a hand-off of {len(data)} bytes is shorter than its header")
    number, kind, _, length = _HEADER.unpack_from(data)
    texts = data[_HEADER.size :]
    if kind >= len(KINDS) or length > len(texts):
        raise HandoffError("a malformed hand-off")
    peer = texts[:length].decode(errors="replace")
    return number, KINDS[kind], peer, texts[length:].decode(errors="replace")


class Sender:
    """The accepting end, for one worker. Owns its socket and the unacknowledged sockets."""

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
        """Number of sockets sent but not yet acknowledged."""
        return len(self._pending)

    def send(self, item: Accepted) -> bool:
        """Send a socket; return False if the worker accepts none now, or has exited."""
        if self.closed or len(self._pending) >= MAX_PENDING:
            return False
        number = self._number + 1
        data = encode(number, item.kind, item.peer, item.local)
        try:
            ancillary.send(self._sock, data, [item.sock.fileno()])
        # queue full, peer gone, or too many descriptors in flight: try another worker
        except OSError:
            return False
        self._number = number
        self._pending[number] = item
        return True

    def dump(self, keep: ancillary.Keep) -> dict[str, Any]:
        """Return the state for the next program of this process."""
        pending = [[number, item.dump(keep)] for number, item in self._pending.items()]
        return {"fd": keep(self._sock.fileno()), "number": self._number, "pending": pending}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of a sender."""
        self._number = dumped["number"]
        self._pending = {number: Accepted.restore(item) for number, item in dumped["pending"]}

    def close(self) -> list[Accepted]:
        """Stop; return the sockets that the worker never acknowledged."""
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
            self._reader.stop()  # the peer has exited: the process watcher calls close
        self._taken()

    def _drain(self) -> bool:
        """Read available acknowledgements; return True at the end of the stream."""
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
    """The serving end. `adopt(fd, kind, peer, local)` takes ownership of each descriptor."""

    def __init__(self, sock: socket.socket, adopt: Callable[[int, str, str, str], None]) -> None:
        self._sock = sock
        self._adopt = adopt
        self._reader = gevent.get_hub().loop.io(sock.fileno(), 1)
        self.closed = False

    def start(self) -> None:
        """Start receiving sockets."""
        self._reader.start(self._readable)

    def pause(self) -> None:
        """Leave further sockets to the sender, until `start` is called."""
        if not self.closed:
            self._reader.stop()

    def close(self) -> None:
        """Stop receiving."""
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
        refused = len(datagram.fds) != 1 or descriptors.is_reserved(datagram.fds[0])
        try:
            self._sock.send(_NUMBER.pack(number << 1 | refused))
        except OSError:  # the sender has exited, and its clients are disconnected
            ancillary.close_all(datagram.fds)
            return
        if refused:
            ancillary.close_all(datagram.fds)
        else:
            self._adopt(datagram.fds[0], kind, peer, local)
