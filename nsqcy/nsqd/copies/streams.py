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
from nsqcy.formats import COPIES_STREAM
from nsqcy.logging.types import Lines
from nsqcy.names import host_port
from nsqcy.net import listeners
from nsqcy.net.core import FrameData, FrameSocket
from nsqcy.nsqd.copies.copy_files import Data, Piece
from nsqcy.nsqd.copies.run_sink import RunSink
from nsqcy.nsqd.copies.wire import (
    MAX_FRAME,
    WRITE,
    WRITE_HEAD,
    Decoder,
    Greeting,
    Message,
    Welcome,
    WireError,
    decode,
    encode,
    write_head,
)
from nsqcy.process.acceptor import EXHAUSTED, MAX_PAUSE, PAUSE, PauseLog
from nsqcy.storage.core import RunBytes

if TYPE_CHECKING:
    from OpenSSL import SSL

TITLE = "COPIES"  # name of the listener in the log
TIMEOUT = 5.0  # maximum seconds to connect and exchange greetings
MAX_GREETING = 64  # maximum connections without a greeting; each may keep 80 KiB for TLS
MAX_QUEUED = 128 << 20  # maximum unsent bytes
PIECE = 256 << 10  # bytes to read at a time


Sendable = bytes | bytearray | FrameData | RunBytes
Parts = tuple[Sendable, ...]
Later = Callable[[Callable[[], object]], object]
"""Receives a function, and calls it before the hub polls again."""


def soon(call: Callable[[], object]) -> None:
    gevent.get_hub().loop.run_callback(call)


