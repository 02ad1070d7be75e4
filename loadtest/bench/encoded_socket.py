"""Sockets with TLS, snappy or deflate, for the load.

Owns the encoding; implements only the socket methods that the loads use.
"""

import socket
import ssl
from typing import Any

from nsqcy.net.core import ByteLayer, DeflateLayer, SnappyLayer

RECEIVE = 1 << 20
_room = memoryview(bytearray(RECEIVE))  # holds received bytes until they are decoded
LAYERS = {"snappy": SnappyLayer, "deflate": DeflateLayer}


class EncodedSocket:
    """A connected socket whose bytes pass through a layer. All other methods are those of the
    wrapped socket."""

    def __init__(self, inner: socket.socket, layer: ByteLayer) -> None:
        self._inner = inner
        self._layer = layer
        self._decoded = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sendall(self, data: Any) -> None:
        """Encode and send all bytes."""
        self._layer.write(bytes(data))
        self._inner.sendall(self._layer.take())

    def recv(self, maximum: int) -> bytes:
        """Return at least one decoded byte; b"" at the end."""
        while not self._decoded:
            self._decoded = self._layer.read()
            if not self._decoded:
                received = self._inner.recv_into(_room)
                if not received:
                    return b""
                self._layer.feed(bytes(_room[:received]))
        taken, self._decoded = self._decoded[:maximum], self._decoded[maximum:]
        return taken

    def recv_into(self, room: Any) -> int:
        """Receive at least one decoded byte into `room`; return the number of bytes."""
        data = self.recv(len(room))
        room[: len(data)] = data
        return len(data)


def secured(sock: socket.socket) -> socket.socket:
    """Return the socket after a TLS handshake that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(sock)
