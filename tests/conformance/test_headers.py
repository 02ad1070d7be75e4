"""Message headers over TCP and HTTP, between any workers, and clients that do not receive them."""

import http.client
import struct
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.client.errors import ConnectionFailed
from nsqcy.testing.encoded_connection import connect
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import WORTH_A_MOVE, Conn, Message
from support import tool_process
from support.client_interfaces import Face, Kept
from support.fake_nsqd import MockNsqd
from support.nsqd_process import Nsqd

SOME = ((b"trace-id", b"4bf92f"), (b"from", "Zürich".encode()))


def behind(body: bytes, *headers: tuple[bytes, bytes]) -> bytes:
    """Return a body preceded by its headers, as clients that negotiated headers send and receive
    it."""
    packed = b"".join(
        bytes([len(name)]) + name + struct.pack(">H", len(value)) + value for name, value in headers
    )
    return struct.pack(">H", len(packed)) + packed + body


def negotiated(daemon: Nsqd, **fields: Any) -> Conn:
    conn = daemon.connect()
    assert conn.negotiate(headers=True, **fields)["headers"] is True
    return conn


def bodies(conn: Conn, count: int) -> list[bytes]:
    taken: list[Message] = conn.take(count)
    return [message.body for message in taken]


@one_worker
def test_nobody_is_told_who_does_not_ask(shared: Nsqd) -> None:
    assert "headers" not in shared.connect().negotiate()
    assert "headers" not in shared.connect().negotiate(headers=False)


def test_every_way_in_and_out(shared: Nsqd, topic: str) -> None:
    """The workers that the clients are connected to may or may not own the topic."""
    sent = []
    readers = [negotiated(shared).sub(topic, f"c{number}", rdy=100) for number in range(6)]
    plain = [shared.connect().sub(topic, f"p{number}", rdy=100) for number in range(6)]
    for number in range(6):
        publisher = negotiated(shared)
        one = behind(b"%d" % number, (b"n", b"%d" % number), *SOME)
        publisher.pub(topic, one)
        publisher.mpub(topic, [one, behind(b"bare")])
        publisher.dpub(topic, 1, one)
        sent += [one, one, behind(b"bare"), one]
    for conn in readers:
        assert sorted(bodies(conn, len(sent))) == sorted(sent)
    bare = sorted(body[2 + int.from_bytes(body[:2], "big") :] for body in sent)
    for conn in plain:
        assert sorted(bodies(conn, len(sent))) == bare
    found = shared.web.topic(topic)
    assert found is not None
    assert found["message_bytes"] == sum(map(len, bare))


def test_a_producer_that_moves_to_the_owner(nsqd: Starter, topic: str) -> None:
    daemon = nsqd()
    reader = negotiated(daemon).sub(topic, "c", rdy=100)
    publisher = negotiated(daemon)
    sent = [behind(body, *SOME) for body in [*WORTH_A_MOVE, b"moved", b"and on"]]
    publisher.pub(topic, *sent)
    assert bodies(reader, len(sent)) == sent


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_compressed(shared: Nsqd, topic: str, codec: str) -> None:
    conn = connect(shared, codec=codec, fields={"headers": True})
    sent = [behind(b"x" * size, *SOME) for size in (1, 20_000)]
    conn.pub(topic, *sent)
    conn.sub(topic, "c", rdy=10)
    assert bodies(conn, 2) == sent


def post(daemon: Nsqd, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=10)
    link.request("POST", path, body, headers)
    answer = link.getresponse()
    found = answer.status, answer.read()
    link.close()
    return found


def test_http(shared: Nsqd, topic: str) -> None:
    reader = negotiated(shared).sub(topic, "c", rdy=100)
    plain = shared.connect().sub(topic, "plain", rdy=100)
    given = {"X-Nsq-Trace-Id": "4bf92f", "x-nsq-from": "Zürich".encode().decode("latin-1")}
    expected = []
    for number in range(6):  # regardless of the worker that serves the request
        for query in ("", "&durability=os", "&defer=1"):
            body = b"%d%s" % (number, query.encode())
            answer = post(shared, f"/pub?topic={topic}{query}", body, given)
            assert answer == (200, b"OK")
            expected.append(body)
    assert sorted(bodies(reader, 18)) == sorted(behind(body, *SOME) for body in expected)
    assert sorted(bodies(plain, 18)) == sorted(expected)
    for _ in range(3):
        assert post(shared, f"/mpub?topic={topic}", b"a\nb\n", given) == (200, b"OK")
        assert bodies(reader, 2) == [behind(b"a", *SOME), behind(b"b", *SOME)]
    binary = struct.pack(">iib", 1, 1, 99)
    assert post(shared, f"/mpub?topic={topic}&binary=true", binary, given)[0] == 200
    assert bodies(reader, 1) == [behind(b"c", *SOME)]


