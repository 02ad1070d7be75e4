"""Requests of nsq_to_http: persistent connections, deadlines, redirects, TLS."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from urllib3.util import parse_url

from nsqcy.cluster.web_client import Terms
from nsqcy.errors import RequestError
from nsqcy.testing.certificates import make
from nsqcy.tools.http_sender import HttpSender, Request
from support.fake_http_destination import Destination

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


@pytest.fixture
def destination() -> Iterator[Destination]:
    server = Destination()
    yield server
    server.close()


def whole_request(conn: socket.socket) -> bytes:
    """Receive a head and a body of one byte."""
    data = b""
    while b"\r\n\r\n" not in data[:-1]:
        more = conn.recv(65536)
        assert more, data
        data += more
    return data


@contextmanager
def script(*conversations: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Server that plays one conversation per connection, with one answer per request, and then
    closes. Yields its URL and the requests."""
    requests: list[bytes] = []

    def play(server: socket.socket) -> None:
        for conversation in conversations:
            conn, _ = server.accept()
            with conn:
                for answer in conversation:
                    requests.append(whole_request(conn))
                    conn.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        player = threading.Thread(target=play, args=(server,), daemon=True)
        player.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/", requests
        player.join(10)


def post(url: str, body: bytes = b"x", **headers: str) -> Request:
    return Request("POST", parse_url(url), headers, body)


def sender(**terms: Any) -> HttpSender:
    return HttpSender(Terms(**({"connect_timeout": 5.0, "request_timeout": 5.0} | terms)))


def test_a_thread_keeps_its_connection(destination: Destination) -> None:
    one = sender()
    for path in ("/200", "/500", "/204", "/200"):
        one.send(post(destination.url(path)))
    other = threading.Thread(target=one.send, args=(post(destination.url("/299")),))
    other.start()
    other.join(10)
    ports = [got.port for got in destination.requests]
    assert ports[:4] == ports[:1] * 4
    assert ports[4] != ports[0]


def test_a_connection_that_was_closed_while_idle_is_made_again() -> None:
    with script([ANSWER], [ANSWER]) as (url, requests):
        one = sender()
        assert [one.send(post(url)), one.send(post(url))] == [200, 200]
    assert len(requests) == 2


def test_one_that_is_closed_upon_the_next_request_too() -> None:
    with script([ANSWER, b""], [ANSWER]) as (url, requests):
        one = sender()
        assert [one.send(post(url)), one.send(post(url))] == [200, 200]
    assert len(requests) == 3


def test_a_new_connection_that_is_closed_is_a_failure() -> None:
    with script([b""]) as (url, requests), pytest.raises(RequestError):
        sender().send(post(url))
    assert len(requests) == 1


@pytest.mark.parametrize("status", [100, 102, 103, 199])
def test_informational_responses_are_not_the_answer(status: int) -> None:
    informational = b"HTTP/1.1 %d Wait\r\nLink: </a>\r\n\r\n" % status
    with script([informational * 5 + ANSWER, ANSWER]) as (url, requests):
        one = sender()
        assert [one.send(post(url)), one.send(post(url))] == [200, 200]
    assert len(requests) == 2


def test_endless_informational_responses_are_a_failure() -> None:
    with script([b"HTTP/1.1 102 Wait\r\n\r\n" * 6]) as (url, _), pytest.raises(RequestError):
        sender().send(post(url))


def test_half_an_answer_is_a_failure_and_leaves_nothing_behind() -> None:
    with script([ANSWER[:-1]], [ANSWER]) as (url, _):
        one = sender()
        with pytest.raises(RequestError):
            one.send(post(url))
        assert one.send(post(url)) == 200


def test_an_answer_that_trickles_has_the_same_deadline() -> None:
    def trickle(server: socket.socket) -> None:
        conn, _ = server.accept()
        with conn:
            conn.recv(65536)
            conn.sendall(b"HTTP/1.1 200 OK\r\n")
            while not over.wait(0.01):
                try:
                    conn.sendall(b"X-More: and more\r\n")
                except OSError:
                    return

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle, args=(server,))
        thread.start()
        try:
            with pytest.raises(RequestError, match="timed out"):
                sender(request_timeout=0.2).send(
                    post(f"http://127.0.0.1:{server.getsockname()[1]}/")
                )
        finally:
            over.set()
            thread.join()


def test_what_is_for_one_host_is_not_for_another(destination: Destination) -> None:
    away = f"HTTP/1.1 307 Away\r\nLocation: {destination.url()}\r\nContent-Length: 0\r\n\r\n"
    with script([away.encode()]) as (url, requests):
        url = url.replace("127.0.0.1", "localhost")
        assert sender().send(post(url, Authorization="secret", Cookie="c", X="y")) == 200
    assert b"\r\nAuthorization: secret\r\n" in requests[0]
    (got,) = destination.requests
    assert "authorization" not in got.headers and "cookie" not in got.headers
    assert (got.headers["x"], got.body) == ("y", b"x")


def test_tls(tmp_path: Path) -> None:
    authority = make("authority", authority=True)
    files = make("server", by=authority).save(tmp_path)
    roots = tmp_path / "roots.pem"
    roots.write_text(authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    destination = Destination()
    destination.secure(context)
    try:
        url = destination.url().replace("http:", "https:")
        one = sender(root_ca_file=str(roots))
        assert [one.send(post(url)), one.send(post(url))] == [200, 200]
        assert len({got.port for got in destination.requests}) == 1
        with pytest.raises(RequestError, match="certificate not accepted"):
            sender().send(post(url))
        assert len(destination.requests) == 2
    finally:
        destination.close()
