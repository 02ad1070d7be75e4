"""Received frames, counted and answered in bulk."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.errors import NsqError
from nsqcy.protocol.wire import finish_all, frame, skip_frames

RESPONSE, ERROR, MESSAGE = 0, 1, 2


def message(id: bytes, body: bytes) -> bytes:
    return frame(MESSAGE, struct.pack(">qH", 1, 1) + id + body)


def messages(bodies: list[bytes]) -> tuple[bytes, bytes]:
    """Return message frames, and the FIN lines that answer them."""
    ids = [b"%016x" % (number * 0x1234567) for number in range(len(bodies))]
    frames = b"".join(message(id, body) for id, body in zip(ids, bodies, strict=True))
    return frames, b"".join(b"FIN %s\n" % id for id in ids)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_every_message_is_finished(bodies: list[bytes]) -> None:
    received, lines = messages(bodies)
    assert finish_all(received) == (lines, len(received), len(bodies))


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_an_incomplete_message_waits(bodies: list[bytes], data: st.DataObject) -> None:
    whole, _ = messages(bodies[:-1])
    received, lines = messages(bodies)
    cut = data.draw(st.integers(len(whole), len(received) - 1))
    done = len(bodies) - 1
    assert finish_all(received[:cut]) == (lines[: 21 * done], len(whole), done)


@pytest.mark.parametrize("other", [frame(RESPONSE, b"_heartbeat_"), frame(ERROR, b"E_FIN_FAILED")])
def test_another_frame_ends_it(other: bytes) -> None:
    received, lines = messages([b"a", b"b"])
    assert finish_all(received + other + received) == (lines, len(received), 2)
    assert finish_all(other + received) == (b"", 0, 0)


def test_any_buffer_will_do() -> None:
    received, lines = messages([b"a"])
    room = bytearray(received + b"\0" * 100)
    assert finish_all(memoryview(room)[: len(received)]) == (lines, len(received), 1)
    assert finish_all(b"") == (b"", 0, 0)


@pytest.mark.parametrize("size", [0, 3, 29, 0x80000000, 0xFFFFFFFF])
def test_a_size_that_no_message_has(size: int) -> None:
    with pytest.raises(NsqError):
        finish_all(struct.pack(">II", size, MESSAGE) + bytes(64))


def test_frames_of_one_type_are_counted() -> None:
    answers = frame(RESPONSE, b"OK") * 3
    assert skip_frames(answers, RESPONSE) == (len(answers), 3)
    assert skip_frames(answers[:-1], RESPONSE) == (len(answers) - 10, 2)
    assert skip_frames(answers + frame(ERROR, b"E_INVALID"), RESPONSE) == (len(answers), 3)
    assert skip_frames(answers, ERROR) == (0, 0)
