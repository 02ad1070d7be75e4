"""Anything that an nsqd may send to a client: the connection continues or ends, no matter how the
bytes are cut.

Valid frames before the bytes that end a connection may or may not be reported, depending on whether
they arrived together. Of the frames that arrive together, messages are reported first.
"""

import json
import random
import struct
import zlib
from itertools import pairwise
from typing import Any

from nsqcy.client.codec import AlreadyAnswered
from nsqcy.client.connection import Connection
from nsqcy.client.options import Address, ConnectionOptions
from nsqcy.errors import NsqError
from nsqcy.net.core import DeflateLayer, SnappyLayer
from support.fake_nsqd import SETTINGS, delivery, frame

COVERS = ["client/codec.pyx", "client/connection.py", "net/byte_layer.pyx"]
WORDS = [b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2", b"_heartbeat_", b"CLOSE_WAIT", b"E_FIN_FAILED "]
WORDS += [b"OK", b'"max_rdy_count":', b'"auth_required":true', b'"snappy":true', b'"headers":true']
KEYWORDS: list[dict[str, Any]] = [
    {},
    {"headers": True},
    {"snappy": True},
    {"deflate": True},
    {"auth_secret": "s"},
    {"max_msg_size": 40},
    {"durability": "fsync"},
]


def settled(**more: object) -> bytes:
    return frame(0, json.dumps({**SETTINGS, **more}).encode())


def seeds() -> list[bytes]:
    said = frame(0, b"OK") + delivery(b"body", attempts=3) + frame(0, b"_heartbeat_") * 2
    said += frame(1, b"E_FIN_FAILED x") + frame(0, b"CLOSE_WAIT") + frame(1, b"E_INVALID")
    found = [b"\0" + settled() + said, b"\0" + frame(0, b"OK") + said, b"\5" + settled() + said]
    found.append(b"\1" + settled(headers=True) + delivery(b"\0\5\1a\0\1xbody") * 2)
    found.append(b"\4" + settled(auth_required=True) + frame(0, b"{}") + said)
    found.append(b"\6" + settled(durability="fsync") + said)
    for number, name, layer in ((2, "snappy", SnappyLayer()), (3, "deflate", DeflateLayer())):
        layer.write(frame(0, b"OK") + said)
        layer.write(said)
        found.append(bytes([number]) + settled(**{name: True}) + layer.take())
    return found


def sound(data: bytes) -> bytes:
    """Reduce each announced frame length to the number of bytes that are left."""
    result, at = bytearray(data), 1
    while at + 8 <= len(result):
        (size,) = struct.unpack_from(">I", result, at)
        size = max(4, min(size, len(result) - at - 4))
        struct.pack_into(">I", result, at, size)
        at += 4 + size
    return bytes(result)


class Owner:
    """Records everything that it receives, and answers messages in every possible way."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.delivered: list[object] = []
        self.accepts = 0

    def ready(self, connection: Connection, now: float) -> None:
        self.told.append("ready")
        connection.subscribe("t", "c", now)
        connection.send_ready(9)

    def messages(self, connection: Connection, messages: list[Any], now: float) -> None:
        for each in messages:
            self.delivered.append((each.id, each.body, each.timestamp, each.attempts))
            try:
                self.delivered.append(each.headers)
            except ValueError:
                self.delivered.append("bad headers")
            answer = [each.finish, each.requeue, each.touch][each.attempts % 3]
            answer()
            try:
                each.finish()
            except AlreadyAnswered:
                pass

    def accepted(self, connection: Connection, count: int, now: float) -> None:
        self.accepts += count

    def response(self, connection: Connection, data: bytes, now: float) -> None:
        self.told.append((data, self.accepts))

    def refused(self, connection: Connection, error: NsqError, now: float) -> None:
        self.told.append(str(error))

    def heartbeat(self, connection: Connection) -> None:
        self.told.append("heartbeat")


def heard(keywords: dict[str, Any], pieces: list[bytes]) -> tuple[Owner, bool]:
    """Feed the pieces to a connection. Return the connection's owner, and whether an error ended
    the connection."""
    owner, ended = Owner(), False
    connection = Connection(Address("a", 1), ConnectionOptions(**keywords), owner)
    connection.begin(0)
    for piece in pieces:
        try:
            connection.feed(piece, 1)
        except NsqError:
            ended = True
            break
    connection.take()
    assert connection.codec.in_flight >= 0
    connection.close()
    return owner, ended


def one(data: bytes) -> None:
    if not data:
        return
    keywords, said = KEYWORDS[data[0] % len(KEYWORDS)], data[1:]
    chance = random.Random(zlib.crc32(data))
    cuts = sorted(chance.randrange(len(data)) for _ in range(chance.randint(0, 6)))
    pieces = [said[start:end] for start, end in pairwise([0, *cuts, len(data)])]
    whole, ended = heard(keywords, [said])
    parts, ended_too = heard(keywords, pieces)
    assert ended == ended_too
    if not ended:
        assert whole.accepts == parts.accepts
    for these, those in ((whole.told, parts.told), (whole.delivered, parts.delivered)):
        told = (min if ended else max)(len(these), len(those))
        assert these[:told] == those[:told]
