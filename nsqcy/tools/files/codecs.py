"""File formats: plain lines, gzip members or zstd frames.

Encodes members, and finds the valid length of a file by reading it. A compressed file is a sequence
of members. Each ends before a sync, so that all synced bytes can be decompressed regardless of what
follows. Does no I/O: callers pass a read function.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from nsqcy.tools.common import ToolError

if TYPE_CHECKING:
    import zstandard

BLOCK = 1 << 16

# Takes an offset and a count; returns fewer bytes only at the end of the file.
Read = Callable[[int, int], bytes]


class Member(Protocol):
    """A member being written."""

    def add(self, data: bytes) -> bytes:
        """Add data; return the bytes to write now. More bytes may follow later."""

    def end(self) -> bytes:
        """End the member; return the remaining bytes."""


class Codec(Protocol):
    """A file format.

    suffix   of the file name
    framed   whether members have a frame, so that an empty file is invalid
    """

    suffix: str
    framed: bool

    def member(self) -> Member: ...

    def sound_length(self, read: Read, size: int) -> int:
        """Return the length of the leading complete lines or members of a file."""


# --- plain ------------------------------------------------------------------------------------


class Lines:
    """Plain lines, without framing."""

    def add(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""


class Plain:
    suffix = ""
    framed = False

    def member(self) -> Lines:
        return Lines()

    def sound_length(self, read: Read, size: int) -> int:
        end = size
        while end > 0:
            start = max(0, end - BLOCK)
            found = read(start, end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0


# --- gzip -------------------------------------------------------------------------------------


class GzipMember:
    def __init__(self, level: int) -> None:
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._crc = 0
        self._size = 0
        # No name, no time, unknown OS: equal messages produce equal files.
        self._header = struct.pack("<4BIBB", 0x1F, 0x8B, 8, 0, 0, {1: 4, 9: 2}.get(level, 0), 255)

    def add(self, data: bytes) -> bytes:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        return self._take_header() + self._deflate.compress(data)

    def end(self) -> bytes:
        trailer = struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)
        return self._take_header() + self._deflate.flush() + trailer

    def _take_header(self) -> bytes:
        header, self._header = self._header, b""
        return header


class Gzip:
    suffix = ".gz"
    framed = True

    def __init__(self, level: int) -> None:
        self._level = level

    def member(self) -> GzipMember:
        return GzipMember(self._level)

    def sound_length(self, read: Read, size: int) -> int:
        return _whole_members(read, lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), zlib.error)


# --- zstd -------------------------------------------------------------------------------------


class ZstdFrame:
    def __init__(self, compressor: "zstandard.ZstdCompressor") -> None:
        self._frame = compressor.compressobj()

    def add(self, data: bytes) -> bytes:
        return self._frame.compress(data)

    def end(self) -> bytes:
        return self._frame.flush()


class Zstd:
    suffix = ".zst"
    framed = True

    def __init__(self, level: int) -> None:
        try:
            import zstandard
        except ImportError:
            raise ToolError(
                '--zstd needs the zstandard package: pip install "nsqcy[tools]"'
            ) from None
        self._zstandard = zstandard
        # Checksums, as in gzip members, let every reader detect damage.
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)

    def member(self) -> ZstdFrame:
        return ZstdFrame(self._compressor)

    def sound_length(self, read: Read, size: int) -> int:
        decompressor = self._zstandard.ZstdDecompressor()
        return _whole_members(read, decompressor.decompressobj, self._zstandard.ZstdError)


def _whole_members(read: Read, begin: Callable[[], Any], bad: type[Exception]) -> int:
    """Return the end of the last leading member that can be decompressed."""
    sound = position = 0
    member = begin()
    for block in _blocks(read):
        while block:
            try:
                member.decompress(block)
            except bad:
                return sound
            position += len(block)
            if not member.eof:
                break
            block = member.unused_data
            position -= len(block)
            sound = position
            member = begin()
    return sound


def _blocks(read: Read) -> Iterator[bytes]:
    offset = 0
    while block := read(offset, BLOCK):
        yield block
        offset += len(block)
