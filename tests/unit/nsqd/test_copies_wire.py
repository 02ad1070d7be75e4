"""Messages between workers: each one can be split anywhere, and any other data is refused."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.copies import messages as copies
from nsqcy.copies.messages import Extent
from nsqcy.nsqd.copies.copy_files import Data
from nsqcy.nsqd.copies.wire import (
    MAX_FRAME,
    Decoder,
    Greeting,
    Message,
    Welcome,
    WireError,
    checked_path,
    encode,
)

NUMBERS = st.integers(-1, 2**62)
SIZES = st.integers(0, 2**62)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0\n"), min_size=1).filter(
    lambda name: name not in (".", "..")
)
PATHS = st.one_of(NAMES, st.tuples(NAMES, NAMES).map("/".join))
MESSAGES = st.one_of(
    st.builds(Greeting, st.text(), st.text(), st.text(), st.text(), st.text(), st.integers()),
    st.builds(Welcome, st.text()),
    st.builds(copies.Alive),
    st.builds(copies.Received),
    st.builds(copies.Offer, NUMBERS),
    st.builds(copies.Confirm, NUMBERS),
    st.builds(copies.Align, PATHS, SIZES),
    st.builds(copies.Write, PATHS, SIZES, st.builds(Data, st.binary(), st.booleans()), NUMBERS),
    st.builds(copies.Truncate, PATHS, SIZES, NUMBERS),
    st.builds(copies.Rename, PATHS, PATHS, NUMBERS),
    st.builds(copies.Delete, PATHS, NUMBERS),
    st.builds(copies.Filled, st.lists(PATHS), NUMBERS),
    st.builds(copies.Have, st.dictionaries(PATHS, st.builds(Extent, SIZES, st.binary(min_size=1)))),
    st.builds(copies.Refuse, st.sampled_from(["epoch", "full", "failing"])),
)


@given(st.lists(MESSAGES, max_size=8), st.data())
def test_messages_survive_any_split(wanted: list[Message], data: Any) -> None:
    stream = b"".join(map(encode, wanted))
    decoder, found, at = Decoder(MAX_FRAME), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        found += decoder.feed(stream[at : at + size])
        at += size
    assert found == wanted


@given(st.binary())
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        for message in Decoder(MAX_FRAME).feed(data):
            assert list(Decoder(MAX_FRAME).feed(encode(message))) == [message]
    except WireError:
        pass


@given(MESSAGES, st.data())
def test_damage_is_refused_or_is_another_message(message: Message, data: Any) -> None:
    damaged = bytearray(encode(message))
    damaged[data.draw(st.integers(4, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        list(Decoder(MAX_FRAME).feed(bytes(damaged)))
    except WireError:
        pass


@pytest.mark.parametrize("field", ["cluster", "node", "holder", "group", "token"])
def test_surrogates_in_a_greeting_are_refused(field: str) -> None:
    fields = dict.fromkeys(("cluster", "node", "holder", "group", "token"), "x")
    payload = json.dumps(fields | {field: "\ud800", "level": 1}).encode()
    with pytest.raises(WireError, match="malformed greeting"):
        list(Decoder().feed(struct.pack(">IB", len(payload), 1) + payload))


def test_a_long_frame_is_refused_before_it_arrives() -> None:
    with pytest.raises(WireError, match="frame of 5000 bytes: at most 4096 are allowed"):
        list(Decoder().feed(b"\0\0\x13\x88\1"))


@pytest.mark.parametrize(
    "path", ["", "/", "a/", "/a", "..", "../a", "a/..", ".", "a/b/c", "a\0b", "./a"]
)
def test_paths_stay_below_the_directory(path: str) -> None:
    with pytest.raises(WireError, match="invalid path"):
        checked_path(path)
