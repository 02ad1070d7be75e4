"""Queries to auth servers: the requests, the accepted answers, and the time limits."""

import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from nsqcy.nsqd.auth import client as auth_client
from nsqcy.nsqd.auth.authorizations import AuthFailure, Authorization
from nsqcy.nsqd.auth.client import Authorizer, Question, Servers
from support.fake_auth_server import AuthServer, Reply, answer
from support.gevent_hub import Lines, wait_until

SECRET = "sesame"
SECOND = 1_000_000_000


def options(*addresses: str, **other: Any) -> Any:
    values = {
        "auth_http_address": addresses,
        "auth_http_request_method": "get",
        "http_client_connect_timeout": 2 * SECOND,
        "http_client_request_timeout": 5 * SECOND,
        "tls_root_ca_file": "",
        "tls_min_version": 769,
    }
    return SimpleNamespace(**(values | other))


def ask(*addresses: str, secret: str = SECRET, **other: Any) -> Authorization:
    question = Question(secret.encode(), "10.1.2.3", False, "")
    return Servers(options(*addresses, **other)).query(question)


def refusal(*addresses: str, **other: Any) -> str:
    with pytest.raises(AuthFailure) as failure:
        ask(*addresses, **other)
    assert SECRET not in str(failure.value)
    return str(failure.value)


@pytest.fixture
def server() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.close()


