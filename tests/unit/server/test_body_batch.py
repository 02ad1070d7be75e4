"""The messages in the bodies of /mpub."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.server.core import BadBody, split_binary, split_text


def encode(messages: list[bytes]) -> bytes:
    sized = [struct.pack(">i", len(message)) + message for message in messages]
    return struct.pack(">i", len(messages)) + b"".join(sized)


@given(st.lists(st.binary(max_size=20)), st.integers(1, 20))
def test_text_is_split_at_line_feeds(lines: list[bytes], max_msg_size: int) -> None:
    body = b"\n".join(lines)
    expected = [piece for line in lines for piece in line.split(b"\n") if piece]
    if any(len(message) > max_msg_size for message in expected):
        with pytest.raises(BadBody) as caught:
            split_text(body, max_msg_size)
        assert caught.value.code == "MSG_TOO_BIG"
    else:
        assert list(split_text(body, max_msg_size)) == expected


def test_text_of_full_size() -> None:
    full = split_text(b"x\n" * (5 << 19), 100)
    assert (full.count, full.total, full.shortest, full.longest) == (5 << 19, 5 << 19, 1, 1)
    assert len(split_text(b"\n" * (5 << 20), 100)) == 0


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1), st.binary(max_size=5))
def test_binary_round_trip(messages: list[bytes], trailing: bytes) -> None:
    found = split_binary(encode(messages) + trailing, 20, 5000)
    assert list(found) == messages


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5), st.data())
def test_binary_cut_anywhere_is_refused(messages: list[bytes], data: st.DataObject) -> None:
    body = encode(messages)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(BadBody) as caught:
        split_binary(body[:cut], 20, 5000)
    assert caught.value.code == ("BAD_BODY" if cut < 4 else "BAD_MESSAGE")


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda b: b"\0\0\0\2\0\0\0\1" + b))
def test_binary_never_fails_otherwise(body: bytes) -> None:
    try:
        messages = split_binary(body, 30, 200)
    except BadBody as bad:
        assert bad.code in ("BAD_BODY", "BAD_MESSAGE")
    else:
        assert all(0 < len(message) <= 30 for message in messages)
        assert body.startswith(encode(list(messages)))


@pytest.mark.case("HTTP-038")
def test_a_count_the_body_limit_cannot_hold() -> None:
    body = encode([b"x"] * 39)
    assert len(split_binary(body, 10, 200)) == 39  # (200 - 4) // 5
    with pytest.raises(BadBody, match="BAD_BODY"):
        split_binary(encode([b"x"] * 40), 10, 200)
