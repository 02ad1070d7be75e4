"""Hostile requests over HTTP and HTTPS: each gets a response, and other clients are served."""

import contextlib
import socket
import ssl
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter
from nsqcy.testing import certificates
from nsqcy.testing.http_requests import Answer, eventually
from support.many_clients import pss
from support.memory_http_client import trusting
from support.nsqd_process import Nsqd
from support.sanitizer import at_most

MIB = 1 << 20
SMUGGLED = b"POST /topic/create?topic=smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(
        tmp_path_factory.mktemp("victim"),
        workers=2,
        max_msg_size=MIB,
        max_body_size=MIB,
        max_input_bytes=4 * MIB,
        **certificates.make("server").save(tmp_path_factory.mktemp("certificates")).options,
    ).start()
    yield daemon
    daemon.destroy()


@pytest.fixture(params=["http", "https"])
def door(request: pytest.FixtureRequest, victim: Nsqd) -> "Door":
    return Door(victim, request.param == "https")


class Door:
    """The HTTP or the HTTPS address of a daemon."""

    def __init__(self, daemon: Nsqd, secure: bool) -> None:
        self.daemon = daemon
        self.port = daemon.https_port if secure else daemon.http_port
        self.secure = secure

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), 30)
        return trusting().wrap_socket(sock) if self.secure else sock

    def converse(self, *pieces: bytes) -> bytes:
        """Send as many pieces as the daemon accepts, and read until it closes the connection."""
        with self.connect() as sock:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                for piece in pieces:
                    sock.sendall(piece)
            return rest(sock)


def rest(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while piece := sock.recv(65536):
            data += piece
    return data


@contextlib.contextmanager
def growing_at_most(daemon: Nsqd, maximum: int) -> Iterator[None]:
    before = pss(daemon)
    yield
    assert daemon.web.get("/ping").status == 200
    assert pss(daemon) - before <= at_most(maximum)


# Slow requests, and many requests


def test_heads_that_come_slowly(door: Door) -> None:
    with growing_at_most(door.daemon, 96 * MIB if door.secure else 48 * MIB):
        slow = [door.connect() for _ in range(100)]
        for sock in slow:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                sock.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000)
        for _ in range(20):
            for sock in slow:
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    sock.sendall(b"a")
        for sock in slow:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                sock.sendall(b"\r\nConnection: close\r\n\r\n")
        answers = [rest(sock) for sock in slow]
    # The heads together exceed the worker's limit, so some connections are dropped.
    assert {answer[:12] for answer in answers} <= {b"HTTP/1.1 200", b""}
    assert answers.count(b"") < 100
    for sock in slow:
        sock.close()


def test_bodies_that_come_slowly(door: Door) -> None:
    head = b"POST /pub?topic=slow HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    with growing_at_most(door.daemon, 96 * MIB if door.secure else 48 * MIB):
        slow = [door.connect() for _ in range(60)]
        for sock in slow:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                sock.sendall(head + b"x" * 500_000)
        for sock in slow:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                sock.sendall(b"x")
        assert door.daemon.web.post("/pub", b"x" * 10, topic="quick").body == b"OK"
        for sock in slow:
            sock.close()
    eventually(lambda: door.daemon.web.post("/pub", b"x" * 1000, topic="after").status == 200)
    assert door.daemon.web.topic("slow") is None


def test_half_sent_bodies_keep_nobody_out(door: Door) -> None:
    """The limit is 4 MiB for each worker."""
    head = b"POST /pub?topic=half HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    half = [door.connect() for _ in range(30)]
    for sock in half:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            sock.sendall(head + b"x" * 400_000)
    ended = {}

    def are_read() -> bool:
        """Return whether all bodies are refused except those that fit: 5 in each of 2 workers."""
        for sock in half:
            if sock not in ended and (rest := rest_now(sock)) is not None:
                ended[sock] = rest
        return len(ended) >= 30 - 2 * 5

    eventually(are_read)
    for _ in range(5):
        assert door.daemon.web.post("/pub", b"x" * 900_000, topic="whole").status == 200
    answers = [answer for answer in ended.values() if answer]
    assert answers
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b'{"message":"INPUT_BUDGET_EXCEEDED"}')
    for sock in half:
        sock.close()
    door.daemon.web.do("delete", "whole")


