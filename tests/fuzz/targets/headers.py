"""Headers of messages: the compiled reader and Spark's reader agree, and encoding the result
restores the input."""

import random

from nsqcy.base.core import decode_headers, encode_headers, headers_from_text
from nsqcy.spark import headers

COVERS = ["base/headers.pyx", "spark/headers.py"]
WORDS = [b"\3ttl", b"\3ttl\0\4", b"\1a\0\1", b"\0\0", b"\xff\xff"]


def seeds() -> list[bytes]:
    pairs = [(b"trace-id", b"4bf92f"), (b"ttl", b"5000"), (b"empty", b""), (b"n", b"\xff" * 300)]
    many = [(b"h%d" % number, b"x" * number) for number in range(32)]
    return [encode_headers(pairs[:n]) for n in range(5)] + [encode_headers(many)]


def fresh(chance: random.Random) -> bytes:
    name = chance.choice([b"a", b"ttl", b"trace-id", b"n" * 255, b"Up"])
    value = chance.choice([b"", b"1", b"0", b"9" * 12, b"\xff", b"x" * 1000])
    return bytes([len(name)]) + name + len(value).to_bytes(2, "big") + value


def one(data: bytes) -> None:
    try:
        found = decode_headers(data)
    except ValueError:
        found = None
    try:
        theirs = headers.as_text(headers.checked(data))
    except headers.BadHeaders:
        theirs = None
    assert (found is None) == (theirs is None)
    if found is not None and theirs is not None:
        assert list(found) == [name for name, _ in theirs]
        assert headers_from_text(found) == data
