"""The fast path for HTTP: which requests take it, and how they are handled."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.nsqd.http.api import tls_required
from support.header_client import HeaderClient
from support.http_core import MAX_MSG_SIZE, Client, Web
from support.memory_http_client import CHUNKED, request

OK = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"X-Nsq-Content-Type: nsq; version=1.0\r\nDate: x\r\nContent-Length: 2\r\n\r\nOK"
)


@pytest.fixture
def make() -> Iterator[Callable[..., Web]]:
    made: list[Web] = []

    def one(*args: Any, **settings: Any) -> Web:
        made.append(Web(*args, **settings))
        return made[-1]

    yield one
    for web in made:
        web.close()


@pytest.fixture
def web(make: Callable[..., Web]) -> Web:
    return make()


def pub(body: bytes, topic: str = "t", **headers: str) -> bytes:
    return request("POST", f"/pub?topic={topic}", body, **headers)


def general(client: Client) -> bytes:
    """Return what has taken the general path since the last call."""
    data = b"".join(client.connection.general)
    client.connection.general.clear()
    return data


def bodies(web: Web) -> list[bytes]:
    return [body for _, body in web.messages()["t"]]


def test_a_publish_takes_it_whatever_its_length(web: Web) -> None:
    client = web.client()
    sent = [b"x" * size for size in (1, 9, 10, MAX_MSG_SIZE)]
    for body in sent:
        assert client.ask(pub(body)) == OK
    assert client.ask(pub(b"lower").replace(b"Content-Length", b"content-length")) == OK
    assert general(client) == b""
    assert bodies(web) == [*sent, b"lower"]
    assert web.log.lines == []


@pytest.mark.parametrize("short", [True, False])
def test_headers_of_messages(make: Callable[..., Web], short: bool) -> None:
    web = make(short=short)
    web.core.create("t").channel("all")
    client = web.client()
    sent = [pub(b"a", X_Nsq_Key="v1"), pub(b"b"), pub(b"c", x_nsq_key="v2", X_NSQ_Other="")]
    for data in sent:
        assert client.ask(data) == OK
    assert general(client) == (b"" if short else b"".join(sent))
    encoded = [b"\3key\0\2v1", b"", b"\3key\0\2v2\5other\0\0"]
    reader = HeaderClient(web.core)
    reader.subscribe("t", "all", ready=9)
    web.core.settle()
    assert [message.body for message in reader.messages()] == [
        bytes([0, len(headers)]) + headers + body
        for headers, body in zip(encoded, (b"a", b"b", b"c"), strict=True)
    ]


def test_headers_that_cannot_be_are_refused(web: Web) -> None:
    client = web.client()
    for _ in range(2):  # the head is not cached
        answer = client.ask(pub(b"a", X_Nsq_Key="v1", X_Nsq_KEY="v2"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'{"message":"INVALID_HEADERS (header \\"key\\" twice)"}' in answer


def test_many_at_once_and_the_rest_goes_the_general_way(web: Web) -> None:
    client = web.client()
    rest = request("GET", "/nope") + pub(b"c", "t") + pub(b"half")[:-1]
    output = client.ask(pub(b"a") + pub(b"b", "u") + rest)
    assert output.count(OK) == 3 and output.startswith(OK * 2) and output.endswith(OK)
    assert b"404 Not Found" in output
    assert general(client) == rest
    assert client.ask(b"f" + pub(b"d")) == OK * 2
    assert general(client) == b"f" + pub(b"d")
    assert client.ask(pub(b"e")) == OK
    assert general(client) == b""
    found = {topic: [body for _, body in each] for topic, each in web.messages().items()}
    assert found == {"t": [b"a", b"c", b"half", b"d", b"e"], "u": [b"b"]}


@pytest.mark.parametrize(
    "data",
    [
        pub(b""),
        pub(b"x" * (MAX_MSG_SIZE + 1)),
        pub(b"x", "t&defer=10"),
        pub(b"x", "no%20name"),
        pub(b"x", "t;u"),
        pub(b"x", **CHUNKED),
        pub(b"x", Connection="close"),
        pub(b"x", Expect="100-continue"),
        pub(b"x", X="y" * 1024),
        pub(b"x").replace(b"HTTP/1.1", b"HTTP/1.0"),
        pub(b"x").replace(b"POST", b"PUT"),
        pub(b"x").replace(b"Content-Length: 1", b"Content-Length:1"),
        pub(b"x").replace(b"Content-Length: 1", b"Content-Length: 1\r\nContent-Length: 1"),
        pub(b"x").replace(b"Content-Length: 1", b"Content-Length: 0000000001"),
        b"\r\n" + pub(b"x"),
        request("POST", "/mpub?topic=t", b"x"),
        request("POST", "/topic/create?topic=t", b"x"),
        request("GET", "/nope", b"x"),
    ],
)
def test_whatever_is_unusual_goes_the_general_way(web: Web, data: bytes) -> None:
    for _ in range(2):  # the head is cached the second time
        client = web.client()
        client.ask(data)
        assert general(client).startswith(data)


def test_expect_does_not_hide_behind_no_length(web: Web) -> None:
    client = web.client()
    client.ask(pub(b"", Expect="100-continue"))
    assert client.ask(pub(b"x", Expect="100-continue")) == b"HTTP/1.1 100 Continue\r\n\r\n" + OK


def test_a_body_that_looks_like_a_request_is_a_body(web: Web) -> None:
    client = web.client()
    head, body = pub(b"x" * len(pub(b"y")))[: -len(pub(b"y"))], pub(b"y")
    assert client.ask(body) == OK
    assert client.ask(head) == b""
    assert client.ask(body) == OK
    assert client.ask(body) == OK
    assert bodies(web) == [b"y", body, b"y"]


def test_where_tls_is_required(web: Web) -> None:
    assert web.client().ask(pub(b"x")) == OK
    web.server.tls_only = tls_required(1)
    assert b"TLS_REQUIRED" in web.client().ask(pub(b"x"))


def test_a_topic_that_is_deleted_is_made_again(web: Web) -> None:
    client = web.client()
    assert client.ask(pub(b"a")) == OK
    web.core.shard.delete_topic(b"t")
    assert client.ask(pub(b"b")) == OK
    assert bodies(web) == [b"b"]


def test_a_topic_that_overflows_answers_when_its_log_has_it(
    make: Callable[..., Web], tmp_path: Path
) -> None:
    web = make(tmp_path, mem_queue_size=2)
    client = web.client()
    sent = [b"%d" % number for number in range(5)]
    for body in sent:
        assert client.ask(pub(body)) == OK
    assert general(client) == b"".join(map(pub, sent[2:]))
    assert bodies(web) == sent


def test_a_publish_that_is_refused(web: Web) -> None:
    client = web.client()
    assert client.ask(pub(b"x")) == OK
    web.core.shard.save()
    output = client.ask(pub(b"x"))
    assert output.startswith(b"HTTP/1.1 503 ") and output.endswith(b'{"message":"EXITING"}')


def test_an_exception_is_logged_and_answered(make: Callable[..., Web]) -> None:
    def fail(kind: str, topic: str, channel: str | None) -> None:
        if topic == "boom" and kind == "topic_created":
            raise RuntimeError("boom")

    web = make(on_event=fail)
    client = web.client()
    output = client.ask(pub(b"a") + pub(b"b", "boom") + pub(b"c"))
    assert output.startswith(OK + b"HTTP/1.1 500 ") and output.endswith(OK)
    assert b'{"message":"INTERNAL_ERROR"}' in output
    assert general(client) == b""
    assert web.lines() == ["panic in HTTP handler", "500 POST /pub?topic=boom (127.0.0.1:1) x"]
    assert "RuntimeError: boom" in web.log.lines[0]
    assert bodies(web) == [b"a", b"c"]


def test_a_bug_costs_one_connection(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes) -> None:
        raise RuntimeError("bug")

    client, other = web.client(), web.client()
    assert client.ask(pub(b"a")) == OK
    monkeypatch.setattr(web.server.heads, "accepted", fail)
    assert client.ask(pub(b"b") + pub(b"c", "new")) == b""
    assert client.ended and web.lines() == ["panic in HTTP handler"]
    assert other.ask(pub(b"d")) == OK
    assert bodies(web) == [b"a", b"b", b"d"]


def test_a_client_that_reads_nothing(make: Callable[..., Web]) -> None:
    """Until the client reads its answers, nsqd reads nothing from it."""
    web = make(send_buffer=4096)
    client = web.client()
    for number in range(200):
        client.send(pub(b"%03d" % number))
        web.settle(reading=False)
    topic = web.core.topic("t")
    assert topic is not None and 0 < topic.counters()["message_count"] < 200
    web.settle()
    assert client.ask(b"") == OK * 200
    assert bodies(web) == [b"%03d" % number for number in range(200)]
    assert not client.connection.is_late(web.server.now)


def test_it_is_a_sign_of_life(web: Web) -> None:
    client = web.client()
    web.server.now += 1000
    assert client.connection.is_late(web.server.now)
    client.ask(pub(b"x"))
    assert not client.connection.is_late(web.server.now)
    assert general(client) == b""


def test_the_end_of_a_connection(web: Web) -> None:
    client = web.client()
    client.send(pub(b"x"))
    client.half_close()
    assert client.ask(b"") == OK
    assert client.ended and web.server.connections == 0


def test_a_client_that_is_gone(web: Web) -> None:
    client = web.client()
    client.send(pub(b"x"))
    client.close()
    web.clients.clear()
    web.settle()
    assert web.server.connections == 0
    assert bodies(web) == [b"x"]
    assert client.connection.fd == -1 and client.connection.send(b"x") is None


def test_a_great_many_heads(web: Web) -> None:
    client = web.client()
    for number in range(600):
        assert client.ask(pub(b"x", X=str(number))) == OK
    assert general(client) == b""
