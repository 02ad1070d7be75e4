"""A client's TLS, as a layer of a connection.

Owns the handshake and the encoding. The context decides which peers to trust.
"""

import ssl

from nsqcy.errors import LayerEnd, LayerError
from nsqcy.net.core import PIECE, ByteLayer


class TlsLayer(ByteLayer):
    """TLS over in-memory buffers. The handshake begins at the first read."""

    def __init__(self, context: ssl.SSLContext, server_hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=server_hostname
        )
        self._shaken = False
        self._early: list[bytes] = []  # written before the handshake was complete

    def feed(self, data: bytes) -> None:
        self._incoming.write(data)

    def read(self) -> bytes:
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                early, self._early = self._early, []
                for data in early:
                    self.write(data)
            piece = self._tls.read(PIECE)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLZeroReturnError:
            raise LayerEnd("TLS: the peer closed the connection") from None
        except ssl.SSLError as error:
            raise _broken(error) from error
        if not piece:
            raise LayerEnd("TLS: the peer closed the connection")
        return piece

    def write(self, data: bytes) -> None:
        if not self._shaken:
            self._early.append(data)
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:  # a want-read is also an error at this point
            raise _broken(error) from error

    def take(self) -> bytes:
        return self._outgoing.read()

    def rest(self) -> None:
        """Do nothing: no output is buffered in this layer."""


def _broken(error: ssl.SSLError) -> LayerError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return LayerError(f"TLS: certificate not accepted: {error.verify_message}")
    return LayerError(f"TLS: {error.reason or error}")
