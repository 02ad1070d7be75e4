"""A connection continues in another process, between any two bytes of its requests."""

import os
import socket
from collections.abc import Iterator

import pytest

from nsqcy.http.parser import MAX_PACKED_HEAD
from nsqcy.http.server import HttpServer, Packed
from support.http_core import DATE, Web

PUB = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\n"
CHUNKED = PUB + b"Transfer-Encoding: chunked\r\n\r\n"
TALKS = [
    PUB + b"Content-Length: 4\r\n\r\nbody" + b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n",
    CHUNKED + b"2;x=y\r\nab\r\n3\r\ncde\r\n0\r\nA: b\r\n\r\n" + PUB + b"Content-Length: 1\r\n\r\nx",
    PUB + b"Content-Length: 9999\r\n\r\n" + b"x" * 9999 + b"GET /ping HTTP/1.0\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n12345\r\n"
    b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"nonsense\r\n\r\nmore",
]


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.close()


def hand_over(web: Web) -> None:
    """Continue all connections in another server."""
    old, web.server = web.server, HttpServer(web.loop, web.server.api)
    old.stop_reading()
    web.settle()
    assert old.is_at_rest
    for packed in [each.pack() for each in old.clients()]:
        assert packed is not None
        web.server.adopt_packed(packed._replace(fd=os.dup(packed.fd)))
    old.close()
    web.settle()


def converse(talk: bytes, place: int | None = None) -> list[object]:
    """Return everything that follows from a client's input, with a hand-over at a place in it."""
    web = Web()
    client = web.client()
    if place is not None:
        client.send(talk[:place])
        web.settle()
        hand_over(web)
    client.send(talk[place or 0 :])
    web.settle()
    bodies = [body for _, body in web.messages().get("t", [])]
    found = [DATE.sub(b"", client.output), client.ended, bodies, web.server.held]
    web.close()
    return found


@pytest.mark.parametrize("talk", TALKS)
def test_between_any_two_bytes(talk: bytes) -> None:
    expected = converse(talk)
    places = range(len(talk) + 1)
    for place in places if len(talk) < 1000 else [*places[:80], *places[80::997]]:
        assert converse(talk, place) == expected, talk[:place]


def test_input_that_arrives_meanwhile_is_handled_after_a_failed_hand_over(web: Web) -> None:
    client = web.client()
    web.server.stop_reading()
    web.settle()
    assert client.ask(TALKS[0]) == b""
    web.server.resume_reading()
    web.settle()
    assert client.output.count(b" 200 OK\r\n") == 1
    assert web.messages()["t"][0][1] == b"body"


def test_an_answer_that_is_not_read_continues() -> None:
    web = Web(send_buffer=1)
    request = PUB + b"Content-Length: 4\r\n\r\nmore"
    client = web.client()
    count = 0
    while client.connection._unsent is None:
        client.send(request)
        web.settle(reading=False)
        count += 1
    hand_over(web)
    client.send(request)
    web.settle()
    assert client.output.count(b" 200 OK\r\n") == count + 1
    web.close()


def test_a_head_that_is_too_long_is_not_packed(web: Web) -> None:
    client = web.client()
    client.ask(b"GET /ping HTTP/1.1\r\nX: ")
    for _ in range(MAX_PACKED_HEAD // 4096 + 1):
        client.ask(b"x" * 4096)
    web.server.stop_reading()
    assert [each.pack() for each in web.server.clients()] == [None]
    assert web.server.held < 2 * MAX_PACKED_HEAD


def test_a_decrypted_connection_is_as_local_as_its_client(web: Web) -> None:
    """Its socket is one end of a pair in this process."""
    found = []
    for peer in ("127.0.0.1:5", "10.0.0.1:5"):
        theirs, ours = socket.socketpair()
        state = {"peer": peer, "is_new": False, "secure": True, "certificate_names": ["n"]}
        state |= {"lingering": False, "idle": 0.0, "eof": False, "closing": False}
        connection = web.server.adopt_packed(Packed(ours.detach(), state, b"", b""))
        assert connection.secure and connection.certificate_names == ("n",)
        assert connection.is_quiet and not connection.at_rest
        found.append(connection._is_local())
        connection.end()
        assert connection.closed and theirs.recv(1) == b""
        theirs.close()
    assert found == [True, False]