@one_worker
@pytest.mark.parametrize("path", ["/pub", "/mpub"])
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "under_score",
            "v",
            'header name \\"under_score\\" (allowed: 1 to 255 of a-z, 0-9 and -)',
        ),
        ("", "v", 'header name \\"\\" (allowed: 1 to 255 of a-z, 0-9 and -)'),
        ("long", "x" * 4096, "headers of 4103 bytes (at most 4096)"),
    ],
    ids=["name", "no name", "length"],
)
def test_http_refuses(
    shared: Nsqd, topic: str, path: str, name: str, value: str, text: str
) -> None:
    answer = post(shared, f"{path}?topic={topic}", b"body", {f"X-Nsq-{name}": value})
    assert answer == (400, f'{{"message":"INVALID_HEADERS ({text})"}}'.encode())


@one_worker
def test_too_many_over_http(shared: Nsqd, topic: str) -> None:
    given = {f"X-Nsq-N{number}": "" for number in range(33)}
    status, body = post(shared, f"/pub?topic={topic}", b"body", given)
    assert (status, body) == (400, b'{"message":"INVALID_HEADERS (more than 32 headers)"}')


# -- nsqcy's client


def address(daemon: Nsqd) -> str:
    return f"127.0.0.1:{daemon.tcp_port}"


def test_the_client(face: Face, shared: Nsqd, topic: str) -> None:
    wanted = {"trace-id": "4bf92f", "from": "Zürich", "empty": ""}
    kept, blind = Kept(), Kept()
    options = {"max_in_flight": 9}
    face.consumer(topic, "c", address(shared), message_handler=kept, headers=True, **options)
    face.consumer(topic, "blind", address(shared), message_handler=blind, **options)
    eventually(lambda: shared.web.channel(topic, "c") and shared.web.channel(topic, "blind"))
    producer = face.producer(address(shared), headers=True)
    face.call(producer.publish, topic, b"one", headers=wanted)
    face.call(producer.publish, topic, b"bare")
    face.call(producer.publish, topic, b"later", 1, headers=wanted)
    face.call(producer.multipublish, topic, [b"two", b"three"], headers=wanted)
    face.call(producer.publish_all, topic, [b"four"], headers=wanted)
    eventually(lambda: len(kept.messages) == 6 == len(blind.messages))
    found = {message.body: message.headers for message in kept.messages}
    with_some = (b"one", b"two", b"three", b"four", b"later")
    assert found == {b"bare": {}} | dict.fromkeys(with_some, wanted)
    assert [message.headers for message in blind.messages] == [{}] * 6
    assert {message.body for message in blind.messages} == found.keys()


@one_worker
def test_the_client_refuses(face: Face, shared: Nsqd, topic: str) -> None:
    with pytest.raises(ValueError, match="headers require a producer with headers=True"):
        face.call(face.producer(address(shared)).publish, topic, b"x", headers={"a": "b"})
    producer = face.producer(address(shared), headers=True)
    with pytest.raises(ValueError, match='header name "Up"'):
        face.call(producer.publish, topic, b"x", headers={"Up": "b"})
    with pytest.raises(ValueError, match="cannot be empty"):
        face.call(producer.publish, topic, b"", headers={"a": "b"})
    with pytest.raises(TypeError):
        face.call(producer.publish, topic, b"x", headers={"a": 1})


def test_an_nsqd_that_knows_of_none(face: Face, mock: Callable[..., MockNsqd]) -> None:
    producer = face.producer(mock().address, headers=True, retries=0)
    with pytest.raises(ConnectionFailed, match="does not support headers"):
        face.call(producer.publish, "t", b"x", headers={"a": "b"})


def test_nsq_to_nsq(plain: Nsqd, topic: str) -> None:
    sent = [behind(b"with", *SOME), behind(b"without")]
    negotiated(plain).mpub(topic, sent)
    here = address(plain)
    with tool_process.running(
        "nsq_to_nsq",
        f"--topic={topic}",
        "--channel=c",
        f"--destination-topic={topic}.x",
        f"--nsqd-tcp-address={here}",
        f"--destination-nsqd-tcp-address={here}",
        "--headers",
    ):
        plain.web.await_counts(f"{topic}.x", message_count=2)
    assert sorted(bodies(negotiated(plain).sub(f"{topic}.x", "r", rdy=5), 2)) == sorted(sent)
