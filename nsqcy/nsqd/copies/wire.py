"""Messages between workers as bytes.

A frame consists of a length, a type and a payload; integers are big-endian. A connection carries
one group's stream. It begins with a greeting from the owner's worker, to which the holder's worker
responds with a welcome or an error.
"""

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nsqcy.copies.messages import (
    Align,
    Alive,
    Confirm,
    Delete,
    Extent,
    Fetch,
    Fetched,
    Filled,
    FromHolder,
    FromOwner,
    Have,
    Offer,
    Received,
    Refuse,
    Rename,
    Truncate,
    Write,
)
from nsqcy.formats import COPIES_STREAM
from nsqcy.net.core import FrameData
from nsqcy.nsqd.copies.copy_files import Data

MAX_FRAME = 64 << 20  # maximum bytes; a list of all files may be long
MAX_GREETING = 4096
REASONS = ("epoch", "full", "failing", "leaving", "replaced")

_FRAME = struct.Struct(">IB")
_WRITE = struct.Struct(">HBQq")
_PATH_NUMBER = struct.Struct(">HQ")
_CHANGE = struct.Struct(">HQq")
_NUMBER = struct.Struct(">q")
_FETCH = struct.Struct(">QHHQQ")
_FETCHED = struct.Struct(">QB")
_CONFIRM_FRAME = struct.Struct(">IBq")

OUTCOMES = ("", "missing", "unreadable")

WRITE = 7
"""Type of a Write's frame; its data follows a head and a path."""
WRITE_HEAD = _WRITE.size

_CONFIRM = 14
_RECORDS = 1  # flag of a write
_SURROGATE = re.compile("[\ud800-\udfff]")


class WireError(ValueError):
    """Error: received bytes are not a message in this protocol."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """First message from an owner's worker."""

    cluster: str
    node: str
    """Node of the owner."""
    holder: str
    """Node of the holder."""
    group: str
    token: str = ""
    level: int = COPIES_STREAM.number


@dataclass(frozen=True, slots=True)
class Welcome:
    """Response to a greeting; after an error, the connection ends."""

    error: str = ""


Message = Greeting | Welcome | FromOwner | FromHolder


def write_head(path: str, offset: int, data: Data, position: int) -> bytes:
    """Return the beginning of a Write's frame; the data follows it."""
    name = path.encode()
    head = _WRITE.pack(len(name), _RECORDS if data.are_records else 0, offset, position)
    return _FRAME.pack(len(head) + len(name) + len(data.data), WRITE) + head + name


def encode(message: Message) -> bytes:
    """Return a message's frame. A Write's data must be Data."""
    match message:
        case Write(path, offset, data, position):
            return write_head(path, offset, data, position) + bytes(data.data)
        case Confirm(position):
            return _CONFIRM_FRAME.pack(_NUMBER.size, _CONFIRM, position)
        case Alive(fetches):
            # Versions without Fetch ignore the payload, and send none.
            return _frame(3, b"\1" if fetches else b"")
        case Fetch(number, path, identity, offset, size):
            name = path.encode()
            head = _FETCH.pack(number, len(name), len(identity), offset, size)
            return _frame(15, head + name + identity)
        case Fetched(number, outcome, data):
            head = _FETCHED.pack(number, OUTCOMES.index(outcome))
            return _frame(16, head + (data or b""))
        case Received():
            return _frame(13, b"")
        case Offer(epoch):
            return _frame(4, _NUMBER.pack(epoch))
        case Align(path, size):
            name = path.encode()
            return _frame(5, _PATH_NUMBER.pack(len(name), size) + name)
        case Truncate(path, size, position):
            name = path.encode()
            return _frame(8, _CHANGE.pack(len(name), size, position) + name)
        case Rename(path, to, position):
            name = path.encode()
            return _frame(9, _CHANGE.pack(len(name), 0, position) + name + to.encode())
        case Delete(path, position):
            name = path.encode()
            return _frame(10, _CHANGE.pack(len(name), 0, position) + name)
        case Filled(paths, position):
            return _frame(6, _NUMBER.pack(position) + "\n".join(paths).encode())
        case Have(files):
            lines = [f"{each.size} {each.identity.hex()} {path}" for path, each in files.items()]
            return _frame(11, "\n".join(lines).encode())
        case Refuse(reason):
            return _frame(12, reason.encode())
        case Greeting():
            fields = {name: getattr(message, name) for name in Greeting.__slots__}
            return _frame(1, json.dumps(fields).encode())
        case Welcome(error):
            return _frame(2, error.encode())
    raise TypeError(message)


