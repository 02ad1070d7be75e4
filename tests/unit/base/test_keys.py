"""Keys: what is taken from headers and from a JSON body, beside Python's own JSON parser."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcy.base.core import KeySources, headers_from_text, parse_source, siphash

DEEPEST = 128
LONGEST = 255
NO_HEADERS = b""
KEY, PRIORITY, ID = 1, 2, 4

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
names = st.sampled_from(["a", "b", "id", "", "ä", "a/b", "~", "0", "1", '"', "\\", "\u0000"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


def pointer(tokens: list[str]) -> str:
    escaped = [token.replace("~", "~0").replace("/", "~1") for token in tokens]
    return "json:" + "".join("/" + token for token in escaped)


def taken(source: str, body: bytes) -> bytes:
    return KeySources(source).taken(NO_HEADERS, body)[0]


class Written(str):
    """A number's text."""


def slowly(tokens: list[str], body: bytes) -> bytes | None:
    """Return what a pointer finds, as Python's parser sees the body; None if it is no JSON."""
    try:
        found = json.loads(body.decode(), parse_int=Written, parse_float=Written)
    except (ValueError, RecursionError):
        return None
    for token in tokens:
        if isinstance(found, dict) and token in found:
            found = found[token]
        elif isinstance(found, list) and token.isdecimal() and str(int(token)) == token:
            if int(token) >= len(found):
                return b""
            found = found[int(token)]
        else:
            return b""
    if isinstance(found, bool):
        return b"true" if found else b"false"
    if not isinstance(found, str):
        return b""
    try:
        text = found.encode()
    except UnicodeEncodeError:
        return b""
    return text if len(text) <= LONGEST else b""


@given(st.lists(names, max_size=3), values, st.booleans(), st.sampled_from([None, 1]))
def test_a_pointer_finds_what_pythons_parser_finds(
    tokens: list[str], value: Any, ascii: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=ascii, indent=indent).encode("utf-8", "surrogatepass")
    found = taken(pointer(tokens), body)
    assert found == (slowly(tokens, body) or b"")


@given(
    st.lists(names, max_size=2),
    st.lists(
        st.sampled_from(
            [
                '{"a":',
                '"a":',
                "{",
                "}",
                "[",
                "]",
                ",",
                ":",
                '"a"',
                '"b"',
                "1",
                "-0",
                "0.5e+3",
                "01",
                "true",
                "null",
                " ",
                "\n",
                '"\\u00e4"',
                '"\\ud83d\\ude00"',
                '"\\ud800"',
                '"ä"',
                '"0"',
                "\x00",
                '"\\',
                '"',
                "tru",
                "1.",
                "-",
                "\ufeff",
                "1e",
            ]
        ),
        max_size=14,
    ),
)
@example(["a"], ['{"a":', "1", ",", '"a":', "2", "}"])
@example(["a"], ['{"a":', "1", ",", '"a":', "null", "}"])
@example(["a", "b"], ['{"a":', '{"a":', "1", "}", "}"])
@example([], ['"\\ud800"'])
def test_texts_that_python_rejects_have_no_key(tokens: list[str], pieces: list[str]) -> None:
    body = "".join(pieces).encode()
    assert taken(pointer(tokens), body) == (slowly(tokens, body) or b"")


@given(st.binary(max_size=40))
def test_any_bytes_may_be_a_body(body: bytes) -> None:
    found = taken("json:", body)
    if found:
        assert found == slowly([], body)


@pytest.mark.parametrize("open, close", [("[", "]"), ('{"a":', "}")])
def test_a_body_is_at_most_128_deep(open: str, close: str) -> None:
    before, after = '{"id":7,"x":', "}"
    for depth, found in ((DEEPEST, b"7"), (DEEPEST + 1, b"")):
        inner = open * (depth - 1) + "1" + close * (depth - 1)
        assert taken("json:/id", (before + inner + after).encode()) == found


