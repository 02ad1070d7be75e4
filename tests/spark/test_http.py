"""HTTP of Spark's source and of pipelines: responses of false daemons."""

from collections.abc import Iterator
from typing import Any

import pytest

from nsqcy.spark import http
from nsqcy.spark.discovery import needs_proof
from nsqcy.spark.log_client import Access
from support.fake_auth_server import AuthServer, Reply


@pytest.fixture
def server() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.close()


def test_an_object(server: AuthServer) -> None:
    server.default = Reply(b'{"data":{"topics":["t"]}}')
    assert http.get(server.address, "/topics", 5) == {"topics": ["t"]}
    server.default = Reply(b'{"topics":["t"]}')
    assert http.get(server.address, "/topics", 5) == {"topics": ["t"]}


def test_a_redirect_is_not_followed(server: AuthServer) -> None:
    server.default = Reply(b"", 302, {"Location": "/there"})
    with pytest.raises(http.BadStatus, match=r"HTTP Error 302: Found \(redirects are not followed"):
        http.get(server.address, "/nodes", 5)
    assert [each.path for each in server.requests] == ["/nodes"]


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"])
def test_what_is_no_object(body: bytes, server: AuthServer) -> None:
    server.default = Reply(body)
    with pytest.raises(ValueError, match=r"Expecting|not a JSON object|nested|limit"):
        http.get(server.address, "/", 5)


def test_too_long_an_answer(server: AuthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER", 1000)
    server.default = Reply(b"x" * 1001)
    with pytest.raises(ValueError, match="/stats has more than 1000 bytes"):
        http.get(server.address, "/stats", 5)


@pytest.mark.parametrize(
    ("body", "error"),
    [(b"[" * 300_000, "300000 objects: the limit is"), (b"[1" + b",1" * 4_100_000, "values: the")],
)
def test_too_many_values(body: bytes, error: str, server: AuthServer) -> None:
    server.default = Reply(body)
    with pytest.raises(ValueError, match=error):
        http.get(server.address, "/nodes", 5)


def test_time_is_limited_however_the_bytes_come(server: AuthServer) -> None:
    server.default = Reply(b"x" * 1000, trickle=0.02)
    with pytest.raises(TimeoutError):
        http.get(server.address, "/", 0.2)


@pytest.mark.parametrize(
    "announced",
    [
        {"tcp_port": 70000},
        {"tcp_port": -1},
        {"tcp_port": "1"},
        {"broadcast_address": "a\r\nb"},
        {"broadcast_address": "u@a/"},
    ],
)
def test_an_impossible_producer_does_not_hide_the_others(announced: dict[str, Any]) -> None:
    good = {"broadcast_address": "::1", "tcp_port": 4150}
    assert http.addresses({"producers": [good | announced, good]}, "tcp_port") == ["[::1]:4150"]


def test_a_secret_needs_nsqds_that_have_proved_themselves() -> None:
    proved = {"broadcast_address": "a", "tcp_port": 1, "authenticated": True}
    assert http.addresses({"producers": [proved]}, "tcp_port", proved=True) == ["a:1"]
    false = proved | {"broadcast_address": "b", "authenticated": "yes"}
    with pytest.raises(ValueError, match="authSecret withheld: nsqd 'b:1' has not authenticated"):
        http.addresses({"producers": [proved, false]}, "tcp_port", proved=True)


@pytest.mark.parametrize(
    ("access", "needed"),
    [
        (Access(), False),
        (Access(auth_secret="s"), True),
        (Access(auth_secret="s", trust_lookupd=True), False),
        (Access(auth_secret="s", tls=True), True),
        (Access(auth_secret="s", tls=True, tls_ca_file="ca"), False),
        (Access(auth_secret="s", tls=True, tls_ca_file="ca", tls_verify=False), True),
    ],
)
def test_when_a_proof_is_needed(access: Access, needed: bool) -> None:
    assert needs_proof(access) == needed