@pytest.fixture
def refused() -> Iterator[str]:
    """Address without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


# -- the request


@pytest.mark.case("C137")
def test_get(server: AuthServer) -> None:
    assert ask(server.address).identity == "me"
    (asked,) = server.requests
    assert asked.path == f"/auth?common_name=&remote_ip=10.1.2.3&secret={SECRET}&tls=false"
    assert "proxy-connection" not in asked.headers


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("http://{}", "/?"),
        ("http://{}/", "/?"),
        ("http://{}/a/b", "/a/b?"),
        ("http://{}/a?x=1", "/a?x=1?"),
        ("HTTP://{}/a#there", "/a?"),
    ],
)
def test_addresses(server: AuthServer, address: str, path: str) -> None:
    ask(address.format(server.address))
    assert server.requests[0].path.startswith(path + "common_name=&")


def test_facts_of_tls(server: AuthServer) -> None:
    question = Question(b"\xff \n", "::1", True, "a b/c")
    Servers(options(server.address)).query(question)
    path = "/auth?common_name=a+b%2Fc&remote_ip=%3A%3A1&secret=%FF+%0A&tls=true"
    assert server.requests[0].path == path
    Servers(options(server.address, auth_http_request_method="post")).query(question)
    body = '{"common_name":["a b/c"],"remote_ip":["::1"],"secret":["\ufffd \\n"],"tls":["true"]}'
    assert server.requests[1].body.decode() == body


def test_a_question_does_not_show_its_secret() -> None:
    assert SECRET not in repr(Question(SECRET.encode(), "", False, ""))


def test_the_environment_names_no_proxy(
    server: AuthServer, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{refused}")
    ask(server.address)


@pytest.mark.parametrize(
    "address", ["ftp://host/x", "://x", "http://", "http://h:99999/", "http://[::1/", "unix:///x"]
)
def test_an_address_that_is_none(address: str) -> None:
    refusal(address)


# -- several servers


def test_the_first_that_answers(server: AuthServer, refused: str) -> None:
    for _ in range(10):
        assert ask(refused, server.address, refused).identity == "me"
    assert len(server.requests) == 10


def test_begins_with_any(server: AuthServer) -> None:
    paths = set()
    wait = time.monotonic() + 30
    while len(paths) < 2:
        ask(f"http://{server.address}/1", f"http://{server.address}/2")
        paths.add(server.requests[-1].path[:2])
        assert time.monotonic() < wait
    assert paths == {"/1", "/2"}


def test_all_errors_are_reported(server: AuthServer, refused: str) -> None:
    server.replies[SECRET] = Reply(status=500)
    url = f"http://user:{SECRET}@{server.address}/x?token={SECRET}"
    told = refusal(url, refused)
    both = [f"http://{server.address}/x: status 500", f"http://{refused}/auth: Connection refused"]
    assert told in ("; ".join(both), "; ".join(reversed(both)))


# -- invalid answers


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=204),
        Reply(status=301, headers={"Location": "/other"}),
        Reply(status=307, headers={"Location": f"/other?{SECRET}"}),
        Reply(b"{}", status=403),
        Reply(b"x", status=403),
        Reply(b'{"https_port": 0}', status=403),
        Reply(b'{"https_port": 65536}', status=403),
        Reply(b'{"https_port": "443"}', status=403),
        Reply(raw=b""),
        Reply(raw=f"{SECRET} {SECRET}\r\n".encode()),
        Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
        Reply(raw=b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\n" + SECRET.encode() + b"\r\n\r\n"),
        Reply(answer() + b" " * (3 << 20)),
    ],
)
def test_no_answer(server: AuthServer, reply: Reply, capfd: pytest.CaptureFixture[str]) -> None:
    server.replies[SECRET] = reply
    assert refusal(server.address).startswith(f"http://{server.address}/auth: ")
    assert len(server.requests) == 1
    assert SECRET not in "".join(capfd.readouterr())


def test_an_endless_answer_is_not_read_to_its_end(server: AuthServer) -> None:
    server.replies[SECRET] = Reply(answer(), headers={"Content-Length": "1" * 15}, again=True)
    assert "more than" in refusal(server.address)


# -- time


QUICK = {"http_client_request_timeout": SECOND // 5}


def took(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 90, trickle=0.05),
        Reply(raw=b"H" * 1000, trickle=0.05),
        Reply(answer(), headers={"Content-Length": "10000"}, trickle=0.05),
        Reply(raw=b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 1000, trickle=0.05),
    ],
    ids=["header", "status", "body", "body to the end"],
)
def test_bytes_that_trickle_in_do_not_prolong_it(server: AuthServer, reply: Reply) -> None:
    server.replies[SECRET] = reply
    assert took(lambda: refusal(server.address, **QUICK)) < 20


def test_no_answer_at_all(server: AuthServer) -> None:
    with server.silent(SECRET):
        assert refusal(server.address, **QUICK).endswith("timed out")


def test_nobody_accepts() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        told = refusal(f"127.0.0.1:{address[1]}", http_client_connect_timeout=SECOND // 5)
        assert told.endswith("timed out")
        for each in waiting:
            each.close()


def test_times_of_nothing_are_no_limits(server: AuthServer) -> None:
    ask(server.address, http_client_connect_timeout=0, http_client_request_timeout=0)


# -- on a hub


class Client:
    """A session as the authorizer sees it."""

    remote_address = "10.1.2.3:5"

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        self.closed = False
        self.told: list[Any] = []

    def tls_facts(self) -> tuple[bool, str]:
        return False, ""

    def authorized(self, authorization: Authorization) -> None:
        self.told.append(authorization)

    def auth_failed(self) -> None:
        self.told.append(None)


@pytest.fixture
def make() -> Callable[..., tuple[Any, Lines]]:
    def make(*addresses: str, **other: Any) -> tuple[Any, Lines]:
        lines = Lines()
        return Authorizer(options(*addresses, **other), lambda: None, lines), lines

    return make


def test_sessions_are_told(server: AuthServer, make: Any) -> None:
    authorizer, lines = make(server.address)
    server.replies["bad"] = Reply(status=500)
    clients = [Client("good"), Client("bad"), Client("good")]
    for client in clients:
        authorizer.ask(client)
    wait_until(lambda: all(client.told for client in clients))
    good, bad, other = (client.told for client in clients)
    assert bad == [None]
    assert good == other and good[0] is other[0], "equal answers share one object"
    assert authorizer.restore(answer()) is good[0]
    cause = f"http://{server.address}/auth: status 500"
    assert lines.all == [f"PROTOCOL(V2): [10.1.2.3:5] AUTH failed {cause}"]


def test_queries_at_a_time_are_bounded(
    server: AuthServer, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_client, "MAX_QUERIES", 3)
    authorizer, _ = make(server.address)
    clients = [Client("slow") for _ in range(10)]
    with server.silent("slow"):
        for client in clients:
            authorizer.ask(client)
        wait_until(lambda: len(server.requests) == 3)
        for client in clients[5:]:
            client.closed = True
        gevent.sleep(0.05)
        assert len(server.requests) == 3
    wait_until(lambda: all(client.told for client in clients[:5]))
    assert len(server.requests) == 5, "no queries for clients that are gone"
    assert not any(client.told for client in clients[5:])


def test_who_goes_meanwhile_is_told_nothing(server: AuthServer, make: Any) -> None:
    authorizer, _ = make(server.address)
    gone, client = Client("slow"), Client("slow")
    with server.silent("slow"):
        authorizer.ask(gone)
        authorizer.ask(client)
        wait_until(lambda: len(server.requests) == 2)
        gone.closed = True
    wait_until(lambda: client.told)
    wait_until(lambda: authorizer._running == 0)
    assert gone.told == []


def test_what_nobody_foresaw_is_a_failure_without_a_word(
    server: AuthServer, make: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def explode(*args: object) -> None:
        raise RuntimeError(f"no such thing as {args}")

    monkeypatch.setattr(Servers, "_request", explode)
    authorizer, lines = make(server.address)
    client = Client(SECRET)
    authorizer.ask(client)
    wait_until(lambda: client.told)
    assert client.told == [None]
    assert lines.all[0].endswith("RuntimeError")
    assert SECRET not in "".join([*lines.all, *capfd.readouterr()])