@pytest.mark.parametrize(
    "body, found",
    [
        (b'{"id":"x"}', b"x"),
        (b'{"id":1.50}', b"1.50"),
        (b'{"id":-0}', b"-0"),
        (b'{"id":true}', b"true"),
        (b'{"id":"\\u0041\\n"}', b"A\n"),
        (b'{"id":"\\ud83d\\ude00"}', "\U0001f600".encode()),
        (b'{"\\u0069d":"x"}', b"x"),
        (b'{"id":"x","id":{}}', b""),
        (b'{"id":"x"} ', b"x"),
        (b'{"id":"x"}x', b""),
        (b'{"id":"x","y":\xff}', b""),
        (b'{"id":"x","y":"\xff"}', b""),
        (b'{"id":"x","y":"\xed\xa0\x80"}', b""),
        (b'\xef\xbb\xbf{"id":"x"}', b""),
        (b'{"id":NaN}', b""),
        (b'{"id":""}', b""),
        (b'{"id":null}', b""),
        (b'{"id":[1]}', b""),
        (b'{"id":"\\ude00"}', b""),
        (b'{"id":"x","y":"\\ude00"}', b"x"),
        (b'{"id":"' + b"k" * 255 + b'"}', b"k" * 255),
        (b'{"id":"' + b"k" * 256 + b'"}', b""),
        (b'{"id":"\\n' + b"k" * 254 + b'"}', b"\n" + b"k" * 254),
        (b'{"id":"\\n' + b"k" * 255 + b'"}', b""),
        (b"", b""),
    ],
)
def test_the_key_of_a_body(body: bytes, found: bytes) -> None:
    assert taken("json:/id", body) == found


def test_a_header_gives_the_key() -> None:
    headers = headers_from_text({"k": "1", "key": "2", "keys": "3", "empty": "", "x": "y" * 256})
    for name, found in (("k", b"1"), ("keys", b"3"), ("empty", b""), ("x", b""), ("none", b"")):
        assert KeySources(f"header:{name}").taken(headers, b"b")[0] == found


@pytest.mark.parametrize("text, priority", [("7", 7), ("0", 0), ("10", 0), ("x", 0), ("", 0)])
def test_a_priority_is_one_digit(text: str, priority: int) -> None:
    sources = KeySources(priority="header:p")
    assert sources.taken(headers_from_text({"p": text}), b"b")[1] == priority
    body = json.dumps({"p": text}).encode()
    assert KeySources(priority="json:/p").taken(b"", body)[1] == priority


def test_only_what_differs_from_the_default_headers_is_stored() -> None:
    body = b'{"k":"a","p":3,"i":"x"}'
    sources = KeySources("json:/k", "json:/p", "json:/i")
    assert sources.taken(b"", body) == (b"a", 3, b"x", KEY | PRIORITY | ID)
    same = headers_from_text({"key": "a", "priority": "3", "dedup-id": "x"})
    assert sources.taken(same, body) == (b"a", 3, b"x", 0)
    other = headers_from_text({"key": "b", "priority": "4", "dedup-id": "y"})
    assert sources.taken(other, body)[3] == KEY | PRIORITY | ID
    # What the body lacks must replace the header.
    assert sources.taken(other, b"{}") == (b"", 0, b"", KEY | PRIORITY | ID)
    assert sources.taken(other, body, with_id=False)[2:] == (b"", KEY | PRIORITY)
    assert KeySources().taken(other, body) == (b"b", 4, b"y", 0)


def test_one_pass_finds_all_three() -> None:
    sources = KeySources("json:/a/0", "json:/a/1", "json:/a/2/b")
    assert sources.taken(b"", b'{"a":["x",5,{"b":"\\u0079"}]}') == (b"x", 5, b"y", 7)


@pytest.mark.parametrize(
    "text, parsed",
    [
        ("header:key", b"key"),
        ("json:", []),
        ("json:/", [b""]),
        ("json:/a~1b/m~0n", [b"a/b", b"m~n"]),
        ("json:/~01", [b"~1"]),
    ],
)
def test_sources(text: str, parsed: object) -> None:
    assert parse_source(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "key",
        "json",
        "header",
        "header:",
        "header:Key",
        "json:a",
        "json:/~",
        "json:/~2",
        "xml:/a",
        "json:" + "/a" * 129,
        "header:" + "k" * 256,
    ],
)
def test_bad_sources(text: str) -> None:
    with pytest.raises(ValueError):
        parse_source(text)


def test_the_hash_is_siphash_2_4_128() -> None:
    # Vectors of the reference implementation: key 00..0f, data 00..(n-1).
    secret = bytes(range(16))
    assert siphash(secret, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(secret, bytes(range(1))).hex() == "da87c1d86b99af44347659119b22fc45"
    assert siphash(secret, bytes(range(63))).hex() == "5150d1772f50834a503e069a973fbd7c"
    assert siphash(secret, bytes(range(15))) != siphash(bytes(16), bytes(range(15)))
