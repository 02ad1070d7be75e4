"""Connections between workers: one per group and holder.

Owns sockets, greetings and the order of outgoing messages. The state machine interprets the
messages, and the caller decides which processes may connect.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gevent
from gevent import socket, ssl
from gevent.event import Event
from gevent.server import StreamServer

from nsqcy.copies.messages import FromHolder, FromOwner, Write
from nsqcy.logging.types import Lines
from nsqcy.names import host_port
from nsqcy.net import listeners
from nsqcy.nsqd.copies.copy_files import Data, Piece
from nsqcy.nsqd.copies.wire import (
    LEVEL,
    MAX_FRAME,
    Decoder,
    Greeting,
    Message,
    Welcome,
    WireError,
    encode,
    write_head,
)
from nsqcy.process.acceptor import EXHAUSTED, MAX_PAUSE, PAUSE, PauseLog

if TYPE_CHECKING:
    from OpenSSL import SSL

TITLE = "COPIES"  # name of the listener in the log
TIMEOUT = 5.0  # seconds to connect and exchange greetings
MAX_GREETING = 64  # accepted connections without a greeting; each may keep 80 KiB for TLS
MAX_QUEUED = 128 << 20  # maximum unsent bytes
PIECE = 256 << 10  # bytes to read at a time
MAX_PARTS = 500  # parts to send at a time; the kernel allows 1,024
SMALL = 32 << 10  # bytes; parts with a smaller total size are joined before sending


class _Slot:
    """Placeholder in the queue for a message whose data is still being read from disk."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: tuple[bytes, ...] = ()


class Stream:
    """A connection after the greetings. Sends messages in order and passes on the received ones."""

    def __init__(
        self,
        sock: socket.socket,
        decoder: Decoder,
        received: Callable[[Any], object],
        ended: Callable[[str], object],
    ) -> None:
        """
        received: called with each message
        ended: called once with the reason, unless `close` was called first
        """
        self._sock = sock
        self._decoder = decoder
        self._received = received
        self._ended = ended
        self._queue: deque[tuple[bytes, ...] | _Slot] = deque()
        self._queued = 0
        self._wake = Event()
        # Setting the event at the end of a turn would wake the greenlet much later.
        self._alarm = gevent.get_hub().loop.async_()
        self._alarm.start(self._wake.set)
        self._is_closed = False
        decoder.maximum = MAX_FRAME

    def run(self) -> None:
        """Send and receive until the connection ends."""
        writer = gevent.spawn(self._write)
        self._read()
        writer.join()

    def send(self, message: FromOwner | FromHolder) -> None:
        """Queue a message. A Write's data may be a Piece, which is read now and sent in
        order."""
        if self._is_closed:
            return
        if isinstance(message, Write):
            if isinstance(message.data, Piece):
                self._send_piece(message, message.data)
                return
            parts = _write_parts(message, message.data)
        else:
            parts = (encode(message),)
        self._queue.append(parts)
        self._add(parts)

    def close(self) -> None:
        """Close the connection, without calling `ended`."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.clear()
            self._wake.set()
            self._alarm.stop()
            self._alarm.close()
            # Wakes a greenlet that is reading; closing the socket would not.
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._sock.close()

    def _end(self, reason: str) -> None:
        if not self._is_closed:
            self.close()
            self._ended(reason)

    def _add(self, parts: tuple[bytes, ...]) -> None:
        self._queued += sum(map(len, parts))
        self._alarm.send()
        if self._queued > MAX_QUEUED:
            self._end(f"more than {MAX_QUEUED} bytes are queued")

    def _send_piece(self, message: Write, piece: Piece) -> None:
        slot = _Slot()
        self._queue.append(slot)

        def done(error: int, data: bytes) -> None:
            if error:
                self._end(f"a file cannot be read: {errno.errorcode.get(error, error)}")
            elif not self._is_closed:
                slot.parts = _write_parts(message, Data(data))
                self._add(slot.parts)

        piece.read(done)

    def _write(self) -> None:
        try:
            while not self._is_closed:
                parts = self._sendable()
                if parts:
                    self._send_all(parts)
                    self._queued -= sum(map(len, parts))
                else:
                    self._wake.clear()
                    self._wake.wait()
        except OSError as error:
            self._end(error.strerror or type(error).__name__)

    def _sendable(self) -> list[bytes]:
        """Remove and return the messages before the first one whose data is still being read."""
        found: list[bytes] = []
        while self._queue and len(found) < MAX_PARTS:
            first = self._queue[0]
            parts = first.parts if isinstance(first, _Slot) else first
            if not parts:
                break
            found += parts
            self._queue.popleft()
        return found

    def _send_all(self, parts: list[bytes]) -> None:
        """Send the parts. Large parts are not copied if the connection is not encrypted."""
        if type(self._sock) is not socket.socket or sum(map(len, parts)) < SMALL:
            self._sock.sendall(b"".join(parts))
            return
        sent = self._sock.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self._sock.sendall(memoryview(part)[sent:])
                sent = 0
            else:
                sent -= len(part)

    def _read(self) -> None:
        try:
            while not self._is_closed:
                data = self._sock.recv(PIECE)
                if not data:
                    self._end("connection closed")
                    return
                for message in self._decoder.feed(data):
                    if self._is_closed:
                        return
                    self._received(message)
        except WireError as error:
            self._end(str(error))
        except OSError as error:
            self._end(error.strerror or type(error).__name__)


def _write_parts(message: Write, data: Data) -> tuple[bytes, ...]:
    head = write_head(message.path, message.offset, data, message.position)
    return head, bytes(data.data)


def connect(
    address: tuple[str, int], greeting: Greeting, tls: ssl.SSLContext | None
) -> tuple[socket.socket, Decoder]:
    """Connect to a holder's worker and exchange greetings. Blocks its greenlet; raises OSError."""
    sock = None
    try:
        with gevent.Timeout(TIMEOUT, TimeoutError("timed out")):
            sock = socket.create_connection(address, TIMEOUT)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                sock = tls.wrap_socket(sock, server_hostname=address[0])
            sock.sendall(encode(greeting))
            decoder = Decoder()
            answer = _one(sock, decoder)
            if not isinstance(answer, Welcome):
                raise ConnectionError("the response to the greeting is not a welcome")
            if answer.error:
                raise ConnectionError(answer.error)
            return sock, decoder
    except WireError as error:
        _close(sock)
        raise ConnectionError(str(error)) from None
    except BaseException:
        _close(sock)
        raise


