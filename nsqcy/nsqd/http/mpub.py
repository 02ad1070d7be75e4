"""Splits the body of an /mpub request into messages: pure functions over bytes."""

from collections.abc import Sequence
from struct import Struct

_INT32 = Struct(">i").unpack_from


class BadBody(Exception):
    """The body cannot be published; `code` is NSQ's error code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def split_text(body: bytes, max_msg_size: int) -> list[bytes]:
    """Split by lines: only LF ends a line, and empty lines are not messages."""
    messages = list(filter(None, body.split(b"\n")))
    if messages and max(map(len, messages)) > max_msg_size:
        raise BadBody("MSG_TOO_BIG")
    return messages


def split_binary(body: bytes, max_msg_size: int, max_body_size: int) -> Sequence[memoryview]:
    """Split `int32 count`, then `int32 size` and the bytes of each message; big-endian.

    Bytes after the last message are ignored.
    """
    if len(body) < 4:
        raise BadBody("BAD_BODY")
    (count,) = _INT32(body, 0)
    # A message needs at least five bytes, so a larger count is invalid.
    if count <= 0 or count > (max_body_size - 4) // 5:
        raise BadBody("BAD_BODY")
    view = memoryview(body)
    end = len(body)
    at = 4
    messages = []
    for _ in range(count):
        if at + 4 > end:
            raise BadBody("BAD_MESSAGE")
        (size,) = _INT32(body, at)
        at += 4
        if size <= 0 or size > max_msg_size or at + size > end:
            raise BadBody("BAD_MESSAGE")
        messages.append(view[at : at + size])
        at += size
    return messages
