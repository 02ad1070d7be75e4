"""Commands, answers and addresses of the protocol between nsqd and nsqlookupd."""

import json
import struct

import pytest

from nsqcy.nsqd.lookup import protocol
from nsqcy.nsqd.lookup.protocol import Answers, Command, Info, PeerFailure


def framed(answer: bytes) -> bytes:
    return struct.pack(">i", len(answer)) + answer


def test_commands():
    assert Command("REGISTER", "t").wire == b"REGISTER t\n"
    assert Command("UNREGISTER", "t", "c#ephemeral").wire == b"UNREGISTER t c#ephemeral\n"
    assert [Command("REGISTER", "t", each).branch for each in ("", "c")] == ["topic", "channel"]


def test_identify_is_sorted_and_has_its_length():
    data = protocol.identify({"version": "1", "broadcast_address": "b"})
    head, body = data[:13], data[13:]
    assert head == b"IDENTIFY\n" + struct.pack(">i", len(body))
    assert list(json.loads(body)) == ["broadcast_address", "version"]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
def test_answers_in_pieces(step):
    data = framed(b"OK") + framed(b"") + framed(b"x" * 50) + b"\0\0"
    answers = Answers(50)
    found = []
    for at in range(0, len(data), step):
        answers.feed(data[at : at + step])
        while (answer := answers.next()) is not None:
            found.append(answer)
    assert found == [b"OK", b"", b"x" * 50]
    assert answers  # holds the beginning of the next answer


@pytest.mark.parametrize("size", [-1, 51, -(2**31), 2**31 - 1])
def test_sizes_that_cannot_be(size):
    answers = Answers(50)
    answers.feed(struct.pack(">i", size))
    with pytest.raises(PeerFailure, match=f"{size} bytes"):
        answers.next()


def test_what_a_lookupd_says_of_itself():
    info = protocol.parse_info(
        b'{"HTTP_PORT":2,"tcp_port":1,"version":"v","broadcast_address":"b"}'
    )
    assert info == Info(1, 2, "v", "b")
    assert str(info) == "{TCPPort:1 HTTPPort:2 Version:v BroadcastAddress:b}"
    assert protocol.parse_info(b"{}") == Info(0, 0, "", "")
    for rubbish in (b"OK", b"[]", b"E_BAD_BODY", b'{"http_port":"2"}', b"\xff"):
        with pytest.raises(ValueError):
            protocol.parse_info(rubbish)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("h:1", ("h", 1)),
        (" 10.0.0.1:4160 ", ("10.0.0.1", 4160)),
        ("[::1]:4160", ("::1", 4160)),
        (":4160", ("127.0.0.1", 4160)),
        ("h", "missing port"),
        ("", "missing port"),
        ("::1:4160", "too many colons"),
        ("h:", "invalid port"),
        ("h:0", "invalid port"),
        ("h:65536", "invalid port"),
        ("h:-1", "invalid port"),
        ("h:\u0661", "invalid port"),
    ],
)
def test_addresses(address, expected):
    if isinstance(expected, tuple):
        assert protocol.split(address) == expected
    else:
        with pytest.raises(ValueError, match=expected):
            protocol.split(address)


def test_literals():
    assert protocol.literal("10.0.0.1", 1) == ("10.0.0.1", 1)
    assert protocol.literal("::1", 1) == ("::1", 1, 0, 0)
    assert protocol.literal("localhost", 1) is None


A, B = ("10.0.0.1", 1), ("10.0.0.2", 1)
SIX, SEVEN = ("::6", 1, 0, 0), ("::7", 1, 0, 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], []),
        ([A], [(A,)]),
        ([B, A, B], [(A,), (B,)]),
        ([SIX, A], [(A, SIX)]),
        ([SIX, B, A], [(A,), (B,)]),
        ([SEVEN, SIX], [(SIX,), (SEVEN,)]),
    ],
)
def test_the_lookupds_behind_a_name(found, expected):
    assert list(protocol.places(found)) == expected
