"""Snappy and deflate: decoding restores the input, for any split; broken input is refused."""

import os
import random
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
import snappy
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcy.base.core import crc32c
from nsqcy.errors import LayerEnd, LayerError
from nsqcy.net.core import PIECE, ByteLayer, DeflateLayer, SnappyLayer

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
CODECS = [SnappyLayer, DeflateLayer]
KINDS = st.sampled_from(CODECS)
# Compressible words and incompressible bytes, from nothing to several blocks.
PLAIN = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda word, n: word * n, st.binary(min_size=1, max_size=20), st.integers(0, 20000)),
    st.builds(
        lambda seed, n: random.Random(seed).randbytes(n), st.integers(0, 9), st.integers(0, 200000)
    ),
)


def encoded(layer: ByteLayer, data: bytes) -> bytes:
    layer.write(data)
    return layer.take()


def drained(layer: ByteLayer) -> bytes:
    """Return everything in the layer; each piece must respect the size limit."""
    pieces = []
    while piece := layer.read():
        assert len(piece) <= PIECE
        pieces.append(piece)
    return b"".join(pieces)


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """Return the data in pieces, split at these positions."""
    ends = [*sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@given(writes=st.lists(PLAIN, max_size=5), places=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_comes_through_in_any_pieces(
    codec: type[ByteLayer], writes: list[bytes], places: list[int]
) -> None:
    sender, receiver = codec(), codec()
    wire = b"".join(encoded(sender, data) for data in writes)
    received = b""
    for piece in cut(wire, places):
        receiver.feed(piece)
        received += drained(receiver)
    assert received == b"".join(writes)


@pytest.mark.parametrize("codec", CODECS)
def test_every_write_can_be_decoded_at_once(codec: type[ByteLayer]) -> None:
    sender, receiver = codec(), codec()
    for data in (b"OK", b"a" * 500, b"b", os.urandom(70000), b"c" * 200000):
        receiver.feed(encoded(sender, data))
        assert drained(receiver) == data


@pytest.mark.parametrize("codec", CODECS)
@given(noise=st.binary(max_size=400))
def test_noise_does_no_harm(codec: type[ByteLayer], noise: bytes) -> None:
    layer = codec()
    try:
        layer.feed(noise)
        drained(layer)
    except (LayerError, LayerEnd):
        pass


@given(data=PLAIN, place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_flipped_bit_never_passes_for_data(data: bytes, place: int, bit: int) -> None:
    """Only snappy is tested, because its chunks have checksums."""
    wire = bytearray(encoded(SnappyLayer(), data))
    if not wire:
        return
    wire[place % len(wire)] ^= 1 << bit
    layer = SnappyLayer()
    layer.feed(bytes(wire))
    try:
        received = drained(layer)
    except LayerError:
        return
    # A chunk with a larger length or a skippable type hides the rest; earlier output is correct.
    assert data.startswith(received)


# -- snappy


def test_snappy_is_what_other_implementations_read_and_write() -> None:
    data = os.urandom(70000) + b"x" * 200000
    assert snappy.StreamDecompressor().decompress(encoded(SnappyLayer(), data)) == data
    layer = SnappyLayer()
    layer.feed(snappy.StreamCompressor().compress(data))
    assert drained(layer) == data


# Short and long repetitions, at short and long distances, between incompressible bytes.
TEXT = st.builds(
    lambda seed, words, n: b"".join(random.Random(seed).choices(words, k=n)),
    st.integers(0, 99),
    st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=40),
    st.integers(0, 3000),
)


@pytest.mark.slow
@given(data=st.one_of(PLAIN, TEXT))
def test_blocks_are_what_another_library_reads_and_writes(data: bytes) -> None:
    assert snappy.StreamDecompressor().decompress(encoded(SnappyLayer(), data)) == data
    layer = SnappyLayer()
    layer.feed(snappy.StreamCompressor().compress(data))
    assert drained(layer) == data


def test_threads_do_not_share_what_is_being_coded() -> None:
    """Threads matter because the blocking client has one for each consumer and producer."""

    def work(seed: int) -> bool:
        data = random.Random(seed).randbytes(30000) + bytes([seed]) * 30000
        sender, receiver = SnappyLayer(), SnappyLayer()
        for _ in range(100):
            receiver.feed(encoded(sender, data))
            if drained(receiver) != data:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def literal(data: bytes, extra: int) -> bytes:
    """`extra`: number of bytes for the length; 0 if it is in the tag."""
    less = len(data) - 1
    tag = less if not extra else 59 + extra
    return bytes([tag << 2]) + (less.to_bytes(extra, "little") if extra else b"") + data


def expanded(block: bytes) -> bytes | None:
    """Return the bytes that a block expands to; None if the block is invalid."""
    out = bytearray()
    at = 0
    while at < len(block):
        tag, at = block[at], at + 1
        size, extra = (tag >> 2) + 1, (0, 1, 2, 4)[tag & 3]
        if not tag & 3 and size > 60:
            extra = size - 60
        if at + extra > len(block):
            return None
        number, at = int.from_bytes(block[at : at + extra], "little"), at + extra
        if not tag & 3:
            size = number + 1 if extra else size
            out += block[at : at + size]
            at += size
            continue
        if tag & 3 == 1:
            size, number = 4 + (tag >> 2 & 7), number | tag >> 5 << 8
        if not 0 < number <= len(out):
            return None
        for _ in range(size):
            out.append(out[-number])
    return bytes(out) if at == len(block) else None


ELEMENTS = st.one_of(
    st.builds(literal, st.binary(min_size=1, max_size=60), st.integers(0, 4)),
    st.builds(
        lambda size, offset: bytes([offset >> 8 << 5 | (size - 4) << 2 | 1, offset & 255]),
        st.integers(4, 11),
        st.integers(0, 30),
    ),
    st.builds(
        lambda size, offset: bytes([(size - 1) << 2 | 2]) + offset.to_bytes(2, "little"),
        st.integers(1, 64),
        st.integers(0, 300),
    ),
    st.builds(
        lambda size, offset: bytes([(size - 1) << 2 | 3]) + offset.to_bytes(4, "little"),
        st.integers(1, 64),
        st.integers(0, 70000),
    ),
    st.binary(min_size=1, max_size=3),
)


@pytest.mark.slow
@given(
    first=st.binary(min_size=1, max_size=60),
    elements=st.lists(ELEMENTS, max_size=12),
    wrong=st.sampled_from([0, 0, 0, 1, -1]),
    cut_off=st.sampled_from([0, 0, 0, 1, 2]),
)
@example(first=b"a", elements=[b"\xf0\x00b"], wrong=0, cut_off=0)
@example(first=b"a", elements=[], wrong=-1, cut_off=2)
def test_a_block_is_decompressed_as_by_another_library(
    first: bytes, elements: list[bytes], wrong: int, cut_off: int
) -> None:
    body = literal(first, 0) + b"".join(elements)
    body = body[: len(body) - cut_off]
    plain = expanded(body)
    if plain is not None:
        try:
            theirs = snappy.decompress(varint(len(plain)) + body)
        except snappy.UncompressError as error:
            # cramjam requires four bytes after the tag of a long literal, even if the block is
            # shorter.
            assert "expected literal read of length 4" in str(error.__cause__)
        else:
            assert theirs == plain
    length = max(0, (0 if plain is None else len(plain)) + wrong)
    block = varint(length) + body
    crc = crc32c(plain or b"")
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    layer = SnappyLayer()
    layer.feed(IDENTIFIER + chunk(0, masked.to_bytes(4, "little") + block))
    if plain is None or length != len(plain):
        with pytest.raises(LayerError):
            drained(layer)
    else:
        assert drained(layer) == plain


def test_the_first_ok_is_an_uncompressed_chunk() -> None:
    wire = encoded(SnappyLayer(), b"\0\0\0\x06\0\0\0\0OK")
    assert wire.startswith(IDENTIFIER + b"\x01\x0e\0\0")


def test_a_second_identifier_is_accepted() -> None:
    sender = SnappyLayer()
    wire = encoded(sender, b"one") + IDENTIFIER + IDENTIFIER + encoded(sender, b"two")
    layer = SnappyLayer()
    layer.feed(wire)
    assert drained(layer) == b"onetwo"


@pytest.mark.parametrize("kind", [0x80, 0xFD, 0xFE])
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_skippable_chunks_are_skipped_and_not_kept(kind: int, step: int) -> None:
    sender, layer = SnappyLayer(), SnappyLayer()
    start = encoded(sender, b"one")
    wire = start + chunk(kind, b"?" * 3000) + chunk(kind, b"") + encoded(sender, b"two")
    received = b""
    for at in range(0, len(wire), step):
        layer.feed(wire[at : at + step])
        received += drained(layer)
        assert step > 7 or layer.buffered < 30
    assert received == b"onetwo"


@pytest.mark.parametrize(
    "wire",
    [
        b"NOP\n",
        encoded(SnappyLayer(), b"hello")[10:],  # no identifier
        IDENTIFIER[:4] + b"sNaPpy",
        b"\xff\x07\x00\x00sNaPpY?",
        IDENTIFIER + chunk(0x02, b"????"),
        IDENTIFIER + chunk(0x7F, b"????"),
        IDENTIFIER + chunk(0x00, b""),
        IDENTIFIER + chunk(0x00, b"\0\0\0\0"),
        IDENTIFIER + chunk(0x01, b"\0\0\0"),
        IDENTIFIER + chunk(0x01, b"\0\0\0\0" + b"?" * 65537),
        IDENTIFIER + b"\x00\xff\xff\xff",  # announces 16 MiB
        IDENTIFIER + chunk(0x00, b"\0\0\0\0\xff\xff\xff\xff\x0f"),  # claims 4 GiB
        IDENTIFIER + chunk(0x00, b"\0\0\0\0\x81\x80\x04" + b"?" * 10),  # claims 65,537
        encoded(SnappyLayer(), b"hello")[:-1] + b"O",  # checksum
    ],
)
def test_broken_snappy_is_refused(wire: bytes) -> None:
    layer = SnappyLayer()
    layer.feed(wire)
    with pytest.raises(LayerError):
        drained(layer)


# -- deflate


def test_deflate_is_raw() -> None:
    data = b"0123456789" * 1000
    sender = DeflateLayer(3)
    wire = encoded(sender, data)
    assert len(wire) < 500
    assert wire.endswith(b"\0\0\xff\xff")
    assert zlib.decompressobj(-15).decompress(wire) == data
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    layer = DeflateLayer()
    layer.feed(deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH))
    assert drained(layer) == data


def test_empty_blocks_are_tolerated() -> None:
    layer = DeflateLayer()
    layer.feed(b"\0\0\0\xff\xff" * 1000)
    assert layer.read() == b""
    layer.feed(encoded(DeflateLayer(), b"x"))
    assert drained(layer) == b"x"


def test_the_compressor_is_let_go_and_the_stream_goes_on() -> None:
    sender, receiver = DeflateLayer(), zlib.decompressobj(-15)
    sent = []
    for turn in range(20):
        data = b"_heartbeat_" if turn % 3 else b"0123456789" * 100 * turn
        sent.append(data)
        assert receiver.decompress(encoded(sender, data)) == data
        if turn % 4 == 3:
            sender.rest()
            sender.rest()
            assert not sender.has_compressor


def test_a_compressor_in_use_is_kept() -> None:
    sender = DeflateLayer()
    encoded(sender, b"x" * 100)
    sender.rest()
    assert sender.has_compressor
    encoded(sender, b"_heartbeat_")
    sender.rest()
    assert not sender.has_compressor
    encoded(sender, b"_heartbeat_")
    assert not sender.has_compressor


def test_broken_deflate_is_refused() -> None:
    layer = DeflateLayer()
    layer.feed(b"\xff\xff\xff\xff")
    with pytest.raises(LayerError):
        layer.read()


def test_the_end_of_the_stream_is_the_end() -> None:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    layer = DeflateLayer()
    layer.feed(deflater.compress(b"last") + deflater.flush() + b"and more")
    assert layer.read() == b"last"
    with pytest.raises(LayerEnd):
        layer.read()


def test_a_bomb_comes_out_in_pieces() -> None:
    """The output is a thousand times larger than the input, and is produced one piece at a time."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflater.compress(bytes(64 << 20)) + deflater.flush(zlib.Z_SYNC_FLUSH)
    layer = DeflateLayer()
    layer.feed(bomb)
    sizes = []
    while piece := layer.read():
        sizes.append(len(piece))
    assert max(sizes) <= PIECE
    assert sum(sizes) == 64 << 20