class Decoder:
    """Decodes messages from a byte stream."""

    def __init__(self, maximum: int = MAX_GREETING) -> None:
        """
        maximum: limit on a frame's payload, in bytes. Raise it once the other side is known.
        """
        self.maximum = maximum
        self._input = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Return the complete messages. Raises WireError, after which the stream is unusable."""
        source: bytes | bytearray = data
        if self._input:
            self._input += data
            source = self._input
        at = 0
        try:
            while len(source) - at >= _FRAME.size:
                length, kind = _FRAME.unpack_from(source, at)
                if length > self.maximum:
                    raise WireError(f"frame of {length} bytes: at most {self.maximum} are allowed")
                end = at + _FRAME.size + length
                if len(source) < end:
                    break
                head, rest = _split(kind, memoryview(source)[at + _FRAME.size : end])
                message = decode(kind, head, rest)
                at = end
                yield message
        finally:
            if source is self._input:
                del self._input[:at]
            else:
                self._input += source[at:]


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), kind) + payload


def _split(kind: int, payload: memoryview) -> tuple[bytes, bytearray | None]:
    """Return a frame's payload up to a Write's data, and this data."""
    if kind != WRITE or len(payload) < WRITE_HEAD:
        return bytes(payload), None
    end = WRITE_HEAD + _WRITE.unpack_from(payload)[0]
    return bytes(payload[:end]), bytearray(payload[end:])


def decode(kind: int, payload: bytes, data: bytearray | FrameData | None) -> Message:
    """Return a frame's message. Raises WireError.

    data: a Write's data, which follows the payload
    """
    try:
        if kind == _CONFIRM:
            return Confirm(*_NUMBER.unpack(payload))
        return _write(payload, data) if kind == WRITE else _READERS[kind](payload)
    except KeyError:
        raise WireError(f"unknown type {kind}") from None
    except (struct.error, UnicodeDecodeError):
        raise WireError(f"malformed message of type {kind}") from None


def _path(payload: bytes, begin: int, length: int) -> str:
    """Return a path of one or two names, relative to a group's directory."""
    if len(payload) < begin + length:
        raise WireError("the path is longer than its message")
    return _decoded_path(payload[begin : begin + length])


@lru_cache(maxsize=64)
def _decoded_path(path: bytes) -> str:
    return checked_path(path.decode())


def checked_path(path: str) -> str:
    """Return a path of one or two names. Raises WireError for any other path."""
    names = path.split("/")
    if not 1 <= len(names) <= 2 or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise WireError(f"invalid path {path[:100]!r}")
    return path


def parse_run(payload: bytes) -> tuple[str, int, int] | None:
    """Return the path, offset and position of a Write's frame, if it carries a run of records and
    no fill. Raises WireError."""
    length, flags, offset, position = _WRITE.unpack_from(payload)
    if flags != _RECORDS or position < 0 or len(payload) != WRITE_HEAD + length:
        return None
    return _decoded_path(payload[WRITE_HEAD:]), offset, position


def _write(payload: bytes, data: bytearray | FrameData | None) -> Write:
    length, flags, offset, position = _WRITE.unpack_from(payload)
    path = _path(payload, WRITE_HEAD, length)
    return Write(path, offset, Data(data or b"", bool(flags & _RECORDS)), position)


def _align(payload: bytes) -> Align:
    length, size = _PATH_NUMBER.unpack_from(payload)
    return Align(_path(payload, _PATH_NUMBER.size, length), size)


def _change(payload: bytes) -> tuple[str, int, int, bytes]:
    length, size, position = _CHANGE.unpack_from(payload)
    path = _path(payload, _CHANGE.size, length)
    return path, size, position, payload[_CHANGE.size + length :]


def _truncate(payload: bytes) -> Truncate:
    path, size, position, _ = _change(payload)
    return Truncate(path, size, position)


def _rename(payload: bytes) -> Rename:
    path, _, position, to = _change(payload)
    return Rename(path, checked_path(to.decode()), position)


def _delete(payload: bytes) -> Delete:
    path, _, position, _ = _change(payload)
    return Delete(path, position)


def _filled(payload: bytes) -> Filled:
    (position,) = _NUMBER.unpack_from(payload)
    text = payload[_NUMBER.size :].decode()
    return Filled([checked_path(each) for each in text.split("\n")] if text else [], position)


def _have(payload: bytes) -> Have:
    files = {}
    for line in payload.decode().split("\n") if payload else ():
        try:
            size, identity, path = line.split(" ", 2)
            files[checked_path(path)] = Extent(int(size), bytes.fromhex(identity))
        except ValueError:
            raise WireError("malformed file list") from None
    return Have(files)


def _fetch(payload: bytes) -> Fetch:
    number, length, identity_length, offset, size = _FETCH.unpack_from(payload)
    path = _path(payload, _FETCH.size, length)
    identity = payload[_FETCH.size + length :]
    if len(identity) != identity_length:
        raise WireError("malformed identity")
    return Fetch(number, path, identity, offset, size)


def _fetched(payload: bytes) -> Fetched:
    number, outcome = _FETCHED.unpack_from(payload)
    if outcome >= len(OUTCOMES):
        raise WireError(f"unknown outcome {outcome}")
    return Fetched(number, OUTCOMES[outcome], payload[_FETCHED.size :])


def _refuse(payload: bytes) -> Refuse:
    reason = payload.decode()
    if reason not in REASONS:
        raise WireError(f"unknown reason {reason[:100]!r}")
    return Refuse(reason)


def _greeting(payload: bytes) -> Greeting:
    try:
        fields: Any = json.loads(payload)
        greeting = Greeting(**fields)
    except (ValueError, TypeError, RecursionError):
        raise WireError("malformed greeting") from None
    texts = (greeting.cluster, greeting.node, greeting.holder, greeting.group, greeting.token)
    if not all(map(_is_text, texts)) or type(greeting.level) is not int:
        raise WireError("malformed greeting")
    return greeting


def _is_text(value: Any) -> bool:
    """Return whether this is a string that UTF-8 can encode: JSON may contain surrogates."""
    return isinstance(value, str) and not _SURROGATE.search(value)


_READERS: dict[int, Callable[[bytes], Message]] = {
    1: _greeting,
    2: lambda payload: Welcome(payload.decode()),
    3: lambda payload: Alive(payload[:1] == b"\1"),
    4: lambda payload: Offer(*_NUMBER.unpack(payload)),
    5: _align,
    6: _filled,
    8: _truncate,
    9: _rename,
    10: _delete,
    11: _have,
    12: _refuse,
    13: lambda payload: Received(),
    15: _fetch,
    16: _fetched,
}
