"""Byte layers between the protocol of a connection and its socket.

Owns the interface of layers and the two codecs that NSQ negotiates: snappy (in its framing format)
and deflate (raw). TLS is a layer too, but not here. Knows no sockets: bytes go in and come out.

A layer decodes one piece per call, so that a small input with a huge output costs the memory of
one piece.
"""

import zlib
from typing import Protocol

import cramjam

from nsqcy.base.crc import crc32c
from nsqcy.errors import LayerEnd, LayerError

PIECE = 65536  # maximum bytes of one decoded piece

_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _UNCOMPRESSED, _FIRST_SKIPPABLE, _IDENTIFIES = 0x00, 0x01, 0x80, 0xFF
_BLOCK = 65536  # maximum plain bytes in a chunk
_CHECKSUM = 4
# The maximum that snappy makes of an incompressible block.
_MAX_CHUNK = _CHECKSUM + 32 + _BLOCK + _BLOCK // 6

_INPUT_STEP = 16384  # encoded bytes passed to the inflater at once: it copies unused input
_MAX_STORED = 32
_SYNC_FLUSH = b"\x00\x00\x00\xff\xff"


class Layer(Protocol):
    """One step of the encoding of a connection, in both directions."""

    def feed(self, data: bytes) -> None:
        """Add encoded bytes from the peer."""

    def read(self) -> bytes:
        """Return the next decoded piece of at most PIECE bytes; b"" if more input is needed.

        Raises LayerError if the input is corrupt, and LayerEnd after its last byte.
        """

    def write(self, data: bytes) -> None:
        """Encode bytes. The peer can decode all of them from the next take()."""

    def take(self) -> bytes:
        """Return and remove the encoded bytes for the peer."""

    def rest(self) -> None:
        """Free memory that was not used since the last call. Called periodically."""


class SnappyLayer:
    """The framing format of snappy: chunks of at most 64 KiB, each with a checksum."""

    def __init__(self) -> None:
        self._input = bytearray()
        self._skip = 0  # bytes of a skippable chunk still to receive
        self._begun = False  # the identifier of the peer was received
        self._output = b""
        self._identified = False  # our identifier was sent

    def feed(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        self._input += data

    def read(self) -> bytes:
        while len(self._input) >= 4:
            kind = self._input[0]
            length = int.from_bytes(self._input[1:4], "little")
            self._check(kind, length)
            if _FIRST_SKIPPABLE <= kind < _IDENTIFIES:
                self._skip_chunk(length)
                continue
            if len(self._input) < 4 + length:
                return b""
            chunk = bytes(self._input[4 : 4 + length])
            del self._input[: 4 + length]
            if kind == _IDENTIFIES:
                self._identify(chunk)
                continue
            piece = _plain(kind, chunk)
            if piece:
                return piece
        return b""

    def write(self, data: bytes) -> None:
        encoded = [self._output]
        if not self._identified:
            self._identified = True
            encoded.append(_IDENTIFIER)
        for start in range(0, len(data), _BLOCK):
            encoded.append(_chunk(data[start : start + _BLOCK]))
        self._output = b"".join(encoded)

    def take(self) -> bytes:
        taken, self._output = self._output, b""
        return taken

    def rest(self) -> None:
        """Do nothing: no memory is kept between chunks."""

    def _check(self, kind: int, length: int) -> None:
        """Reject a chunk by its header, without waiting for its data."""
        if not self._begun and kind != _IDENTIFIES:
            raise LayerError("snappy: the stream does not begin with its identifier")
        if _UNCOMPRESSED < kind < _FIRST_SKIPPABLE:
            raise LayerError(f"snappy: chunk of unknown kind {kind}")
        if kind <= _UNCOMPRESSED and not _CHECKSUM <= length <= _MAX_CHUNK:
            raise LayerError(f"snappy: chunk of {length} bytes")
        if kind == _IDENTIFIES and length != len(_IDENTIFIER) - 4:
            raise LayerError("snappy: wrong identifier")

    def _identify(self, chunk: bytes) -> None:
        if chunk != _IDENTIFIER[4:]:
            raise LayerError("snappy: wrong identifier")
        self._begun = True

    def _skip_chunk(self, length: int) -> None:
        there = min(length, len(self._input) - 4)
        self._skip = length - there
        del self._input[: 4 + there]


def _plain(kind: int, chunk: bytes) -> bytes:
    """Return the decoded bytes of a data chunk; raises LayerError."""
    piece = chunk[_CHECKSUM:]
    if kind == _COMPRESSED:
        piece = _decompress(piece)
    elif len(piece) > _BLOCK:
        raise LayerError(f"snappy: {len(piece)} bytes in a chunk")
    if chunk[:_CHECKSUM] != _checksum(piece):
        raise LayerError("snappy: wrong checksum")
    return piece


def _decompress(data: bytes) -> bytes:
    try:
        # Check the claimed length before allocating memory for it.
        length = cramjam.snappy.decompress_raw_len(data)
        if length > _BLOCK:
            raise LayerError(f"snappy: {length} bytes in a chunk")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise LayerError(f"snappy: {error}") from None


def _chunk(block: bytes) -> bytes:
    kind = _COMPRESSED
    data = bytes(cramjam.snappy.compress_raw(block))
    if len(data) >= len(block) - len(block) // 8:
        kind, data = _UNCOMPRESSED, block
    length = _CHECKSUM + len(data)
    return b"%c%b%b%b" % (kind, length.to_bytes(3, "little"), _checksum(block), data)


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked.to_bytes(4, "little")


class DeflateLayer:
    """Raw deflate, flushed after each write and never finished.

    A compressor takes a quarter of a megabyte. Because each write ends with a flush, the compressor
    can be freed at any time and replaced later; the peer still sees one stream.
    """

    def __init__(self, level: int = 6) -> None:
        self._level = level
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._input = bytearray()
        self._deflater: zlib._Compress | None = None
        self._used = False  # since the last rest()
        self._output = b""

    def feed(self, data: bytes) -> None:
        self._input += data

    def read(self) -> bytes:
        while True:
            if self._inflater.eof:
                raise LayerEnd("deflate: the stream ends")
            given = bytes(self._input[:_INPUT_STEP])
            try:
                piece = self._inflater.decompress(given, PIECE)
            except zlib.error as error:
                raise LayerError(f"deflate: {error}") from None
            del self._input[: len(given) - len(self._inflater.unconsumed_tail)]
            if piece:
                return piece
            if not self._input and not self._inflater.eof:
                return b""

    def write(self, data: bytes) -> None:
        if self._deflater is None:
            if len(data) <= _MAX_STORED:
                # Responses and heartbeats are not worth a compressor.
                self._output += _stored(data)
                return
            self._deflater = zlib.compressobj(self._level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._used = self._used or len(data) > _MAX_STORED
        encoded = self._deflater.compress(data)
        self._output += encoded + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def take(self) -> bytes:
        taken, self._output = self._output, b""
        return taken

    def rest(self) -> None:
        if not self._used:
            self._deflater = None
        self._used = False


def _stored(data: bytes) -> bytes:
    """Return a stored (uncompressed) block and a flush."""
    length = len(data)
    lengths = length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
    return b"\x00" + lengths + data + _SYNC_FLUSH
