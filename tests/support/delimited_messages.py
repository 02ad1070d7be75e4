"""Messages with marked ends, so that tests can check a file of them to the byte."""

import gzip
import re
from collections.abc import Iterator

import zstandard

# A number, the length of the rest, and the rest, which may contain anything.
HEAD = re.compile(rb"\[([0-9]+) ([0-9]+)\]")


def record(number: int, filler: bytes = b"") -> bytes:
    return b"[%d %d]%s" % (number, len(filler), filler)


def unpacked(name: str, data: bytes) -> bytes:
    """Return the content of a file; fail if the file is incomplete or malformed."""
    if name.endswith(".gz"):
        assert data, f"{name} is empty"
        return gzip.decompress(data)
    if name.endswith(".zst"):
        assert data, f"{name} is empty"
        decompressor = zstandard.ZstdDecompressor()
        content = b""
        while data:  # a stream would treat a torn last frame as the end
            frame = decompressor.decompressobj()
            content += frame.decompress(data)
            assert frame.eof, f"{name} ends within a frame"
            data = frame.unused_data
        return content
    return data


def numbers(content: bytes) -> Iterator[int]:
    """Return the records in a file, each followed by a line feed; fail if the file contains
    anything else."""
    position = 0
    while position < len(content):
        head = HEAD.match(content, position)
        assert head, content[position : position + 40]
        position = head.end() + int(head[2]) + 1
        assert content[position - 1 : position] == b"\n", "a record is truncated"
        yield int(head[1])


def stored(files: dict[str, bytes]) -> list[int]:
    """Return the numbers in some files, by their names."""
    return [each for name, data in files.items() for each in numbers(unpacked(name, data))]
