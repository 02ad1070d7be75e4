"""nsqlookupd's TCP protocol: whole and cut input have the same answers, registry and log."""

import json
import random
import struct
import zlib
from itertools import pairwise

from nsqcy.nsqlookupd.protocol import Session, SessionContext
from nsqcy.nsqlookupd.registry import Moment, Registry

COVERS = ["nsqlookupd/protocol.py", "nsqlookupd/registry.py", "util/gojson.py"]
WORDS = [b"  V1", b"IDENTIFY\n", b"REGISTER ", b"UNREGISTER ", b"PING\n", b"#ephemeral\n", b" "]
WORDS += [b'"broadcast_address":', b'"tcp_port":', b'"http_port":', b'"version":', b"null"]
NOW = Moment(0, 0)
SIZE = struct.Struct(">i")
PEER = {"broadcast_address": "a", "tcp_port": 1, "http_port": 2, "version": "1", "hostname": "h"}


def identify(**said: object) -> bytes:
    body = json.dumps({**PEER, **said}).encode()
    return b"IDENTIFY\n" + SIZE.pack(len(body)) + body


def seeds() -> list[bytes]:
    commands = (
        b"REGISTER t c\nREGISTER t d#ephemeral\nPING\nUNREGISTER t d#ephemeral\nUNREGISTER t\n"
    )
    return [
        b"  V1" + identify() + commands,
        b"  V1" + identify(topology_zone="z", Hostname="x", remote_address="y") + commands,
        b"  V1" + commands,
        b"  V2PING\n",
        b"  V1" + identify() + b"REGISTER $\n",
    ]


def fresh(chance: random.Random) -> bytes:
    return chance.choice([*seeds()[0][4:].split(b"\n"), b"PING", identify()]) + b"\n"


def sound(data: bytes) -> bytes:
    """Reduce an announced body length to the number of bytes that are left."""
    at = data.find(b"IDENTIFY\n") + 9
    if at < 9 or at + 4 > len(data):
        return data
    size = min(int.from_bytes(data[at : at + 4], "big"), len(data) - at - 4)
    return data[:at] + size.to_bytes(4, "big") + data[at + 4 :]


class Lines(list[str]):
    def info(self, text: str, **fields: object) -> None:
        text.encode("utf-8", "surrogateescape")
        self.append(text)

    warn = error = info


def said(pieces: list[bytes]) -> object:
    registry, log = Registry(1, 1), Lines()
    session = Session(SessionContext(registry, b"identity", log), "1.2.3.4:5")
    output = b""
    for piece in [*pieces, None]:
        if piece is None:
            session.feed_eof()
        else:
            session.feed(piece)
        more = True
        while more:
            answers, more = session.turn(NOW)
            output += answers
    assert session.closing and not session.held
    everything = [
        (each, [(one.peer.node, one.tombstoned) for one in registry.producers(each)])
        for each in registry.registrations()
    ]
    list(session.leave(NOW))
    assert [*registry.counts(NOW)][-1].producers == 0
    return output, everything, list(log)


def one(data: bytes) -> None:
    chance = random.Random(zlib.crc32(data))
    cuts = sorted(chance.randint(0, len(data)) for _ in range(chance.randint(0, 6)))
    pieces = [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]
    assert said([data]) == said(pieces)
