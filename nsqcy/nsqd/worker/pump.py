"""A pump: what remains of a worker's process after its replacement, for connections with TLS or
deflate, whose state no other process can continue.

    client ◄── encoded ──► pump ◄── plain, through a socket pair ──► session in the successor

Owns the bytes between the two sockets, and the ends of both. Knows no protocol, topic or format:
the connection's layer (nsqcy.net) encodes and decodes. In each direction, it holds at most one
piece: while one side does not take it, the other side is not read.

The pump runs without the hub of the worker that it was, so that nothing of that worker runs again.
It ends with its last connection, or when the master has exited. SIGTERM means that the sessions
have ended: clients that do not read get little more time.
"""

import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from nsqcy.errors import LayerEnd, LayerError
from nsqcy.logging import events
from nsqcy.logging.types import Lines

SIZE = 65536  # maximum bytes per receive
PIECES = 16  # maximum pieces of a connection before others have their turn
MAX_DRAIN = 1 << 20  # maximum unread bytes to discard on close, to avoid a reset
FLUSH_LIMIT = 60.0  # maximum seconds without progress for a client to read the last output
LINGER_LIMIT = 5.0  # maximum seconds for a client to close its side after the last output
END_LIMIT = 1.0  # instead of both, after SIGTERM
REST_EVERY = 30.0  # seconds between releases of unused memory
TICK = 0.5
NEVER = float("inf")

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_GONE = select.EPOLLHUP | select.EPOLLERR


