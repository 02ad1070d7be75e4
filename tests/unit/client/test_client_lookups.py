"""Responses of an nsqlookupd that a client refuses, because they are too large or too slow."""

import json
import select
import socket
from collections.abc import Callable
from typing import Any

import pytest

from nsqcy.client.lookups import BOUNDS, Lookups
from nsqcy.client.options import ConnectionOptions, LookupOptions
from nsqcy.cluster.discovery import MAX_PRODUCERS
from support.any_http_answer import AnyAnswer, answer

OK = b"HTTP/1.1 200 OK\r\nX-NSQ-Content-Type: nsq; version=1.0\r\n"
NSQD = {"broadcast_address": "h", "tcp_port": 4150, "http_port": 4151, "hostname": "h"}


def listing(count: int, **fields: Any) -> bytes:
    producers = [NSQD | {"broadcast_address": f"h{number}"} | fields for number in range(count)]
    return json.dumps({"channels": [], "producers": producers}).encode()


def endless(sock: socket.socket) -> None:
    sock.sendall(OK + b'\r\n{"channels": [')
    while True:
        sock.sendall(b'"c",' * 20_000)


def endless_chunks(sock: socket.socket) -> None:
    sock.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        sock.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")


def drip(sock: socket.socket, piece: bytes) -> None:
    """Send pieces at intervals, until the client disconnects."""
    while not select.select([sock], [], [], 0.05)[0]:
        sock.sendall(piece)


def slow(sock: socket.socket) -> None:
    sock.sendall(OK + b"Content-Length: 1000\r\n\r\n")
    drip(sock, b" ")


def slow_head(sock: socket.socket) -> None:
    sock.sendall(OK)
    drip(sock, b"A")


def ask(
    server: AnyAnswer, topic: str | None = "t", timeout: float = 60.0
) -> tuple[list[Any], list[str]]:
    options = LookupOptions(lookupd_request_timeout=timeout)
    found, errors = Lookups((server.address,), topic, options, ConnectionOptions()).ask()
    return found, errors


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (answer(b" " * (32 << 20)), f"has {32 << 20} bytes; the limit is {BOUNDS.bytes}"),
        (endless, f"has more than {BOUNDS.bytes} bytes"),
        (endless_chunks, f"has more than {BOUNDS.bytes} bytes"),
        (answer(b"[" * (2 << 20)), f"objects: the limit is {BOUNDS.objects}"),
        (answer(b"[" + b"0," * 1_500_000 + b"0]"), f"values: the limit is {BOUNDS.values}"),
        (answer(b"[" * 20_000 + b"]" * 20_000), "cannot be read: nested too deeply"),
        (answer(b'{"a":' * 20_000 + b"0" + b"}" * 20_000), "cannot be read: nested too deeply"),
        (answer(listing(MAX_PRODUCERS + 1)), f"nsqds; the limit is {MAX_PRODUCERS}"),
    ],
)
@pytest.mark.parametrize("topic", ["t", None])
def test_what_is_refused(
    given: bytes | Callable[[socket.socket], None], limit: str, topic: str | None
) -> None:
    with AnyAnswer(given) as server:
        found, (error,) = ask(server, topic)
    assert found == []
    assert error.startswith(f"{server.address}: ")
    assert limit in error


@pytest.mark.parametrize("given", [slow, slow_head])
@pytest.mark.parametrize("topic", ["t", None])
def test_a_slow_response(given: Callable[[socket.socket], None], topic: str | None) -> None:
    with AnyAnswer(given) as server:
        found, (error,) = ask(server, topic, timeout=0.5)
    assert found == []
    assert error.startswith(f"{server.address}: ") and "timed out" in error


@pytest.mark.parametrize("topic", ["t", None])
def test_a_large_cluster(topic: str | None) -> None:
    topics = [f"topic_{number}" for number in range(100)]
    body = listing(2000, topics=topics, tombstones=[False] * 100)
    with AnyAnswer(answer(body)) as server:
        found, errors = ask(server, topic)
    assert (len(found), errors) == (2000, [])