class _Slot:
    """Placeholder in the queue for a message whose data is still being read from disk."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: Parts = ()


class Stream:
    """A connection after the greetings. Sends messages in order and passes on the received ones."""

    def __init__(
        self,
        sock: socket.socket,
        decoder: Decoder,
        received: Callable[[Any], object],
        ended: Callable[[str], object],
        later: Later = soon,
    ) -> None:
        """
        received: called with each message
        ended: called once with the reason, unless `close` was called first
        """
        self._sock = sock
        self._received = received
        self._ended = ended
        self._slots: deque[Parts | _Slot] = deque()
        """Messages from the first one whose data is still being read."""
        self._is_closed = False
        self.sink: RunSink | None = None
        """Takes the messages that it accepts; all others are passed to `received`."""
        self._carrier: FrameSocket | _EncryptedFrames
        if type(sock) is socket.socket:
            self._carrier = FrameSocket(
                sock.fileno(),
                gevent.get_hub().loop,
                self._decode,
                self._end,
                later,
                MAX_FRAME,
                WRITE,
                WRITE_HEAD,
            )
        else:
            decoder.maximum = MAX_FRAME
            self._carrier = _EncryptedFrames(sock, decoder, self._pass_on, self._end)
        self._over = Event()

    def run(self) -> None:
        """Send and receive until the connection ends."""
        if not self._is_closed:
            self._carrier.start()
        self._over.wait()

    def send(self, message: FromOwner | FromHolder) -> None:
        """Queue a message. A Write's data may be a Piece, which is read now and sent in
        order."""
        if self._is_closed:
            return
        parts: Parts
        if isinstance(message, Write):
            data = message.data
            if isinstance(data, Piece):
                self._send_piece(message, data)
                return
            parts = write_head(message.path, message.offset, data, message.position), data.data
        else:
            parts = (encode(message),)
        if self._slots:
            self._slots.append(parts)
        else:
            self._put(parts)

    def close(self) -> None:
        """Close the connection, without calling `ended`."""
        if not self._is_closed:
            self._is_closed = True
            self._slots.clear()
            self._carrier.close()
            # Wakes a greenlet that is reading; closing the socket would not.
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._sock.close()
            self._over.set()

    def _end(self, reason: str) -> None:
        if not self._is_closed:
            self.close()
            self._ended(reason)

    def _put(self, parts: Parts) -> None:
        self._carrier.send(parts)
        if self._carrier.queued > MAX_QUEUED:
            self._end(f"more than {MAX_QUEUED} bytes are queued")

    def _send_piece(self, message: Write, piece: Piece) -> None:
        slot = _Slot()
        self._slots.append(slot)

        def done(error: int, data: bytes) -> None:
            if error:
                self._end(f"{message.path} {_read_error(error)}")
            elif not self._is_closed:
                head = write_head(message.path, message.offset, Data(data), message.position)
                slot.parts = head, data
                self._put_read()

        piece.read(done)

    def _put_read(self) -> None:
        """Send the messages before the first one whose data is still being read."""
        while self._slots:
            first = self._slots[0]
            parts = first.parts if isinstance(first, _Slot) else first
            if not parts:
                break
            self._slots.popleft()
            self._put(parts)

    def _decode(self, kind: int, payload: bytes, data: FrameData | None) -> None:
        try:
            if self.sink is not None and data is not None and self.sink.take(payload, data):
                return
            message = decode(kind, payload, data)
        except WireError as error:
            self._end(str(error))
        else:
            self._received(message)

    def _pass_on(self, message: Message) -> None:
        if not self._is_closed:
            self._received(message)


def _read_error(error: int) -> str:
    if error == errno.ENOENT:  # usual: all its messages were finished before its turn
        return "was deleted before it was sent; the copy is compared again"
    return f"cannot be read: {errno.errorcode.get(error, error)}"


class _EncryptedFrames:
    """Replacement for a FrameSocket on an encrypted connection, which needs greenlets."""

    def __init__(
        self,
        sock: Any,
        decoder: Decoder,
        received: Callable[[Message], object],
        ended: Callable[[str], object],
    ) -> None:
        self._sock = sock
        self._decoder = decoder
        self._received = received
        self._ended = ended
        self._parts: list[Sendable] = []
        self.queued = 0
        self._wake = Event()
        # Setting the event at the end of a turn would wake the greenlet much later.
        self._alarm = gevent.get_hub().loop.async_()
        self._alarm.start(self._wake.set)
        self._is_closed = False

    def start(self) -> None:
        gevent.spawn(self._write)
        gevent.spawn(self._read)

    def send(self, parts: Parts) -> None:
        if not self._is_closed:
            self._parts += parts
            self.queued += sum(map(len, parts))
            self._alarm.send()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._parts.clear()
            self._wake.set()
            self._alarm.stop()
            self._alarm.close()

    def _write(self) -> None:
        try:
            while not self._is_closed:
                if self._parts:
                    joined = b"".join(self._parts)
                    self._parts.clear()
                    self._sock.sendall(joined)
                    self.queued -= len(joined)
                else:
                    self._wake.clear()
                    self._wake.wait()
        except OSError as error:
            self._ended(error.strerror or type(error).__name__)

    def _read(self) -> None:
        try:
            while not self._is_closed:
                data = self._sock.recv(PIECE)
                if not data:
                    self._ended("connection closed")
                    return
                for message in self._decoder.feed(data):
                    self._received(message)
        except WireError as error:
            self._ended(str(error))
        except OSError as error:
            self._ended(error.strerror or type(error).__name__)


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
        fd: int = -1,
    ) -> None:
        """
        refusal: returns why a greeting is refused, or an empty string
        accepted: called with a connection after the greetings; the connection is closed on return
        fd: a listening socket to use; -1: listen on `address`

        Raises StartError if the address cannot be listened on.
        """
        self._tls = tls
        self._refusal = refusal
        self._accepted = accepted
        self._greeting: dict[socket.socket, gevent.Greenlet[Any, Any]] = {}
        """The connections without a greeting and their greenlets, the oldest first."""
        if fd < 0:
            host, port = address
            fd = listeners.bind(host_port(host, port), "copies", unix=False).sock.detach()
        self._server = _Server(socket.socket(fileno=fd), self._handle, log)
        self._server.start()

    @property
    def port(self) -> int:
        port: int = self._server.server_port
        return port

    def fileno(self) -> int:
        fd: int = self._server.socket.fileno()
        return fd

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
                if not COPIES_STREAM.reads(greeting.level):
                    error = COPIES_STREAM.refusal(greeting.level)
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
