"""Keys in JSON bodies: where Python's parser also accepts a body, both find the same values. Three
pointers are looked for in one walk."""

import json
import random

from nsqcy.base.core import KeySources

COVERS = ["base/keys.pyx"]
POINTERS = ["", "/a", "/a/b", "/0", "/a/0", "/a~1b", "/", "/a/b/c/d"]
WORDS = [b'{"a":', b'"a"', b'"\\u0061"', b'"\\ud83d\\ude00"', b"[[", b"]]", b"null", b"-0.5e+7"]
WORDS += [b"\\ud800", b"\xc3\xa4", b"\xed\xa0\x80", b"\xef\xbb\xbf", b',"a":', b"\\/", b"1e9"]
DEEP = 128


class _Written(str):
    """The text of a number."""


def seeds() -> list[bytes]:
    """Return bodies after the index of a pointer."""
    bodies = [
        b'{"a":{"b":"x"},"a":{"b":1.50}}',
        b'{"a":["x",true,null,{}],"a/b":"\\u00e4\\n"}',
        '["ä", "\\ud83d\\ude00", [[-0]]]'.encode(),
        b"[" * DEEP + b"]" * DEEP,
        b'"x"',
    ]
    return [bytes([index]) + body for index in range(len(POINTERS)) for body in bodies]


def fresh(chance: random.Random) -> bytes:
    return chance.choice([b'"k":1,', b"[1,2]", b'{"b":"y"}', b'"\\u005c"', b" \t\r\n", b"0"])


def one(data: bytes) -> None:
    first = data[0] if data else 0
    pointers = [POINTERS[(first + number) % len(POINTERS)] for number in range(3)]
    body = data[1:]
    sources = KeySources(*(f"json:{pointer}" for pointer in pointers))
    key, priority, id, _ = sources.taken(b"", body)
    for found in (key, id):
        assert len(found) <= 255
        found.decode()
    constants: list[str] = []  # NaN and Infinity, which only Python accepts
    try:
        whole = json.loads(
            body.decode(),
            parse_int=_Written,
            parse_float=_Written,
            parse_constant=constants.append,
        )
    except (ValueError, RecursionError):
        assert (key, priority, id) == (b"", 0, b"")
        return
    if key or priority or id or (_depth(body) <= DEEP and not constants):
        assert key == _value(whole, pointers[0])
        assert priority == _digit(_value(whole, pointers[1]))
        assert id == _value(whole, pointers[2])


def _digit(text: bytes) -> int:
    return int(text) if len(text) == 1 and text in b"0123456789" else 0


def _value(found: object, pointer: str) -> bytes:
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return b""
    if isinstance(found, bool):
        return b"true" if found else b"false"
    if not isinstance(found, str):
        return b""
    try:
        text = found.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return b""
    return text if len(text) <= 255 else b""


def _depth(body: bytes) -> int:
    """Return an upper limit of the containers' depth."""
    return body.count(b"[") + body.count(b"{")
