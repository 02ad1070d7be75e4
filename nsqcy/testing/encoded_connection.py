"""Client side of TLS, snappy and deflate, for a connection that began in plain text.

The codecs are third-party libraries, so that the two sides cannot share a bug.
"""

import socket
import ssl
import zlib
from pathlib import Path
from typing import Any, Protocol

import snappy

from nsqcy.testing.certificates import Files
from nsqcy.testing.wire_client import Conn

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
FLUSHED = b"\0\0\xff\xff"  # the end of a deflate block that was flushed


def client_context(
    shown: Files | None = None, version: ssl.TLSVersion | None = None, level: int | None = None
) -> ssl.SSLContext:
    """Return a TLS context that accepts any server, and presents this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if level is not None:
        context.set_ciphers(f"DEFAULT:@SECLEVEL={level}")
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


class Reachable(Protocol):
    """A daemon to which a test opens raw connections."""

    def connect(self, **options: Any) -> Conn: ...


class Snappy:
    """Snappy codec that starts every chunk with a stream identifier, which clients may do."""

    def __init__(self) -> None:
        self._input = b""
        self._decompressor = snappy.StreamDecompressor()

    def encode(self, data: bytes) -> bytes:
        compressed: bytes = snappy.StreamCompressor().compress(data)
        return compressed

    def decode(self, data: bytes) -> bytes:
        return b"".join(self.blocks(data))

    def blocks(self, data: bytes) -> list[bytes]:
        """Return the content of each chunk that has become complete."""
        self._input += data
        found = []
        while len(self._input) >= 4:
            end = 4 + int.from_bytes(self._input[1:4], "little")
            if len(self._input) < end:
                break
            chunk, self._input = self._input[:end], self._input[end:]
            if chunk != IDENTIFIER:
                found.append(self._decompressor.decompress(chunk))
        return found


class Deflate:
    def __init__(self) -> None:
        self._deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
        self._inflater = zlib.decompressobj(-15)

    def encode(self, data: bytes) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        return self._inflater.decompress(data)

    def blocks(self, data: bytes) -> list[bytes]:
        """Return the content of each flushed block. The data must end with a complete block."""
        return [self.decode(block + FLUSHED) for block in data.split(FLUSHED)[:-1]]


class CodecSocket:
    """The part of the socket interface that a connection uses, implemented on a codec."""

    def __init__(self, inner: socket.socket, codec: Snappy | Deflate, received: bytes) -> None:
        self.inner = inner
        self.codec = codec
        self._decoded = codec.decode(received)

    def sendall(self, data: bytes) -> None:
        self.inner.sendall(self.codec.encode(data))

    def recv(self, maximum: int) -> bytes:
        while not self._decoded:
            received = self.inner.recv(maximum)
            if not received:
                return b""
            self._decoded = self.codec.decode(received)
        taken, self._decoded = self._decoded[:maximum], self._decoded[maximum:]
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def start_tls(conn: Conn, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """Perform the TLS handshake. After that, an end of stream without close_notify is an error."""
    secure = (context or client_context()).wrap_socket(conn.socket, suppress_ragged_eofs=False)
    conn.socket = secure
    return secure


def make_codec(name: str) -> Snappy | Deflate:
    return Snappy() if name == "snappy" else Deflate()


def start_codec(conn: Conn, codec: str) -> None:
    """Switch to a codec. Bytes received after the response to IDENTIFY are already encoded."""
    received, conn._input = conn._input, b""
    conn.socket = CodecSocket(conn.socket, make_codec(codec), received)  # type: ignore[assignment]


def connect(
    daemon: Reachable,
    *,
    tls: bool | ssl.SSLContext = False,
    codec: str = "",
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> Conn:
    """Return a connection upgraded to TLS, a codec, or both; reads the OK for each."""
    conn = daemon.connect(**options)
    wanted = {"tls_v1": bool(tls)} | ({codec: True} if codec else {})
    answer = conn.negotiate(**wanted, **(fields or {}))
    assert answer["tls_v1"] is bool(tls)
    assert (answer["snappy"], answer["deflate"]) == (codec == "snappy", codec == "deflate")
    if tls:
        start_tls(conn, tls if isinstance(tls, ssl.SSLContext) else None)
        conn.expect_ok()
    if codec:
        start_codec(conn, codec)
        conn.expect_ok()
    return conn


def saved(folder: Path, identity: Any) -> Files:
    """Create a directory and save an identity's files in it."""
    folder.mkdir(exist_ok=True)
    files: Files = identity.save(folder)
    return files