class _Server(StreamServer):  # type: ignore[misc]
    """Pauses while no descriptors are left; each pause is longer than the previous one, as for
    other connections. gevent would print a traceback for each attempt."""

    def __init__(
        self, sock: socket.socket, handle: Callable[[socket.socket, Any], object], log: Lines
    ) -> None:
        super().__init__(sock, handle)
        self.pause = PAUSE
        """Duration of the next pause in seconds."""
        self._pause_log = PauseLog(log)

    def do_read(self) -> tuple[socket.socket, Any] | None:
        try:
            found: tuple[socket.socket, Any] | None = super().do_read()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._begin_pause(error.strerror or "")
            return None
        if found is not None:
            self.pause = PAUSE
        return found

    def _begin_pause(self, error: str) -> None:
        self.stop_accepting()
        self._timer = self.loop.timer(self.pause)
        self._timer.start(self._start_accepting_if_started)
        self.pause = min(2 * self.pause, MAX_PAUSE)
        self._pause_log.say(TITLE, error)


class Listener:
    """Accepts connections from owners' workers."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: "SSL.Context | None",
        refusal: Callable[[Greeting], str],
        accepted: Callable[[Greeting, socket.socket, Decoder], object],
        log: Lines,
    ) -> None:
        """
        refusal: returns why a greeting is refused, or an empty string
        accepted: called with a connection after the greetings; the connection is closed on return

        Raises StartError if the address cannot be listened on.
        """
        self._tls = tls
        self._refusal = refusal
        self._accepted = accepted
        self._greeting: dict[socket.socket, gevent.Greenlet[Any, Any]] = {}
        """The connections without a greeting and their greenlets, the oldest first."""
        host, port = address
        bound = listeners.bind(host_port(host, port), "copies", unix=False)
        self._server = _Server(socket.socket(fileno=bound.sock.detach()), self._handle, log)
        self._server.start()

    @property
    def port(self) -> int:
        port: int = self._server.server_port
        return port

    def close(self) -> None:
        self._server.stop()

    def _handle(self, sock: socket.socket, _: Any) -> None:
        self._greeting[sock] = gevent.getcurrent()
        self._make_room()
        connection, decoder = sock, Decoder()
        try:
            with gevent.Timeout(TIMEOUT, TimeoutError("timed out")):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    from nsqcy.nsqd.copies.tls_socket import TlsSocket  # it imports OpenSSL

                    connection = TlsSocket(sock, self._tls)
                    connection.shake()
                greeting = _one(connection, decoder)
                if not isinstance(greeting, Greeting):
                    raise WireError("the first message is not a greeting")
                error = self._refusal(greeting)
                if greeting.level != LEVEL:
                    error = f"level {greeting.level} is not supported (allowed: {LEVEL})"
                connection.sendall(encode(Welcome(error)))
        except (OSError, WireError):
            sock.close()
            return
        finally:
            self._greeting.pop(sock, None)
        if error:
            sock.close()
        else:
            self._accepted(greeting, connection, decoder)

    def _make_room(self) -> None:
        """Close the oldest connections without a greeting if there are too many."""
        while len(self._greeting) > MAX_GREETING:
            self._greeting.pop(next(iter(self._greeting))).kill()


def _one(sock: socket.socket, decoder: Decoder) -> Message:
    """Receive the first message. Nothing follows it, because the other side is waiting for a
    response."""
    while True:
        data = sock.recv(PIECE)
        if not data:
            raise ConnectionError("connection closed")
        for message in decoder.feed(data):
            return message


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
