"""HTTPS: an `HttpConnection` that sends and receives through a TLS layer.

The handshake waits for its turns in the worker's handshake queue, together with handshakes of TCP
clients.
"""

import socket
from collections.abc import Sequence

from nsqcy.errors import LayerEnd, LayerError
from nsqcy.http.server import HttpConnection, HttpServer, Packed
from nsqcy.logging import events
from nsqcy.net.core import PIECE
from nsqcy.nsqd.tls import Handshake, Handshakes, TlsLayer

# The start of a request from a client that uses plain HTTP, and a response that it can read.
_HTTP = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ")
_SPEAK_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
_PIECES_A_TURN = 16
_UNAUTHENTICATED_RECEIVE = 4096  # less than for plain HTTP: a decoded record is kept as well
_PIECES = 4  # approximate number of pieces into which received data is decoded, one after the other
_PASSES = 16  # number of parts in which OpenSSL gets received data; it keeps memory for one part


class HttpsConnection(HttpConnection):
    """Does not read the socket while a handshake step is waiting to run."""

    __slots__ = (
        "_handshake",
        "_layer",
        "_said_goodbye",
        "_silent",
        "certificate_names",
        "is_pending",
    )
    secure = True
    # Fewer than for HTTP: answers accumulate unencoded until the socket accepts them.
    events_a_turn = 16

    def __init__(
        self, server: HttpServer, sock: socket.socket, peer: str, handshakes: Handshakes
    ) -> None:
        super().__init__(server, sock, peer)
        self.certificate_names: Sequence[str] = ()
        self._silent = True  # the peer has sent nothing
        self._said_goodbye = False
        self.is_pending = False  # whether received data must not be decoded yet
        self._handshake: Handshake | None = handshakes.begin(self)
        self._layer = self._handshake.layer

    def close(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        super().close()

    @property
    def is_in_handshake(self) -> bool:  # type: ignore[override]
        return self._handshake is not None and not self._silent

    def wants_input(self) -> bool:
        # A handshake cannot be packed, so it goes on while the server rests.
        if self._handshake is not None and self._server.is_resting:
            return self._unsent is None
        return super().wants_input()

    def _read(self) -> None:
        if self._handshake is not None and not (self._reading or self._closed):
            self._reading = True
            self._read_watcher.start(self.on_readable)
        else:
            super()._read()

    def pack(self) -> Packed | None:
        if self._handshake is not None:
            if not self._silent:
                return None
            return Packed(self.fd, {"peer": self._peer, "is_new": True}, b"", b"")
        packed = super().pack()
        if packed is None:
            return None
        unsent = b"" if self._lingering else b"".join(self._out)
        return packed._replace(unsent=unsent, surrender=self._surrender)

    def _surrender(self) -> tuple[int, TlsLayer, bytes]:
        unsent = b"" if self._unsent is None else bytes(self._unsent)
        return self._sock.detach(), self._layer, unsent

    def wind_down(self) -> None:
        if self._handshake is not None:
            self.close()
        else:
            super().wind_down()

    def is_late(self, now: float) -> bool:
        return self._handshake is None and super().is_late(now)  # the handshake has its own timer

    # The handshake (tls.Owner)

    def send_encoded(self, data: bytes) -> None:
        if self._unsent is not None:
            self._unsent = memoryview(b"".join((self._unsent, data)))
        elif not self._closed:
            self._send(data)

    def want_input(self) -> None:
        self._read()

    def handshake_done(self, error: str | None) -> None:
        self._handshake = None
        if self._closed:
            return
        if error is None:
            self.since = self._server.now
            if self._server.api.knows_users:
                self.receive_size = _UNAUTHENTICATED_RECEIVE
            self.certificate_names = self._layer.certificate_names()
            self._decode(b"")
        else:
            self._complain(error)
            self._linger()

    def _shake(self, handshake: Handshake, data: bytes) -> None:
        first, self._silent = self._silent, False
        if not data:
            self._complain("EOF")
            self.close()
        elif first and data.startswith(_HTTP):
            handshake.cancel()
            self._handshake = None
            self._send(_SPEAK_TLS)
            self._linger()
        else:
            self._read_watcher.stop()
            self._reading = False
            handshake.feed(data)

    def _complain(self, reason: str) -> None:
        events.https_handshake_failed(self._server.api.log, peer=self._peer, error=reason)

    # Input

    def received(self, data: bytes) -> None:
        if self._handshake is not None:
            self._shake(self._handshake, data)
        elif data and not self._lingering:
            self._decode(data)
        else:
            super().received(data)

    def _decode(self, data: bytes) -> None:
        self._layer.feed(data)
        self.is_pending = True
        self.process()

    def _feed_more(self) -> bool:
        """Decode the next piece. The rest stays encoded, and small, while a request or an answer is
        waiting."""
        layer, protocol = self._layer, self._protocol
        layer.passed = self.receive_size // _PASSES
        layer.enough = self.receive_size // _PIECES
        try:
            piece = layer.read()
        except LayerEnd:
            is_first, self.is_pending = self.is_pending, False
            if is_first:
                protocol.feed_eof()
            return is_first
        except LayerError:
            self._send(layer.take())
            self.close()
            return False
        self.is_pending = bool(piece)
        answer = layer.take()  # for example in response to a key update
        if answer:
            self.send_encoded(answer)
        if piece:
            if not protocol.in_head:
                self.since = self._server.now
            protocol.feed(piece)
        return bool(piece)

    # Output

    def _flush(self) -> None:
        """Send in pieces, so that data waiting for the socket stays unencoded, and one turn does
        not encode too much."""
        if self._closed or self._unsent is not None:
            return
        left = _PIECES_A_TURN
        try:
            while self._out:
                data = self._output()
                if not left:
                    self.send_later(memoryview(data))
                    return
                if not self._send(data):
                    return
                left -= 1
        except LayerError:
            self.close()
            return
        self._sent()

    def _output(self) -> bytes:
        data = super()._output()
        size = min(PIECE, self.receive_size)  # OpenSSL keeps memory for one part
        if len(data) > size:
            self._out.insert(0, memoryview(data)[size:])
        self._layer.write(bytes(data[:size]))
        return self._layer.take()

    def _sent(self) -> None:
        if self._handshake is not None:
            return
        if self._protocol.closing and not self._said_goodbye:
            self._said_goodbye = True
            self._layer.close()
            if not self._send(self._layer.take()):
                return
        super()._sent()

    def _linger(self) -> None:
        self._layer.release()
        super()._linger()