def rest_now(sock: socket.socket) -> bytes | None:
    """Return the answer of a connection. b"": the daemon ended the connection and its answer was
    lost. None: the connection is still open."""
    sock.settimeout(0.01)
    try:
        return sock.recv(65536)
    except (TimeoutError, ssl.SSLWantReadError):
        return None
    except (ConnectionError, ssl.SSLError):
        return b""


def test_an_idle_connection_is_closed(starter: Starter) -> None:
    daemon = starter(workers=1, http_idle_timeout="1s")
    with socket.create_connection(("127.0.0.1", daemon.http_port), 30) as sock:
        assert rest(sock) == b""


def test_handshakes_that_never_begin(victim: Nsqd) -> None:
    with growing_at_most(victim, 96 * MIB):
        idle = [socket.create_connection(("127.0.0.1", victim.https_port)) for _ in range(300)]
        for sock in idle[::2]:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert (
            Door(victim, True)
            .converse(b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .startswith(b"HTTP/1.1 200 OK")
        )
    for sock in idle:
        sock.settimeout(20)
        assert rest(sock) == b""
        sock.close()


@pytest.mark.parametrize(
    "piece",
    [b"A: " + b"a" * 60_000, b"a: b\r\n" * 10_000, b"authorization: a\r\n" * 4_000],
)
def test_a_flood_of_headers(door: Door, piece: bytes) -> None:
    with growing_at_most(door.daemon, 16 * MIB):
        for _ in range(3):
            pieces = [b"\r\n" + piece.rstrip(b"\r\n")] * 40
            reply = door.converse(b"GET /ping HTTP/1.1\r\nHost: x", *pieces)
            assert reply.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
            assert b"\r\nConnection: close\r\n" in reply


def get(door: Door, target: bytes, method: bytes = b"GET") -> Answer:
    reply = door.converse(
        b"%b %b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        % (method, target)
    )
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(status.split()[1]), headers, body)