class Layer(Protocol):
    """The methods of nsqcy.net.core.ByteLayer and its subclasses that a pump uses."""

    def feed(self, data: bytes) -> None: ...
    def read(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    def take(self) -> bytes: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...
    def release(self) -> None: ...


class Pumped(NamedTuple):
    """A connection to pump. The pump owns the descriptors."""

    client: int
    session: int
    """This end of the socket pair."""
    layer: Layer
    unsent: bytes
    """Encoded output for the client."""
    peer: str


class Pump:
    """The connections of one process, and their events."""

    def __init__(
        self,
        pumped: Iterable[Pumped],
        alive: int,
        log: Lines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """alive: a pipe that closes when the master has exited"""
        self.log = log
        self.clock = clock
        self.is_ending = False
        self._poll = select.epoll()
        self._alive = alive
        self._poll.register(alive, _IN)
        self._connections: dict[int, _Connection] = {}
        self._again: set[_Connection] = set()
        self._rested_at = clock()
        for each in pumped:
            connection = _Connection(self, each)
            for fd in connection.fds:
                self._connections[fd] = connection
            self._again.add(connection)

    def end(self) -> None:
        """Give clients that do not read little more time: their sessions end."""
        self.is_ending = True

    def run(self) -> None:
        """Pump until no connection is left, or the master has exited."""
        ticked = self.clock()
        while self._connections:
            again, self._again = self._again, set()
            for each in again:
                each.go_on()
            for fd, found in self._poll.poll(0 if self._again else TICK):
                if fd == self._alive:
                    return
                connection = self._connections.get(fd)
                if connection is not None:
                    connection.happened(fd, found)
            now = self.clock()
            if now >= ticked + TICK:
                ticked = now
                self._tick(now)

    def _tick(self, now: float) -> None:
        rests = now >= self._rested_at + REST_EVERY
        if rests:
            self._rested_at = now
        for each in set(self._connections.values()):
            each.tick(now, rests)

    # for the connections

    def watch(self, fd: int, before: int | None, mask: int | None) -> None:
        """Change the events of a descriptor; None: none, not even its end."""
        if before is None and mask is not None:
            self._poll.register(fd, mask)
        elif mask is None and before is not None:
            self._poll.unregister(fd)
        elif mask is not None and mask != before:
            self._poll.modify(fd, mask)

    def run_again(self, connection: "_Connection") -> None:
        self._again.add(connection)

    def forget(self, connection: "_Connection") -> None:
        self._again.discard(connection)
        for fd in connection.fds:
            del self._connections[fd]


class _Side:
    """One of the two sockets of a connection."""

    def __init__(self, fd: int, unsent: bytes = b"") -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(False)
        self.fd = fd
        self.mask: int | None = None
        self.unsent = memoryview(unsent)
        self.is_readable = False
        self.is_gone = False  # its peer has closed both directions; reports no more events
        self.has_ended = False  # its peer sends no more
        self.is_broken = False  # its peer receives no more

    def receive(self) -> bytes:
        """Return what has arrived; b"" if nothing has, or if its peer has ended."""
        if self.has_ended or not self.is_readable:
            return b""
        self.is_readable = self.is_gone
        try:
            data = self.socket.recv(SIZE)
        except (BlockingIOError, InterruptedError):
            self.is_readable = False
            return b""
        except OSError:
            self.break_off()
            data = b""
        self.has_ended = self.has_ended or not data
        return data

    def send(self) -> bool:
        """Send as much as possible; return whether that was everything."""
        if self.is_broken:
            self.unsent = memoryview(b"")
        while self.unsent:
            try:
                sent = self.socket.send(self.unsent)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self.break_off()
                break
            self.unsent = self.unsent[sent:]
        return True

    def break_off(self) -> None:
        """Send nothing more, because the peer receives no more."""
        self.is_broken = True
        self.unsent = memoryview(b"")

    def end_output(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.is_broken = True

    def drain(self) -> None:
        """Discard input, because closing with unread input would reset the connection."""
        left = MAX_DRAIN
        try:
            while left > 0:
                data = self.socket.recv(SIZE)
                if not data:
                    return
                left -= len(data)
        except OSError:
            return


class _Connection:
    """One client, and its session in another process."""

    def __init__(self, pump: Pump, pumped: Pumped) -> None:
        self._pump = pump
        self._layer = pumped.layer
        self._peer = pumped.peer
        self._client = _Side(pumped.client, pumped.unsent)
        self._session = _Side(pumped.session)
        self._has_input = True  # whether the layer may contain decodable input
        self._has_told_end = False  # the session knows that the client sends no more
        self._is_lingering = False  # the session has ended, and its output is sent
        self._has_ended_output = False
        self._deadline = NEVER
        self._is_closed = False

    @property
    def fds(self) -> tuple[int, int]:
        return self._client.fd, self._session.fd

    # -- events

    def happened(self, fd: int, found: int) -> None:
        side = self._client if fd == self._client.fd else self._session
        side.is_readable = True
        if found & _GONE and not side.is_gone:
            side.is_gone = True
            self._pump.watch(fd, side.mask, None)
            side.mask = None
        self.go_on()

    def go_on(self) -> None:
        """Move what can be moved."""
        if self._is_closed:
            return
        left = self._client.unsent
        if self._is_lingering:
            self._discard()
        else:
            self._to_session()
        self._to_client()
        has_progress = self._client.unsent is not left
        if self._session.has_ended:
            self._finish(has_progress)
        elif self._session.is_gone and self._client.unsent:
            self._limit_flush(has_progress)
        if not self._is_closed:
            self._watch()

    def tick(self, now: float, rests: bool) -> None:
        if rests:
            self._layer.rest()
        session = self._session
        if self._pump.is_ending and (session.has_ended or session.is_gone):
            self._deadline = min(self._deadline, now + END_LIMIT)
        if now >= self._deadline:
            self._close()

    def _watch(self) -> None:
        client, session = self._client, self._session
        is_wanted = self._is_lingering or not (self._has_input or session.unsent)
        reads = _IN if is_wanted and not client.has_ended else 0
        self._set_mask(client, reads | (_OUT if client.unsent else 0))
        reads = 0 if session.has_ended or client.unsent else _IN
        self._set_mask(session, reads | (_OUT if session.unsent else 0))

    def _set_mask(self, side: _Side, mask: int) -> None:
        if not side.is_gone:
            self._pump.watch(side.fd, side.mask, mask)
            side.mask = mask

    # -- from the client to the session

    def _to_session(self) -> None:
        client, session = self._client, self._session
        for _ in range(PIECES):
            if not session.send():
                return
            if session.is_broken:  # it has ended, and the client does not know it yet
                client.has_ended, self._has_input = True, False
            if not self._has_input:
                data = client.receive()
                if not data:
                    break
                self._layer.feed(data)
            self._decode()
        else:
            self._pump.run_again(self)
            return
        if client.has_ended and not self._has_told_end:
            self._has_told_end = True
            session.end_output()

    def _decode(self) -> None:
        """Decode the next piece."""
        piece = b""
        try:
            piece = self._layer.read()
        except LayerEnd:
            self._client.has_ended = True
        except LayerError as error:
            self._client.has_ended = True
            events.client_error(self._pump.log, client=self._peer, error=str(error))
        self._has_input = bool(piece)
        self._session.unsent = memoryview(piece)
        answer = self._layer.take()  # for example, in response to a key update
        if answer and not self._client.is_broken:
            self._client.unsent = memoryview(b"".join((self._client.unsent, answer)))

    def _discard(self) -> None:
        for _ in range(PIECES):
            if not self._client.receive():
                return
        self._pump.run_again(self)

    # -- from the session to the client

    def _to_client(self) -> None:
        client, session = self._client, self._session
        for _ in range(PIECES):
            if not client.send():
                return
            data = session.receive()
            if not data:
                return
            if not client.is_broken:
                self._encode(data)
        self._pump.run_again(self)

    def _encode(self, data: bytes) -> None:
        try:
            self._layer.write(data)
        except LayerError:
            self._client.break_off()
            self._client.has_ended, self._has_input = True, False
        else:
            self._client.unsent = memoryview(self._layer.take())

    # -- the end

    def _finish(self, has_progress: bool) -> None:
        """Close as the session does, once the client has received everything."""
        client = self._client
        if not self._is_lingering and client.send():
            self._is_lingering = True
            self._layer.close()
            client.unsent = memoryview(self._layer.take())
            self._layer.release()
        if not client.send():
            self._limit_flush(has_progress)
            return
        if not self._has_ended_output:
            self._has_ended_output = True
            self._deadline = self._pump.clock() + LINGER_LIMIT
            client.end_output()
        if client.is_broken or client.has_ended or self._session.is_gone:
            self._close()

    def _limit_flush(self, has_progress: bool) -> None:
        if has_progress or self._deadline == NEVER:
            self._deadline = self._pump.clock() + FLUSH_LIMIT

    def _close(self) -> None:
        self._is_closed = True
        for side in (self._client, self._session):
            if side.mask is not None:
                self._pump.watch(side.fd, side.mask, None)
        self._pump.forget(self)
        self._client.drain()
        for side in (self._client, self._session):
            side.socket.close()
        self._layer.release()


def run(pumped: Iterable[Pumped], alive: int, log: Lines) -> None:
    """Pump in this process, which does nothing else any more."""
    pump = Pump(pumped, alive, log)
    signal.signal(signal.SIGTERM, lambda *_: pump.end())
    pump.run()
