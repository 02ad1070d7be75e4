"""The naming rule, and Go's %q."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.errors import ClientError, HttpError
from nsqcy.names import is_ephemeral, is_valid_name, printable, quote, valid_names

VALID = [
    "a",
    ".",
    "..",
    "Z-9_.",
    "x" * 64,
    "a#ephemeral",
    "x" * 54 + "#ephemeral",
]
INVALID = [
    "",
    "x" * 65,
    "x" * 55 + "#ephemeral",
    "#ephemeral",
    "a#ephemeral#ephemeral",
    "a#Ephemeral",
    "a#",
    "a b",
    "a\n",
    "a#ephemeral\n",
    "é",
    "a\x00",
    "a/b",
]


@pytest.mark.parametrize("name", VALID)
def test_valid_names(name: str) -> None:
    assert is_valid_name(name)
    assert is_valid_name(name.encode())


@pytest.mark.parametrize("name", INVALID)
def test_invalid_names(name: str) -> None:
    assert not is_valid_name(name)
    assert not is_valid_name(name.encode())


@given(st.binary(max_size=70))
def test_both_forms_agree(name: bytes) -> None:
    assert is_valid_name(name) == is_valid_name(name.decode("utf-8", "surrogateescape"))


def test_ephemeral() -> None:
    assert is_ephemeral("a#ephemeral") and is_ephemeral(b"a#ephemeral")
    assert not is_ephemeral("ephemeral") and not is_ephemeral(b"a")


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"plain name", '"plain name"'),
        (b'say "hi"', r'"say \"hi\""'),
        (b"back\\slash", r'"back\\slash"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x01\x1f\x7f", r'"\x00\x01\x1f\x7f"'),
        (b"\xff\xfe", r'"\xff\xfe"'),
        (b"\xe2\x82", r'"\xe2\x82"'),  # a truncated sequence, byte by byte
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),  # a surrogate is not UTF-8
        ("héllo 世界 😀".encode(), '"héllo 世界 😀"'),
        ("\ufffd".encode(), '"\ufffd"'),  # the replacement character itself is printable
        ("\u200b".encode(), r'"\u200b"'),
        ("\u00a0".encode(), r'"\u00a0"'),  # only the ASCII blank is printable
        ("\U000e0001".encode(), r'"\U000e0001"'),
    ],
)
def test_quote(raw: bytes, quoted: str) -> None:
    assert quote(raw) == quoted
    assert quote(raw.decode("utf-8", "surrogateescape")) == quoted


@given(st.binary())
def test_a_quoted_text_is_one_printable_line(raw: bytes) -> None:
    quoted = quote(raw)
    assert quoted.isprintable()
    assert quoted[0] == quoted[-1] == '"'
    quoted.encode()  # no surrogate is left


@pytest.mark.parametrize(
    ("code", "fatal"),
    [
        ("E_INVALID", True),
        ("E_BAD_PROTOCOL", True),
        ("E_FIN_FAILED", False),
        ("E_REQ_FAILED", False),
        ("E_TOUCH_FAILED", False),
    ],
)
def test_an_error_knows_whether_it_is_fatal(code: str, fatal: bool) -> None:
    assert ClientError(code, "x").fatal is fatal
    assert ClientError(code, "x", fatal=not fatal).fatal is not fatal


def test_an_error_frame_echoes_raw_bytes() -> None:
    token = b"\xff\xfe".decode("utf-8", "surrogateescape")
    error = ClientError("E_INVALID", f"invalid command {token}")
    assert error.wire == b"E_INVALID invalid command \xff\xfe"
    assert ClientError("E_BAD_PROTOCOL").wire == b"E_BAD_PROTOCOL"


def test_an_http_error_carries_its_status() -> None:
    error = HttpError(404, "TOPIC_NOT_FOUND")
    assert (error.status, error.message) == (404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('E_BAD_TOPIC "a b" é', 'E_BAD_TOPIC "a b" é'),
        ("a\nb\x1b[31m\u202e\ud800", "a\\nb\\x1b[31m\\u202e\\ud800"),
        (b"a\xff\0", "a\\xff\\x00"),
        ("é" * 1001, "é" * 1000 + "..."),
        (b"\xff" * (1 << 20), "\\xff" * 1000 + "..."),
    ],
)
def test_text_of_another_program(text: str | bytes, shown: str) -> None:
    assert printable(text) == shown


@given(
    st.lists(
        st.text("aZ9.-_#\n ", max_size=3)
        | st.sampled_from(["a" * 64, "a" * 65, "a#ephemeral", "#ephemeral", "a\nb", "ä", "\ud800"])
    )
)
def test_many_names_at_once(names: list[str]) -> None:
    assert valid_names(names) == [name for name in names if is_valid_name(name)]