@pytest.mark.parametrize("unit", [b"a&", b"a=%41&", b"%41", b"&"])
def test_a_flood_of_query(door: Door, unit: bytes) -> None:
    query = unit * (900_000 // len(unit))
    answer = get(door, b"/stats?" + query)
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_REQUEST"})
    assert get(door, b"/ping?" + query).status == 200
    longest = max(map(len, door.daemon.log_text().splitlines()))
    assert longest < 4096


def test_many_parameters(door: Door) -> None:
    query = b"".join(b"p%d=v&" % number for number in range(5000)) + b"topic=many"
    assert get(door, b"/topic/create?" + query, b"POST").status == 200
    assert door.daemon.web.topic("many") is not None
    door.daemon.web.do("delete", "many")


def test_a_path_as_long_as_a_head(door: Door) -> None:
    for unit in (b"/a", b"/..", b"/.", b"%2e", b"//"):
        path = b"/" + unit * (900_000 // len(unit))
        assert get(door, path).status == 404, unit


# Ambiguous requests

POST = b"POST /topic/create?topic=outer HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SHAPES = {
    "length and chunks": b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks and length": CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths that agree": b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "two lengths that do not": b"Content-Length: 0\r\nContent-Length: 90\r\n\r\n",
    "a list of lengths": b"Content-Length: 0, 90\r\n\r\n",
    "a length with a sign": b"Content-Length: +0\r\n\r\n",
    "a length in hexadecimal": b"Content-Length: 0x0\r\n\r\n",
    "a length with a blank inside": b"Content-Length: 0 0\r\n\r\n",
    "an empty length": b"Content-Length:\r\n\r\n",
    "a folded header": b"A: b\r\n Content-Length: 0\r\n\r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a folded first header": b" Content-Length: 0\r\n\r\n",
    "a blank before the colon": b"Content-Length : 0\r\n\r\n",
    "a tab before the colon": b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    "a bare LF": b"A: b\nContent-Length: 0\r\n\r\n",
    "a bare CR": b"A: b\rContent-Length: 0\r\n\r\n",
    "an end of bare LFs": b"A: b\n\n",
    "a NUL": b"A: b\0c\r\n\r\n",
    "a NUL in a name": b"A\0: b\r\n\r\n",
    "a header without a colon": b"Content-Length 0\r\n\r\n",
    "a header without a name": b": 0\r\n\r\n",
    "another coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks that are not last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks twice": CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks after something": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks with a parameter": b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "chunks in quotes": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "chunks behind a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "another host": b"Host: y\r\n\r\n",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_smuggled(door: Door, shape: str) -> None:
    reply = door.converse(POST + SHAPES[shape] + SMUGGLED)
    assert reply[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 501"), reply
    assert reply.count(b"HTTP/1.1 ") == 1
    assert b"\r\nConnection: close\r\n" in reply
    topics = door.daemon.web.topics()
    assert "smuggled" not in topics and "outer" not in topics


CHUNKS = {
    "a size too large for 64 bits": b"10000000000000000\r\n",
    "a size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "a size with a prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size of nothing": b"\r\nhello\r\n0\r\n\r\n",
    "a blank before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "a bare LF after the size": b"5\nhello\r\n0\r\n\r\n",
    "a bare LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "an endless extension": b"5;" + b"x" * 70_000,
    "too much data": b"5\r\nhello!\r\n0\r\n\r\n",
    "no end of data": b"5\r\nhello0\r\n\r\n",
    "a trailer that is none": b"5\r\nhello\r\n0\r\nGET / HTTP/1.1\r\n\r\n",
    "endless trailers": b"5\r\nhello\r\n0\r\n" + b"a: b\r\n" * 10_000,
}


@pytest.mark.parametrize("shape", CHUNKS)
def test_nothing_is_smuggled_behind_chunks(door: Door, shape: str) -> None:
    head = b"POST /pub?topic=outer HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"\r\n"
    reply = door.converse(head + CHUNKS[shape] + SMUGGLED)
    assert reply.startswith(b"HTTP/1.1 500 ") and reply.count(b"HTTP/1.1 ") == 1, reply
    assert reply.endswith(b'{"message":"INTERNAL_ERROR"}')
    topics = door.daemon.web.topics()
    assert "smuggled" not in topics and "outer" not in topics


def test_chunks_that_are_well_formed(door: Door) -> None:
    head = (
        b"POST /pub?topic=chunks%23ephemeral HTTP/1.1\r\nhost: x\r\ntransfer-encoding: Chunked \r\n"
    )
    body = b"000005;a=b\r\nhello\r\nb;x\r\n, wonderful\r\n0\r\nt: u\r\n\r\n"
    last = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    reply = door.converse(head + b"\r\n" + body + last)
    assert reply.count(b"HTTP/1.1 200 OK") == 2 and reply.endswith(b"OK")
    assert door.daemon.web.counts("chunks#ephemeral")["message_bytes"] == 16
    door.daemon.web.do("delete", "chunks#ephemeral")


# Names


@pytest.mark.parametrize("name", [".", "..", "...", "-", "_", "a" * 64, "..#ephemeral"])
def test_odd_names_are_names(door: Door, name: str) -> None:
    web = door.daemon.web
    target = b"/pub?topic=" + urllib.parse.quote(name, safe="").encode()
    reply = door.converse(
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx" % target
    )
    assert reply.startswith(b"HTTP/1.1 200 OK")
    web.create(name, name)
    web.await_counts(name, name, depth=1)
    assert [topic["topic_name"] for topic in web.stats(topic=name)["topics"]] == [name]
    consumer = door.daemon.connect().sub(name, name, rdy=1)
    assert consumer.take(1)[0].body == b"x"
    web.do("delete", name)
    assert web.topic(name) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * 65,
        "a" * 55 + "%23ephemeral",
        "%23ephemeral",
        "a%23ephemeral%23ephemeral",
        "a%23Ephemeral",
        "a%00",
        "%00",
        "a%0a",
        "a%0d%0aX:%20y",
        "a%20",
        "a+b",
        "a/b",
        "..%2f..%2fetc",
        "%252e",
        "%c0%ae",
        "%ff",
        "%e2%80%ae",
        "%ef%bc%8e",
        "%D9%A1",
    ],
)
def test_invalid_topic_names(door: Door, text: str) -> None:
    answer = get(door, b"/topic/create?topic=" + text.encode("latin-1"), b"POST")
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_TOPIC"})
    answer = get(door, b"/topic/delete?topic=" + text.encode("latin-1"), b"POST")
    assert (answer.status, answer.json()) == (404, {"message": "TOPIC_NOT_FOUND"})
    assert get(door, b"/stats?topic=" + text.encode("latin-1")).status == 200


def test_targets_are_ascii(door: Door) -> None:
    for target in ("/stats?topic=\u00e9".encode(), b"/\xff", b"/ping\x7f"):
        assert get(door, target).status == 400


@pytest.mark.parametrize("text", ["%", "a%", "a%2", "a%g0", "a%2g", "a;b", "a%u0041"])
def test_what_is_no_query(door: Door, text: str) -> None:
    answer = get(door, b"/topic/create?topic=" + text.encode(), b"POST")
    assert (answer.status, answer.json()) == (400, {"message": "INVALID_REQUEST"})


@pytest.mark.parametrize(
    ("target", "status", "location"),
    [
        ("/%70%69%6eg", 200, None),
        ("/ping%00", 404, None),
        ("/ping%0d%0aSet-Cookie:%20a", 404, None),
        ("/%2570ing", 404, None),
        ("/ping%2f", 301, "/ping"),
        ("/..%2f%2e%2e/ping", 301, "/ping"),
        ("//evil.example/../ping", 301, "/ping"),
        ("//evil.example/config/x", 404, None),
        ("/config//evil.example", 301, "/config/evil.example"),
        ("/config/%2fevil.example", 301, "/config/evil.example"),
        ("/CONFIG/%0d%0aA:b", 301, "/config/%0d%0aa:b"),
        ("/CONFIG/%ff", 301, "/config/%ff"),
        ("/%c0%ae%c0%ae/ping", 404, None),
        ("/\\..\\ping", 404, None),
    ],
)
def test_tricks_with_paths(door: Door, target: str, status: int, location: str | None) -> None:
    answer = get(door, target.encode("latin-1"))
    assert (answer.status, answer.headers.get("location")) == (status, location)
    assert "set-cookie" not in answer.headers


def test_odd_names_on_disk(starter: Starter, tmp_path: Path) -> None:
    """Topics named `..` and `.` overflow to disk, survive a restart, and touch nothing outside the
    data path."""
    home = tmp_path / "home" / "data"
    home.mkdir(parents=True)
    daemon = starter(home, mem_queue_size=0)
    names = [".", "..", "...", "a" * 64]
    for name in names:
        daemon.web.create(name, "..")
        daemon.web.pub(name, name.encode())
    daemon.restart()
    for name in names:
        daemon.web.await_counts(name, "..", depth=1)
        consumer = daemon.connect().sub(name, "..", rdy=1)
        assert consumer.take(1)[0].body == name.encode()
        daemon.web.do("delete", name)
    daemon.stop()
    assert [path.name for path in home.parent.iterdir()] == ["data"]
    directories = {path for path in home.rglob("*") if path.is_dir()}
    assert directories == {home / "previous"}
