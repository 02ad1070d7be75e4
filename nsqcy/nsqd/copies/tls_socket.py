"""The accepted end of a TLS connection between workers.

Has the methods of a socket that streams use. Python's SSL socket would buffer 100 KiB of
certificates from anyone; `nsqd.tls` limits what a handshake keeps. Independent of messages.
"""

import gevent
from gevent import socket
from OpenSSL import SSL

from nsqcy.errors import LayerEnd, LayerError
from nsqcy.nsqd.tls import TlsLayer

PIECE = 4096  # bytes of a handshake to read at a time
# bytes of a handshake that OpenSSL receives at a time; it keeps a buffer of this size
PASSED = 1024


class TlsSocket:
    """One greenlet may read while another writes."""

    def __init__(self, sock: socket.socket, context: SSL.Context) -> None:
        self._sock = sock
        self._layer = TlsLayer(context)
        self._layer.passed = PASSED

    def shake(self) -> None:
        """Do the handshake. Blocks its greenlet; raises OSError."""
        while not self._step():
            gevent.sleep(0)  # each step takes milliseconds

    def _step(self) -> bool:
        layer = self._layer
        layer.feed(self._receive(PIECE))
        try:
            return layer.handshake()
        except LayerError as error:
            raise ConnectionError(str(error)) from None
        finally:
            self._sock.sendall(layer.take())

    def _receive(self, size: int) -> bytes:
        data: bytes = self._sock.recv(size)
        if not data:
            raise ConnectionError("connection closed")
        return data

    def recv(self, size: int) -> bytes:
        """Return the next decrypted bytes, received `size` at a time; b"" at the end."""
        layer = self._layer
        try:
            while not (piece := layer.read()):
                data = self._sock.recv(size)
                if not data:
                    return b""
                layer.feed(data)
        except LayerEnd:
            return b""
        except LayerError as error:
            raise ConnectionError(str(error)) from None
        return piece

    def sendall(self, data: bytes) -> None:
        self._layer.write(data)
        self._sock.sendall(self._layer.take())

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()
