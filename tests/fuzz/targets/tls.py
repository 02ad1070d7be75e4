"""TLS data of an established connection, cut, damaged or mixed with garbage. The layer returns the
sent data or refuses it, and never returns anything else."""

import contextlib
import random
import zlib
from itertools import pairwise

from OpenSSL import SSL

from nsqcy.errors import LayerEnd, LayerError
from nsqcy.net.core import PIECE
from nsqcy.nsqd.tls import TlsLayer, make_context
from support.memory_tls import Client, material, shake_hands

COVERS = ["net/tls_stream.pyx", "nsqd/tls.py", "net/byte_layer.pyx"]
WORDS = [b"\x14\x03\x03", b"\x15\x03\x03\0\x02\x01\0", b"\x16\x03\x01", b"\x17\x03\x03\x40\0"]
CONTEXT = make_context(material())[0]
VERSIONS = (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION)
INTACT, FLIPPED, CUT, FOREIGN, ENDED, TWICE, GARBAGE = range(7)


def seeds() -> list[bytes]:
    chance = random.Random(1)
    bodies = [b"", b"x", b"MPUB t\n" * 40, chance.randbytes(40_000)]
    return [bytes([kind]) + body for kind in range(2 * (GARBAGE + 1)) for body in bodies]


def wire_of(client: Client, plain: bytes, chance: random.Random) -> bytes:
    """Return the bytes of a client that sends `plain` in several writes."""
    wire = b""
    at = 0
    while at < len(plain):
        at += client.tls.send(plain[at : at + chance.randint(1, 20_000)])
        wire += client.take()
    return wire


def changed(kind: int, wire: bytes, client: Client, chance: random.Random) -> bytes:
    """Return the wire with a defect of this kind."""
    place = chance.randrange(len(wire) + 1)
    if kind == FLIPPED and wire:
        place %= len(wire)
        return wire[:place] + bytes([wire[place] ^ 1 << chance.randrange(8)]) + wire[place + 1 :]
    if kind == CUT:
        return wire[:place]
    if kind == FOREIGN:
        return wire[:place] + chance.randbytes(chance.randint(1, 2000)) + wire[place:]
    if kind == ENDED:
        client.tls.shutdown()
        return wire + client.take() + wire
    if kind == TWICE:
        return wire + wire
    return wire


def received(layer: TlsLayer, pieces: list[bytes]) -> tuple[bytes, Exception | None]:
    """Return what the layer decodes, and why it stopped."""
    found = b""
    try:
        for piece in pieces:
            layer.feed(piece)
            while plain := layer.read():
                assert len(plain) <= PIECE
                found += plain
    except (LayerError, LayerEnd) as error:
        return found, error
    return found, None


def one(data: bytes) -> None:
    if not data:
        return
    chance = random.Random(zlib.crc32(data))
    kind, plain = data[0] // 2 % (GARBAGE + 1), data[1:]
    layer, client = TlsLayer(CONTEXT), Client(newest=VERSIONS[data[0] % 2])
    shake_hands(layer, client)
    wire = (
        plain if kind == GARBAGE else changed(kind, wire_of(client, plain, chance), client, chance)
    )
    cuts = sorted(chance.randrange(len(wire) + 1) for _ in range(chance.randint(0, 8)))
    found, error = received(
        layer, [wire[start:end] for start, end in pairwise([0, *cuts, len(wire)])]
    )
    if kind == GARBAGE:
        assert not found
    else:
        assert plain.startswith(found)
        assert found == plain or kind in (FLIPPED, CUT, FOREIGN)
    if error is not None:
        # An error is final, and later writes have no effect.
        assert received(layer, [wire]) == (b"", error)
    with contextlib.suppress(LayerError):
        layer.write(plain)
        answer = layer.take()
        if error is None and answer:
            client.tls.bio_write(answer)
            back = b""
            while len(back) < len(plain):
                back += client.tls.recv(PIECE)
            assert back == plain
    layer.close()
    layer.take()
