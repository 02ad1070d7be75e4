"""Message headers (docs/PROTOCOL.md) as bytes and as Python values."""

import re
from collections.abc import Iterable

MAX_BYTES = 4096
MAX_COUNT = 32
MAX_VALUE = 65535
NAME = re.compile(rb"[a-z0-9-]{1,255}")
TTL = re.compile(rb"(?!0*$)[0-9]{1,12}")

Header = tuple[bytes, bytes]


class BadHeaders(ValueError):
    """The headers are invalid."""


def encode(headers: Iterable[tuple[str, str | bytes | None]]) -> bytes:
    """Encode headers that nsqd accepts."""
    found = [(octets(name), octets(value or b"")) for name, value in headers]
    check(found)
    return b"".join(
        len(name).to_bytes() + name + len(value).to_bytes(2, "big") + value for name, value in found
    )


def checked(data: bytes) -> bytes:
    """Return the same bytes if nsqd accepts them."""
    check(decode(data))
    return data


def as_text(data: bytes) -> list[tuple[str, str]]:
    """Decode headers. Bytes in a value that are not UTF-8 become U+FFFD."""
    return [(name.decode(), value.decode(errors="replace")) for name, value in decode(data)]


def decode(data: bytes) -> list[Header]:
    found: list[Header] = []
    at = 0
    while at < len(data):
        value = at + 1 + data[at]
        end = value + 2 + int.from_bytes(data[value : value + 2], "big")
        if value + 2 > len(data) or end > len(data):
            raise BadHeaders(f"header {len(found)} extends beyond the last of {len(data)} bytes")
        found.append((data[at + 1 : value], data[value + 2 : end]))
        at = end
    return found


def check(headers: list[Header]) -> None:
    if len(headers) > MAX_COUNT:
        raise BadHeaders(f"{len(headers)} headers (at most {MAX_COUNT})")
    size = sum(3 + len(name) + len(value) for name, value in headers)
    if size > MAX_BYTES:
        raise BadHeaders(f"headers of {size} bytes (at most {MAX_BYTES})")
    seen = set()
    for name, value in headers:
        shown = name.decode(errors="replace")
        if not NAME.fullmatch(name):
            raise BadHeaders(f"header name {shown!r} (allowed: 1 to 255 of a-z, 0-9 and -)")
        if name in seen:
            raise BadHeaders(f"header {shown!r} twice")
        seen.add(name)
        if name == b"ttl" and not TTL.fullmatch(value):
            raise BadHeaders("header 'ttl' is not a number of milliseconds")


def octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
