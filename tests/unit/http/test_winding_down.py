"""Requests that have arrived when the server stops are answered, and the connections close."""

from collections.abc import Iterator

import pytest

from support.http_core import Web

REQUEST = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"
CLOSE = b"\r\nConnection: close"


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web(send_buffer=1)  # the kernel's minimum
    web.client().ask(REQUEST + b"warm")  # caches the head for the fast path
    yield web
    web.close()


def bodies(web: Web) -> list[bytes]:
    return [body for _, body in web.messages()["t"]][1:]


def test_an_unfinished_body(web: Web) -> None:
    client = web.client()
    client.ask(REQUEST + b"on")
    web.server.wind_down(0)
    assert client.ask(b"") == b"" and not client.ended
    answer = client.ask(b"e!")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and CLOSE in answer
    assert client.ended and bodies(web) == [b"one!"]


def test_requests_that_were_not_read_yet(web: Web) -> None:
    client = web.client().send(b"".join(REQUEST + b"%04d" % number for number in range(200)))
    web.server.wind_down(0)
    web.settle()
    answers = client.output.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [CLOSE in answer for answer in answers] == [False] * 199 + [True]
    assert client.ended and bodies(web) == [b"%04d" % number for number in range(200)]


def test_an_answer_that_is_not_read(web: Web) -> None:
    client = web.client()
    count = 0
    while client.connection._unsent is None:
        client.send(REQUEST + b"more")
        web.settle(reading=False)
        count += 1
    web.server.wind_down(0)
    web.settle()
    assert client.output.count(b"200 OK") == count and client.ended


@pytest.mark.parametrize("begun", [b"", REQUEST + b"done", REQUEST[:-2], REQUEST + b"done" + b"P"])
def test_without_a_request_a_connection_ends(web: Web, begun: bytes) -> None:
    client = web.client()
    client.ask(begun)
    web.server.wind_down(0)
    assert client.ask(b"") == b"" and client.ended
