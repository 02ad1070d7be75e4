"""pynsq's commands, frames, names and errors."""

import json
import re
import struct
from collections.abc import Collection

from nsqcy.compat.pynsq.message import Message

__all__ = [
    "FRAME_TYPE_ERROR",
    "FRAME_TYPE_MESSAGE",
    "FRAME_TYPE_RESPONSE",
    "MAGIC_V2",
    "NL",
    "ConnectionClosedError",
    "Error",
    "IntegrityError",
    "SendError",
    "auth",
    "decode_message",
    "dpub",
    "finish",
    "identify",
    "mpub",
    "nop",
    "pub",
    "ready",
    "requeue",
    "subscribe",
    "touch",
    "unpack_response",
    "valid_channel_name",
    "valid_topic_name",
]

MAGIC_V2 = b"  V2"
NL = b"\n"
FRAME_TYPE_RESPONSE, FRAME_TYPE_ERROR, FRAME_TYPE_MESSAGE = 0, 1, 2

Text = str | bytes

_LENGTH = struct.Struct(">l")
_HEADER = struct.Struct(">qH16s")
_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


class Error(Exception):
    """Base class of errors; also the error for a command that nsqd rejects."""


class SendError(Error):
    """The command could not be sent."""

    def __init__(self, msg: str, error: Exception | None = None) -> None:
        self.msg = msg
        self.error = error

    def __str__(self) -> str:
        return f"SendError: {self.msg} ({self.error})"

    __repr__ = __str__


class ConnectionClosedError(Error):
    """The connection was lost before the response arrived."""


class IntegrityError(Error):
    """The received bytes are not a frame of NSQ's protocol."""


def unpack_response(data: bytes) -> tuple[int, bytes]:
    """Return the type and the data of a frame."""
    return _LENGTH.unpack(data[:4])[0], data[4:]


def decode_message(data: bytes) -> Message:
    timestamp, attempts, id_ = _HEADER.unpack(data[: _HEADER.size])
    return Message(id_, data[_HEADER.size :], timestamp, attempts)


def _bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def _command(verb: bytes, *words: Text, body: bytes | None = None) -> bytes:
    line = b" ".join((verb, *map(_bytes, words))) + NL
    if body is None:
        return line
    assert isinstance(body, bytes), "body must be a bytestring"
    return line + _LENGTH.pack(len(body)) + body


def subscribe(topic: str, channel: str) -> bytes:
    assert valid_topic_name(topic)
    assert valid_channel_name(channel)
    return _command(b"SUB", topic, channel)


def identify(data: object) -> bytes:
    return _command(b"IDENTIFY", body=json.dumps(data).encode())


def auth(data: bytes) -> bytes:
    return _command(b"AUTH", body=data)


def ready(count: int) -> bytes:
    assert isinstance(count, int), "ready count must be an integer"
    assert count >= 0, "ready count cannot be negative"
    return _command(b"RDY", str(count))


def finish(id: Text) -> bytes:
    return _command(b"FIN", id)


def requeue(id: Text, time_ms: int = 0) -> bytes:
    assert isinstance(time_ms, int), "requeue time_ms must be an integer"
    return _command(b"REQ", id, str(time_ms))


def touch(id: Text) -> bytes:
    return _command(b"TOUCH", id)


def nop() -> bytes:
    return _command(b"NOP")


def pub(topic: str, data: bytes) -> bytes:
    return _command(b"PUB", topic, body=data)


def mpub(topic: str, data: Collection[bytes]) -> bytes:
    assert isinstance(data, set | list)
    assert all(isinstance(each, bytes) for each in data), "message bodies must be bytestrings"
    parts = [_LENGTH.pack(len(data))]
    for each in data:
        parts += (_LENGTH.pack(len(each)), each)
    return _command(b"MPUB", topic, body=b"".join(parts))


def dpub(topic: str, delay_ms: int, data: bytes) -> bytes:
    assert isinstance(delay_ms, int), "dpub delay_ms must be an integer"
    return _command(b"DPUB", topic, str(delay_ms), body=data)


def valid_topic_name(topic: str) -> bool:
    return 0 < len(topic) < 65 and _NAME.fullmatch(topic) is not None


def valid_channel_name(channel: str) -> bool:
    return valid_topic_name(channel)
