"""The HTTP API over real sockets, with an in-memory backend (memory_http_server.py)."""

import json
import re
import selectors
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nsqcy.testing import certificates
from support.memory_http_client import CHUNKED, NSQ, Answer, Connection, Server, request


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Server]]:
    servers: dict[tuple[str, ...], Server] = {}

    def get(*args: str) -> Server:
        """One server for each set of arguments."""
        if args not in servers:
            servers[args] = Server(*args)
        return servers[args]

    yield get
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a server certificate and its key."""
    path = tmp_path_factory.mktemp("certificates")
    certificates.make("server").save(path)
    return path


@pytest.fixture(scope="module", params=["at once", "later", "https"])
def server(request: pytest.FixtureRequest, start: Callable[..., Server], folder: Path) -> Server:
    """Server that answers publishes immediately or in a later turn, or that uses TLS."""
    args = {"at once": [], "later": ["--slow"], "https": ["--tls", str(folder)]}
    return start(*args[request.param])


@pytest.fixture
def fresh() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def http(server: Server) -> Iterator[Connection]:
    connection = server.connect()
    yield connection
    connection.sock.close()


# Routing and envelope


ROUTING = [
    ("GET", "/nope", 404, {}),
    ("GET", "/", 404, {}),
    ("GET", "/put", 404, {}),
    ("OPTIONS", "/nope", 404, {}),
    ("OPTIONS", "/pub/", 404, {}),
    ("GET", "/pub/", 404, {}),
    ("GET", "/PUB", 404, {}),
    ("GET", "*", 404, {}),
    ("POST", "/stats", 405, {"allow": "GET, OPTIONS"}),
    ("get", "/ping", 405, {"allow": "GET, OPTIONS"}),
    ("BREW", "/pub", 405, {"allow": "OPTIONS, POST"}),
    ("OPTIONS", "/pub", 200, {"allow": "OPTIONS, POST"}),
    ("OPTIONS", "*", 200, {}),
    ("GET", "/stats/", 301, {"location": "/stats"}),
    ("GET", "/PING", 301, {"location": "/ping"}),
    ("GET", "//ping", 301, {"location": "/ping"}),
    ("GET", "/a/../ping?b=c", 301, {"location": "/ping?b=c"}),
    ("POST", "/pub/?topic=x", 307, {"location": "/pub?topic=x"}),
    ("POST", "/Topic/./CREATE/?topic=x", 307, {"location": "/topic/create?topic=x"}),
    ("GET", "/p%69ng", 200, {}),
    ("GET", "http://somewhere/ping", 200, {}),
]


@pytest.mark.case(
    "HTTP-005", "HTTP-006", "HTTP-007", "HTTP-008", "HTTP-009", "HTTP-010", "HTTP-011"
)
@pytest.mark.parametrize("method, target, status, headers", ROUTING)
@pytest.mark.parametrize("server", ["at once"], indirect=True, scope="module")
def test_routing(
    http: Connection, method: str, target: str, status: int, headers: dict[str, str]
) -> None:
    answer = http.request(method, target)
    assert answer.status == status
    assert headers.items() <= answer.headers.items()
    assert ("allow" in answer.headers) is ("allow" in headers)
    if status in (404, 405):
        assert answer.message == {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}[status]
    elif status == 301:
        location = headers["location"].encode()
        assert answer.body == b'<a href="%b">Moved Permanently</a>.\n\n' % location
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
    elif status == 307 or method == "OPTIONS":
        assert answer.body == b"" and answer.headers["content-length"] == "0"
        assert "x-nsq-content-type" not in answer.headers


# Publishing


@pytest.mark.case("HTTP-012", "HTTP-013", "HTTP-014", "HTTP-016", "HTTP-020", "HTTP-022")
@pytest.mark.parametrize(
    "query, body, status, code",
    [
        ("", b"", 400, "MSG_EMPTY"),
        ("?topic=a%zz", b"", 400, "MSG_EMPTY"),
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("", b"topic=abc", 400, "MISSING_ARG_TOPIC"),
        ("?Topic=abc", b"x", 400, "MISSING_ARG_TOPIC"),
        ("?topic=", b"x", 400, "INVALID_TOPIC"),
        ("?topic=bad$", b"x", 400, "INVALID_TOPIC"),
        ("?topic=a%0A", b"x", 400, "INVALID_TOPIC"),
        ("?topic=" + "a" * 65, b"x", 400, "INVALID_TOPIC"),
        ("?topic=a%zz", b"x", 400, "INVALID_REQUEST"),
        ("?topic=a;b=c", b"x", 400, "INVALID_REQUEST"),
        ("?topic=t", b"x" * 1001, 413, "MSG_TOO_BIG"),
        ("?topic=fail", b"x", 503, "EXITING"),
        ("?topic=boom", b"x", 500, "INTERNAL_ERROR"),
        *[
            (f"?topic=n&defer={value}", b"x", 400, "INVALID_DEFER")
            for value in ("bad", "3600001", "-1", "1.5", "0x10", "+5", "1_0", "%2B%2B5")
        ],
        ("?topic=n&defer=18446744073710", b"x", 400, "INVALID_DEFER"),
        ("?topic=n&defer=", b"x", 400, "INVALID_DEFER"),
        ("?topic=n&defer=%D9%A3", b"x", 400, "INVALID_DEFER"),
        ("?topic=n&defer=" + "9" * 5000, b"x", 400, "INVALID_DEFER"),
    ],
)
def test_pub_refusals(http: Connection, query: str, body: bytes, status: int, code: str) -> None:
    for headers in ({}, CHUNKED):
        answer = http.request("POST", f"/pub{query}", body, **headers)
        assert (answer.status, answer.message) == (status, code)
        assert "connection" not in answer.headers


@pytest.mark.case("HTTP-015", "HTTP-017", "HTTP-018", "HTTP-019", "HTTP-021", "HTTP-022")
def test_pub(server: Server, http: Connection) -> None:
    for query in ("p", "a" * 64, "e%23ephemeral", "p1&topic=p2", "d&defer=3600000", "e&defer=%2B5"):
        answer = http.request("POST", f"/pub?topic={query}", b"x" * 1000)
        assert (answer.status, answer.body) == (200, b"OK")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-nsq-content-type"] == NSQ
    http.request("POST", "/pub?topic=q", b"chunked \x00", **CHUNKED)
    http.request("POST", "/pub?topic=only-created&defer=bad", b"x")
    topics = server.topics()
    assert topics["d"]["delay_ms"] == 3600000 and topics["e"]["delay_ms"] == 5
    assert topics["e#ephemeral"]["message_count"] == 1
    assert topics["q"]["bodies"] == ["chunked \x00"] and topics["q"]["delay_ms"] == 0
    assert "p1" in topics and "p2" not in topics
    assert topics["only-created"]["message_count"] == 0


@pytest.mark.case("HTTP-027")
def test_a_cut_upload(server: Server) -> None:
    for target, status, code in [
        ("/pub?topic=cut", 500, "INTERNAL_ERROR"),
        ("/mpub?topic=cut", 500, "INTERNAL_ERROR"),
        ("/mpub?topic=cut&binary=1", 413, "BAD_BODY"),
        ("/topic/delete?topic=cut", 400, "INVALID_REQUEST"),
        ("/stats", 400, "INVALID_REQUEST"),
    ]:
        method = "GET" if target == "/stats" else "POST"
        http = server.connect().send(request(method, target, b"xx")[:-1])
        http.half_close()
        answer = http.answer()
        assert (answer.status, answer.message) == (status, code)
        assert answer.headers["connection"] == "close" and http.rest() == b""


@pytest.mark.case("HTTP-028")
def test_expect_100_continue(server: Server) -> None:
    http = server.connect()
    head = request("POST", "/pub?topic=c", b"12345", Expect="100-continue")[:-5]
    assert http.send(head).answer().status == 100
    assert http.send(b"12345").answer().body == b"OK"
    too_big = request("POST", "/pub?topic=c", b"1" * 2000, Expect="100-continue")[:-2000]
    answer = http.send(too_big).answer()
    assert (answer.status, answer.message) == (413, "MSG_TOO_BIG")
    assert answer.headers["connection"] == "close" and http.rest() == b""


ENDLESS = [
    ("GET", "/stats"),
    ("POST", "/topic/pause?topic=endless"),
    ("POST", "/channel/create?topic=endless&channel=c"),
]


@pytest.mark.parametrize("method, target", [*ENDLESS, ("GET", "/ping")])
def test_a_huge_body_that_nobody_needs_is_not_awaited(
    server: Server, method: str, target: str
) -> None:
    assert server.connect().request("POST", "/topic/create?topic=endless").status == 200
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n"
    for framing, body in (
        ("Content-Length: 1000000000000\r\n\r\n", b""),
        ("Content-Length: 1000000000000\r\n\r\n", b"x" * 100_000),
        ("Content-Length: 1000000000000\r\nExpect: 100-continue\r\n\r\n", b""),
    ):
        http = server.connect().send((head + framing).encode() + body)
        answer = http.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close" and http.rest() == b""


@pytest.mark.parametrize("method, target", ENDLESS)
def test_chunks_that_nobody_needs_are_not_read_to_their_end(
    server: Server, method: str, target: str
) -> None:
    http = server.connect()
    assert http.request("POST", "/topic/create?topic=endless").status == 200
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = http.send(head.encode() + b"fffffff\r\n" + b"x" * (257 << 10)).answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    "method, target, status",
    [
        ("POST", "/pub?topic=endless", 413),
        ("POST", "/mpub?topic=endless", 413),
        ("POST", "/mpub?topic=endless&binary=1", 413),
        ("PUT", "/config/log_level", 413),
        ("PUT", "/topic/config?topic=endless", 413),
        ("PUT", "/debug/setblockrate?rate=1", 200),
    ],
)
@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"])
def test_a_huge_body_is_refused_by_its_length(
    server: Server, method: str, target: str, status: int, expect: str
) -> None:
    http = server.connect()
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n{expect}\r\n"
    answer = http.send(head.encode()).answer()
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert http.rest() == b""


def binary(*messages: bytes, count: int | None = None) -> bytes:
    sized = [struct.pack(">i", len(m)) + m for m in messages]
    return struct.pack(">i", len(messages) if count is None else count) + b"".join(sized)


@pytest.mark.case(
    "HTTP-029", "HTTP-030", "HTTP-031", "HTTP-035", "HTTP-036", "HTTP-037", "HTTP-040"
)
@pytest.mark.parametrize(
    "query, body, messages",
    [
        ("", b"a\n\nb\n", ["a", "b"]),
        ("", b"a\r\nb", ["a\r", "b"]),
        ("", b"", []),
        ("&binary=true", binary(b"1", b"22"), ["1", "22"]),
        ("&binary=", binary(b"1"), ["1"]),
        ("&binary=no", binary(b"1"), ["1"]),
        ("&binary=0", binary(b"1", b"2"), ["\0\0\0\2\0\0\0\0011\0\0\0\0012"]),
        ("&binary=1", binary(b"1") + b"trailing", ["1"]),
        ("&defer=bad", b"ignored", ["ignored"]),
    ],
)
def test_mpub(
    server: Server, http: Connection, query: str, body: bytes, messages: list[str]
) -> None:
    for kind, headers in (("length", {}), ("chunked", CHUNKED)):
        topic = f"mpub-{kind}-{abs(hash((query, body)))}"
        answer = http.request("POST", f"/mpub?topic={topic}{query}", body, **headers)
        assert (answer.status, answer.body) == (200, b"OK")
        found = server.topics()[topic]
        assert found["bodies"] == messages and found["message_count"] == len(messages)
        assert found["message_bytes"] == sum(map(len, messages))
    if query in ("&binary=", "&binary=no"):
        value = query.partition("=")[2]
        text = f"WARNING: deprecated value '{value}' used for /mpub binary param\n"
        server.wait_for_log(lambda line: line == text)


@pytest.mark.case("HTTP-032", "HTTP-033", "HTTP-034", "HTTP-038", "HTTP-039")
@pytest.mark.parametrize(
    "query, body, chunked, code, created",
    [
        ("", b"x\n" * 2500 + b"x", False, "BODY_TOO_BIG", False),
        ("", b"x\n" * 2500 + b"x", True, "BODY_TOO_BIG", True),
        ("", b"a\n" + b"x" * 1001, False, "MSG_TOO_BIG", True),
        ("&binary=1", b"x" * 10001, True, "BODY_TOO_BIG", True),
        ("&binary=1", b"", False, "BAD_BODY", True),
        ("&binary=1", binary(b"x", count=0), False, "BAD_BODY", True),
        ("&binary=1", binary(b"x", count=-1), False, "BAD_BODY", True),
        ("&binary=1", binary(b"x", count=1000), False, "BAD_BODY", True),
        ("&binary=1", binary(b"a", b""), False, "BAD_MESSAGE", True),
        ("&binary=1", binary(b"a", b"x" * 1001), False, "BAD_MESSAGE", True),
        ("&binary=1", binary(b"a", b"abc")[:-1], False, "BAD_MESSAGE", True),
        ("&binary=1", binary(b"a", count=2), False, "BAD_MESSAGE", True),
    ],
)
def test_mpub_refusals(
    server: Server,
    http: Connection,
    query: str,
    body: bytes,
    chunked: bool,
    code: str,
    created: bool,
) -> None:
    topic = f"refused-{abs(hash((query, body, chunked)))}"
    headers = CHUNKED if chunked else {}
    answer = http.request("POST", f"/mpub?topic={topic}{query}", body, **headers)
    assert (answer.status, answer.message) == (413, code)
    topics = server.topics()
    assert (topic in topics) is created
    assert not created or topics[topic]["message_count"] == 0


@pytest.mark.case("HTTP-041")
def test_a_chunked_binary_mpub_may_exceed_the_body_limit(server: Server, http: Connection) -> None:
    body = binary(*[b"x" * 900] * 10)
    assert len(body) == 9044
    answer = http.request("POST", "/mpub?topic=over&binary=1", body, **CHUNKED)
    assert answer.body == b"OK" and server.topics()["over"]["message_count"] == 10
    answer = http.request("POST", "/mpub?topic=over&binary=1", body)
    assert (answer.status, answer.message) == (413, "BODY_TOO_BIG")


def test_mpub_checks_the_topic_before_the_body_is_sent(server: Server) -> None:
    http = server.connect()
    for query, code in (("", "MISSING_ARG_TOPIC"), ("?topic=$", "INVALID_TOPIC")):
        assert http.send(request("POST", f"/mpub{query}", b"xx")[:-2]).answer().message == code
        http.send(b"xx")


# Topics and channels


@pytest.mark.case(
    "HTTP-042", "HTTP-043", "HTTP-044", "HTTP-045", "HTTP-050", "HTTP-051", "HTTP-052", "HTTP-053"
)
def test_topics_and_channels(server: Server, http: Connection) -> None:
    def post(target: str) -> tuple[int, str]:
        answer = http.request("POST", target, b"ignored" * 1000)
        if answer.status == 200:
            assert answer.body == b"" and answer.headers["content-length"] == "0"
            assert "content-type" not in answer.headers
            assert answer.headers["x-nsq-content-type"] == NSQ
            return 200, ""
        return answer.status, answer.message

    for _ in range(2):
        assert post("/topic/create?topic=t") == (200, "")
    assert post("/topic/create?topic=bad$") == (400, "INVALID_TOPIC")
    for verb in ("create", "delete", "empty", "pause", "unpause"):
        assert post(f"/topic/{verb}") == (400, "MISSING_ARG_TOPIC")
        assert post(f"/topic/{verb}?topic=a%zz") == (400, "INVALID_REQUEST")
        for query, expected in [
            ("", (400, "MISSING_ARG_TOPIC")),
            ("?topic=%", (400, "INVALID_REQUEST")),
            ("?topic=bad$", (400, "INVALID_ARG_TOPIC")),
            ("?topic=t", (400, "MISSING_ARG_CHANNEL")),
            ("?topic=t&channel=", (400, "INVALID_ARG_CHANNEL")),
            ("?topic=t&channel=bad$", (400, "INVALID_ARG_CHANNEL")),
            ("?topic=zz&channel=c", (404, "TOPIC_NOT_FOUND")),
        ]:
            assert post(f"/channel/{verb}{query}") == expected
    for verb in ("delete", "empty", "pause", "unpause"):
        bad = (400, "INVALID_TOPIC") if verb == "empty" else (404, "TOPIC_NOT_FOUND")
        assert post(f"/topic/{verb}?topic=bad$") == bad
        assert post(f"/topic/{verb}?topic=zz") == (404, "TOPIC_NOT_FOUND")
        assert post(f"/channel/{verb}?topic=t&channel=c") == (404, "CHANNEL_NOT_FOUND")

    assert post("/channel/create?topic=t&channel=c") == (200, "")
    assert post("/channel/empty?topic=t&channel=c") == (200, "")
    for verb, paused in (("pause", True), ("unpause", False)):
        assert post(f"/topic/{verb}?topic=t") == (200, "")
        assert post(f"/channel/{verb}?topic=t&channel=c") == (200, "")
        topic = server.topics()["t"]
        assert topic["paused"] is paused and topic["channels"][0]["paused"] is paused
    assert post("/channel/delete?topic=t&channel=c") == (200, "")
    assert server.topics()["t"]["channels"] == []
    assert post("/topic/empty?topic=t") == (200, "")
    assert post("/topic/delete?topic=t") == (200, "")
    assert "t" not in server.topics()


# Statistics and health


@pytest.mark.case(
    "HTTP-060", "HTTP-061", "HTTP-062", "HTTP-063", "HTTP-064", "HTTP-065", "HTTP-069"
)
def test_stats(fresh: Server) -> None:
    http = fresh.connect()

    def get(query: str) -> Answer:
        answer = http.request("GET", f"/stats?{query}")
        assert answer.status == 200 and answer.headers["x-nsq-content-type"] == NSQ
        return answer

    body = get("format=json").body
    start = b'{"version":"1.3.0","health":"OK","start_time":1700000000,"topics":[],"memory":{"heap_'
    assert body.startswith(start) and body.endswith(b'},"producers":null}')
    assert b'"topics":null' in get("format=json&topic=unknown").body

    http.request("POST", "/topic/create?topic=st")
    http.request("POST", "/channel/create?topic=st&channel=ch")
    assert b'"topics":[]' in get("format=json&topic=st&channel=nope").body
    for value, clients in (("0", None), ("1", []), ("FALSE", []), ("false", None)):
        stats = json.loads(get(f"format=json&include_clients={value}").body)
        (channel,) = stats["topics"][0]["channels"]
        assert channel["clients"] == clients and channel["client_count"] == 0
    assert b'"memory"' not in get("format=json&include_mem=false").body
    assert b'"memory"' in get("format=json&include_mem=no").body

    for count in ("", "-1", "ten", "1000000", "%D9%A1"):
        answer = http.request("GET", f"/stats?format=json&busiest={count}")
        allowed = "INVALID_BUSIEST (allowed: a number of topics, up to 999999)"
        assert (answer.status, answer.message) == (400, allowed)

    for names in ("a," * 1000, "a" * 65001):
        answer = http.request("GET", f"/stats?format=json&topics={names}")
        assert (answer.status, answer.message) == (
            400,
            "INVALID_TOPICS (allowed: up to 1000 names)",
        )

    for query in ("format=JSON", "format=text", ""):
        answer = get(query)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.body.startswith(b"nsqd v1.3.0 (built w/nsqcy-")
    assert http.request("GET", "/stats?a;b").message == "INVALID_REQUEST"

    assert "content-length" in get("format=json").headers
    for n in range(30):
        http.request("POST", f"/topic/create?topic=t{n}")
    answer = get("format=json")
    assert len(answer.body) > 2048 and answer.headers["transfer-encoding"] == "chunked"

    http.send(b"GET /stats?format=json HTTP/1.0\r\n\r\n")
    old = http.answer()
    assert old.headers.keys() == {"content-type", "x-nsq-content-type", "date"}
    assert json.loads(old.body)["topics"] == json.loads(answer.body)["topics"]


def test_health(fresh: Server) -> None:
    http = fresh.connect()
    http.request("POST", "/topic/create?topic=sick")
    answer = http.request("GET", "/ping")
    assert (answer.status, answer.body) == (500, b"NOK - open x.dat: no such file or directory")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in answer.headers


def test_ready_and_live(fresh: Server) -> None:
    http = fresh.connect()
    assert [http.request("GET", path).body for path in ("/ready", "/live")] == [b"OK", b"OK"]
    http.request("POST", "/topic/create?topic=sick")
    http.request("POST", "/topic/create?topic=dead")
    for path, body in (("/ready", b"one\ntwo"), ("/live", b"it is dead")):
        answer = http.request("GET", path)
        assert (answer.status, answer.body) == (503, body)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("topic", "status", "code"),
    [
        ("unwritten", 503, "NOT_WRITTEN"),
        ("unwritten-there", 503, "NOT_WRITTEN"),
        ("gone", 503, "UNREACHABLE"),
        ("gone-there", 503, "UNREACHABLE"),
        ("silent", 503, "UNREACHABLE"),
        ("short", 503, "TOO_MANY_OPEN_FILES"),
        ("short-there", 503, "TOO_MANY_OPEN_FILES"),
        ("wrong", 500, "INTERNAL_ERROR"),
    ],
)
def test_what_keeps_a_backend_from_it(http: Connection, topic: str, status: int, code: str) -> None:
    answer = http.request("POST", f"/topic/pause?topic={topic}")
    assert (answer.status, answer.message) == (status, code)


def test_a_handler_that_fails_is_logged_and_answered(fresh: Server) -> None:
    http = fresh.connect()
    http.request("POST", "/topic/create?topic=panic")
    assert http.request("GET", "/ping").message == "INTERNAL_ERROR"
    fresh.wait_for_log(lambda line: line.startswith("ERROR: panic in HTTP handler - "))
    fresh.wait_for_log(lambda line: "RuntimeError: nobody answers" in line)
    fresh.wait_for_log(lambda line: line.startswith("INFO: 500 GET /ping ("))


def test_a_list_of_topics_is_not_logged(fresh: Server) -> None:
    http = fresh.connect()
    http.request("GET", "/stats?format=json&topics=a,b,c")
    http.request("GET", "/stats?format=json&busiest=5&names=true")
    fresh.wait_for_log(lambda line: "200 GET /stats?format=json&busiest=5&names=true" in line)
    assert not any("topics=a,b,c" in line for line in fresh.log)


def test_request_log(fresh: Server) -> None:
    http = fresh.connect()
    for method, target in [
        ("POST", "/pub?topic=a"),
        ("POST", "/mpub?topic=a"),
        ("GET", "/PING"),
        ("OPTIONS", "/pub"),
        ("OPTIONS", "*"),
        ("POST", "/pub"),
        ("HEAD", "/ping"),
        ("GET", "/x?%"),
        ("GET", "/ping?last"),
    ]:
        http.request(method, target, b"x" if method == "POST" else b"")
    host, port = http.sock.getsockname()
    line = fresh.wait_for_log(lambda line: "last" in line)
    assert re.fullmatch(
        rf"INFO: 200 GET /ping\?last \({host}:{port}\) \d+(\.\d+)?(µs|ms|s)\n", line
    )
    shown = [" ".join(line.split()[1:4]) for line in fresh.log]
    assert shown == ["405 HEAD /ping", "404 GET /x?%", "200 GET /ping?last"]


# Connections


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    http = server.connect()
    targets = ["/ping", "/pub?topic=p", "/nope", "/stats?format=json", "/pub?topic=", "/info"] * 40
    http.send(b"".join(request("POST" if "pub" in t else "GET", t, b"x") for t in targets))
    statuses = [http.answer().status for _ in targets]
    assert statuses == [200, 200, 404, 200, 400, 200] * 40


def test_more_pipelined_publishes_than_a_turn_handles(server: Server) -> None:
    http = server.connect().send(request("POST", "/pub?topic=many", b"x") * 500)
    assert {http.answer().body for _ in range(500)} == {b"OK"}
    assert http.request("GET", "/ping").body == b"OK"


def test_answers_that_come_while_others_are_unsent() -> None:
    server = Server("--send-buffer=4096")
    http = Connection(server.address, receive_buffer=2048)
    targets = (["/nope"] * 20 + ["/ping"]) * 100
    http.send(b"".join(request("GET", target) for target in targets))
    bodies = {"/nope": b'{"message":"NOT_FOUND"}', "/ping": b"OK"}
    assert [http.answer().body for _ in targets] == [bodies[target] for target in targets]
    server.stop()


def test_a_publish_that_fails_after_it_was_answered(http: Connection) -> None:
    assert http.request("POST", "/pub?topic=late-boom", b"x").body == b"OK"
    assert http.request("GET", "/ping").body == b"OK"


def test_a_publish_nobody_knows_of_ends_the_connection(server: Server) -> None:
    """The connection ends after the earlier answers; later requests are not even parsed."""
    unknown = [request("POST", f"/{way}?topic=unknown", b"x") for way in ("pub", "mpub")]
    for publish in unknown:
        http = server.connect()
        http.send(request("GET", "/ping") + publish + request("POST", "/pub?topic=behind", b"x"))
        assert http.answer().body == b"OK"
        assert http.rest() == b""
    assert server.connect().send(unknown[0]).rest() == b""
    assert "behind" not in server.topics()


def test_a_request_in_single_bytes(server: Server) -> None:
    http = server.connect()
    http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request("POST", "/pub?topic=bytes", b"hello", **CHUNKED):
        http.send(bytes([byte]))
    assert http.answer().body == b"OK"
    assert server.topics()["bytes"]["bodies"] == ["hello"]


def test_answers_before_a_malformed_request_arrive(server: Server) -> None:
    http = server.connect().send(request("GET", "/ping") + b"garbage\r\n\r\n" + b"x" * 100_000)
    assert http.answer().body == b"OK"
    rest = http.rest()
    assert rest.startswith(b"HTTP/1.1 400 Bad Request\r\n") and rest.endswith(b"400 Bad Request")


@pytest.mark.case("H13")
def test_a_tcp_client_on_the_http_port_sees_http_at_once(server: Server) -> None:
    assert server.connect().send(b"  V2").rest().startswith(b"HTTP")
    assert server.connect().send(b"  V2IDENTIFY\n\0\0\0\2{}").rest().startswith(b"HTTP")


def test_unread_bodies(server: Server) -> None:
    http = server.connect()
    assert http.request("POST", "/pub?topic=t", b"x" * 2000).message == "MSG_TOO_BIG"
    assert http.request("GET", "/ping", b"x" * 2000).body == b"OK"
    http.send(request("POST", "/pub?topic=t", b"x" * 900_000))
    answer = http.answer()
    assert answer.message == "MSG_TOO_BIG" and answer.headers["connection"] == "close"
    assert http.rest() == b""


def test_http_1_0(server: Server) -> None:
    http = server.connect()
    keep = b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert http.send(keep).answer().headers["connection"] == "keep-alive"
    assert http.send(keep[:-28] + b"\r\n\r\n").rest().startswith(b"HTTP/1.0 200 OK\r\n")


def test_a_client_that_reads_slowly_gets_everything() -> None:
    server = Server("--send-buffer=4096")
    http = server.connect()
    for n in range(300):
        http.request("POST", f"/topic/create?topic=topic{n}")
    count = 60
    http.send(request("GET", "/stats?format=json&include_mem=0") * count)
    http.send(request("POST", "/pub?topic=after", b"x"))
    first = http.answer().body
    assert len(first) > 50_000
    assert all(http.answer().body == first for _ in range(count - 1))
    assert http.answer().body == b"OK"
    # Other clients are served while one client does not read.
    http.send(request("GET", "/stats") * count)
    assert server.connect().request("GET", "/ping").body == b"OK"
    http.sock.close()
    assert server.connect().request("GET", "/ping").body == b"OK"
    server.stop()


@pytest.mark.parametrize(
    "timeouts, sent",
    [
        ((0.1, 60, 60, 60), b""),
        ((60, 0.1, 60, 60), b"GET / HT"),
        ((60, 60, 0.1, 60), request("POST", "/pub?topic=t", b"xx")[:-1]),
    ],
    ids=["idle", "head", "body"],
)
def test_deadlines(timeouts: tuple[float, ...], sent: bytes) -> None:
    server = Server("--timeouts", *map(str, timeouts), "0.05")
    assert server.connect().send(sent).rest() == b""
    server.stop()


@pytest.mark.slow
def test_a_head_that_comes_drop_by_drop_is_late() -> None:
    server = Server("--timeouts", "60", "0.2", "60", "60", "0.05")
    http = server.connect().send(b"GET / HTTP/1.1\r\nA: ")
    readable = selectors.DefaultSelector()
    readable.register(http.sock, selectors.EVENT_READ)
    while not readable.select(0.02):
        http.send(b"a")
    with pytest.raises((EOFError, ConnectionResetError)):
        http._more()
    readable.close()
    server.stop()


def test_a_peer_that_does_not_close_is_closed() -> None:
    server = Server("--timeouts", "60", "60", "60", "0.1", "0.05")
    http = server.connect().send(b"garbage\r\n\r\n")
    assert http.rest() == (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Connection: close\r\n\r\n400 Bad Request"
    )
    with pytest.raises(OSError):
        while True:
            http.send(b"x")
    server.stop()


@pytest.mark.slow
def test_a_peer_that_takes_no_answer_is_closed() -> None:
    server = Server("--timeouts", "60", "60", "0.2", "60", "0.05", "--send-buffer=4096")
    http = server.connect()
    for n in range(200):
        http.request("POST", f"/topic/create?topic=topic{n}")
    http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    count = 100
    http.send(request("GET", "/stats?format=json") * count)
    watcher = server.connect()
    # The server closes on its own: its end of the connection disappears.
    process = psutil.Process(server.process.pid)
    port = http.sock.getsockname()[1]

    def is_open() -> bool:
        return any(c.raddr and c.raddr.port == port for c in process.net_connections("tcp"))

    while is_open():
        assert watcher.request("GET", "/ping").status == 200
    server.stop()


@pytest.mark.slow
def test_unfinished_bodies_are_bounded_together(fresh: Server) -> None:
    """The limit of the test server is 1 MiB in total, and half of that per address. A complete
    request is never refused."""
    held = [fresh.connect() for _ in range(250)]
    for http in held:
        http.send(request("POST", "/mpub?topic=t", b"x\n" * 2499)[:-1])
    assert fresh.connect().request("POST", "/pub?topic=t", b"x" * 1000).body == b"OK"
    fitting = (1 << 19) // 4997
    with selectors.DefaultSelector() as selector:
        for http in held:
            selector.register(http.sock, selectors.EVENT_READ, http)
        refused: dict[Connection, Answer] = {}
        while len(refused) < len(held) - fitting:
            for key, _ in selector.select(30):
                refused[key.data] = key.data.answer()
                selector.unregister(key.fileobj)
    assert {a.message for a in refused.values()} == {"INPUT_BUDGET_EXCEEDED"}
    assert {a.headers["connection"] for a in refused.values()} == {"close"}
    others = [http for http in held if http not in refused]
    for http in others:
        http.send(b"x")
    assert {http.answer().body for http in others} == {b"OK"}


@pytest.mark.slow
def test_memory_of_reset_connections_is_released(fresh: Server) -> None:
    for _ in range(3):
        connections = [fresh.connect() for _ in range(100)]
        for http in connections:
            http.send(request("POST", "/mpub?topic=t", b"x\n" * 2500)[:-1])
        assert fresh.connect().request("GET", "/ping").body == b"OK"
        for http in connections:
            # Close with a reset instead of an orderly end.
            http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            http.sock.close()
        assert fresh.connect().request("GET", "/ping").body == b"OK"
    http = fresh.connect().send(request("POST", "/mpub?topic=t", b"x\n" * 2500)[:-1])
    assert fresh.connect().request("GET", "/ping").body == b"OK"
    assert http.send(b"\n").answer().body == b"OK"


# Introspection


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["203.0.113.7:1234", "[2001:db8::1]:1234", "12.7.0.1:1270"])
def test_other_machines_may_not_look_into_it(start: Callable[..., Server], peer: str) -> None:
    server = start("--peer", peer)
    http = server.connect()
    for method, target in (
        ("GET", "/debug/pprof/"),
        ("GET", "/debug/pprof/goroutine"),
        ("POST", "/debug/pprof/symbol"),
        ("PUT", "/debug/setblockrate?rate=1"),
        ("POST", "/debug/freememory"),
    ):
        answer = http.request(method, target)
        assert (answer.status, answer.message) == (403, "LOCAL_ONLY"), target
    server.wait_for_log(lambda line: f"403 POST /debug/freememory ({peer})" in line)
    assert http.request("GET", "/ping").status == 200
    assert http.request("PUT", "/debug/pprof/").status == 405
    assert http.request("GET", "/debug/pprof").status == 301


@pytest.mark.slow
def test_other_machines_may_if_an_option_says_so(start: Callable[..., Server]) -> None:
    http = start("--peer", "203.0.113.7:1234", "--debug-remote").connect()
    assert http.request("GET", "/debug/pprof/").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1"])
def test_this_machine_may(start: Callable[..., Server], peer: str) -> None:
    http = start("--peer", peer).connect()
    assert b"Greenlet" in http.request("GET", "/debug/pprof/goroutine").body


@pytest.mark.slow
def test_whoever_reaches_a_unix_socket_may() -> None:
    with tempfile.TemporaryDirectory() as home:
        server = Server(f"--unix={home}/socket", "--peer=@")
        http = server.connect()
        assert http.request("GET", "/debug/pprof/symbol").body == b"num_symbols: 1\n"
        server.stop()


@pytest.mark.slow
def test_without_a_profiler_it_says_what_to_install(start: Callable[..., Server]) -> None:
    http = start("--profiler", "no-such-program").connect()
    answer = http.request("GET", "/debug/pprof/profile?seconds=1")
    reason = b'no profiler is installed: pip install "nsqcy[debug]"'
    assert (answer.status, answer.body) == (501, reason)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.slow
def test_a_profiler_that_fails_says_why(start: Callable[..., Server]) -> None:
    http = start("--profiler", "ls").connect()
    answer = http.request("GET", "/debug/pprof/profile?seconds=1")
    assert answer.status == 500
    assert b"invalid argument" in answer.body, answer
