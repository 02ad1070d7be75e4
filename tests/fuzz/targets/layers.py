"""Compressed streams: no matter how the input is cut, the layers return pieces of a bounded size or
refuse the input. They also decode everything that they encode."""

import random
import zlib
from itertools import pairwise

from nsqcy.base.core import crc32c
from nsqcy.errors import LayerEnd, LayerError
from nsqcy.net.core import PIECE, ByteLayer, DeflateLayer, SnappyLayer

COVERS = ["net/byte_layer.pyx", "net/deflate.pyx", "net/snappy.pyx", "base/crc.pyx"]
WORDS = [b"\xff\x06\0\0sNaPpY", b"\0\0\0\xff\xff", b"\1\5\0\0", b"\xfe\4\0\0", b"\x80\0\0\0"]
MAX_DECODED = 64 * PIECE


def seeds() -> list[bytes]:
    found = []
    for number, make in enumerate((SnappyLayer, DeflateLayer)):
        layer = make()
        for data in (b"hello", b"abcd" * 100, bytes(70_000), b"", random.Random(1).randbytes(300)):
            layer.write(data)
            found.append(bytes([number]) + layer.take())
        found.append(b"".join([found[-1], *(each[1:] for each in found[-4:-1])]))
    return found


def sound(data: bytes) -> bytes:
    """Correct the lengths of snappy chunks, and the checksums of uncompressed ones."""
    if not data or data[0] % 2:
        return data
    result, at = bytearray(data), 1
    while at + 8 <= len(result):
        length = min(int.from_bytes(result[at + 1 : at + 4], "little"), len(result) - at - 4)
        result[at + 1 : at + 4] = length.to_bytes(3, "little")
        if result[at] == 1 and length >= 4:
            crc = crc32c(bytes(result[at + 8 : at + 4 + length]))
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            result[at + 4 : at + 8] = masked.to_bytes(4, "little")
        at += 4 + length
    return bytes(result)


def decoded(layer: ByteLayer, pieces: list[bytes]) -> tuple[bytes, str]:
    found = bytearray()
    try:
        for piece in pieces:
            layer.feed(piece)
            while plain := layer.read():
                assert len(plain) <= PIECE
                found += plain
                if len(found) > MAX_DECODED:
                    return bytes(found[:MAX_DECODED]), "enough"
    except (LayerError, LayerEnd) as error:
        return bytes(found), str(error)
    return bytes(found), ""


def one(data: bytes) -> None:
    if not data:
        return
    make, stream = (SnappyLayer, DeflateLayer)[data[0] % 2], data[1:]
    chance = random.Random(zlib.crc32(data))
    cuts = sorted(chance.randrange(len(data)) for _ in range(chance.randint(0, 6)))
    pieces = [stream[start:end] for start, end in pairwise([0, *cuts, len(data)])]
    whole, end = decoded(make(), [stream])
    parts, their_end = decoded(make(), pieces)
    assert bool(end) == bool(their_end)
    # Bytes that arrive together with corrupt ones may be lost.
    assert whole.startswith(parts) if len(parts) < len(whole) else parts.startswith(whole)
    assert end or whole == parts
    layer = make()
    for piece in pieces:
        layer.write(piece)
        layer.rest()
    assert decoded(make(), [layer.take()]) == (stream, "")
