"""HTTP framing, without sockets: golden requests split at any position, and input that must be
refused."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcy.http.parser import (
    JSON,
    MAX_DRAIN,
    MAX_HEAD,
    PLAIN,
    Body,
    End,
    Fault,
    Head,
    HeadCache,
    HttpProtocol,
    Malformed,
    Reply,
    parse_query,
)
from support.runs import runs

DATE = b"Fri, 20 Nov 2026 11:18:30 GMT"
OK = Reply(200, b"OK", PLAIN)


class Driver:
    """Reads the body of every request up to `limit`, answers OK, and keeps a transcript."""

    def __init__(self, limit: int | None = 100_000) -> None:
        self.protocol = HttpProtocol(HeadCache())
        self.limit = limit
        self.seen: list[tuple[object, ...]] = []
        self.output = b""

    def feed(self, pieces: Iterable[bytes], eof: bool = False) -> "Driver":
        for piece in pieces:
            self.protocol.feed(piece)
            self.run()
        if eof:
            self.protocol.feed_eof()
            self.run()
        return self

    def run(self) -> None:
        while not self.protocol.closing and (event := self.protocol.next_event()) is not None:
            if isinstance(event, Head):
                self.seen.append((event.method, event.target))
                if self.limit is None:
                    self.answer()
                else:
                    self.protocol.read_body(self.limit)
            elif isinstance(event, Body):
                self.seen.append((event.data, event.fault))
                self.answer()
            elif isinstance(event, Malformed):
                self.seen.append((event.status,))
                self.output += event.render()
                self.protocol.closing = True
            else:
                assert isinstance(event, End)
                self.seen.append(("end",))
                self.protocol.closing = True

    def answer(self) -> None:
        self.output += b"".join(self.protocol.answer(OK, DATE))


def request(head: str, body: bytes = b"") -> bytes:
    return head.replace("\n", "\r\n").encode("latin-1") + body


HOST = "Host: x\n"
NONE = Fault.NONE
CHUNKED = f"POST /c HTTP/1.1\n{HOST}Transfer-Encoding: chunked\n\n"
GOLDEN = {
    "get": (request(f"GET /ping?a=b HTTP/1.1\n{HOST}\n"), [("GET", "/ping?a=b"), (b"", NONE)]),
    "http/1.0": (request("GET /ping HTTP/1.0\n\n"), [("GET", "/ping"), (b"", NONE)]),
    "length": (
        request(f"POST /pub HTTP/1.1\n{HOST}content-LENGTH: 11\n\n", b"hello\r\n\r\n:)"),
        [("POST", "/pub"), (b"hello\r\n\r\n:)", NONE)],
    ),
    "pipelined": (
        request(f"POST /1 HTTP/1.1\n{HOST}Content-Length: 3\n\n", b"GET")
        + request(f"GET /2 HTTP/1.1\n{HOST}\n")
        + request(CHUNKED, b"2\r\nab\r\n0\r\n\r\n")
        + b"\r\n"
        + request(f"PUT /4 HTTP/1.1\n{HOST}\n"),
        [
            *[("POST", "/1"), (b"GET", NONE), ("GET", "/2"), (b"", NONE)],
            *[("POST", "/c"), (b"ab", NONE), ("PUT", "/4"), (b"", NONE)],
        ],
    ),
    "chunks": (
        request(
            CHUNKED, b"3\r\na\r\n\r\nA ;ext=1\r\n0123456789\r\n000\r\nTrailer: x\r\nB:\r\n\r\n"
        ),
        [("POST", "/c"), (b"a\r\n0123456789", NONE)],
    ),
    "unknown method": (
        request(f"get /ping HTTP/1.1\n{HOST}\n"),
        [("get", "/ping"), (b"", NONE)],
    ),
    "upgrade is ignored": (
        request(
            f"GET /ping HTTP/1.1\n{HOST}Connection: Upgrade\nUpgrade: h2c\n\n"
            f"GET /2 HTTP/1.1\n{HOST}\n"
        ),
        [("GET", "/ping"), (b"", NONE), ("GET", "/2"), (b"", NONE)],
    ),
    "CONNECT is a method like others": (
        request(f"CONNECT /ping HTTP/1.1\n{HOST}\n"),
        [("CONNECT", "/ping"), (b"", NONE)],
    ),
    "long head": (
        request(f"GET /{'p' * 20_000} HTTP/1.1\n{HOST}A: {'a' * 30_000}\nB: {'b' * 9000}\n\n"),
        [("GET", "/" + "p" * 20_000), (b"", NONE)],
    ),
}


def cuttings(data: bytes) -> Iterable[list[bytes]]:
    yield [data]
    if len(data) < 2000:
        yield [data[i : i + 1] for i in range(len(data))]
    rng = random.Random(len(data))
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(data)), min(len(data), rng.randint(1, 8))))
        yield [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_requests_in_every_cutting(name: str) -> None:
    data, expected = GOLDEN[name]
    for pieces in cuttings(data):
        driver = Driver().feed(pieces)
        assert driver.seen == expected, pieces
        assert driver.protocol.closing is (name == "http/1.0")
        assert driver.protocol.held == 0 and driver.protocol.idle


BAD = b"400 Bad Request"
MALFORMED = {
    "tcp magic": (b"  V2IDENTIFY\n", BAD),
    "tcp magic alone": (b"  V2", BAD),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", BAD),
    "long token": (b"x" * 100, BAD),
    "no version": (b"GET /\r\n\r\n", BAD),
    "version": (b"GET / HTTP/1.9\r\nHost: x\r\n\r\n", BAD),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\n", b"505 HTTP Version Not Supported"),
    "no host": (
        b"GET / HTTP/1.1\r\nA: b\r\n\r\n",
        b"400 Bad Request: missing required Host header",
    ),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", BAD),
    "bad escape in path": (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", BAD),
    "relative target": (b"GET ping HTTP/1.1\r\nHost: x\r\n\r\n", BAD),
    "blank in target": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", BAD),
    "bare LF": (b"GET / HTTP/1.1\nHost: x\n\n", BAD),
    "bare LF after a header": (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", BAD),
    "bare CR": (b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n", BAD),
    "folded header": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", BAD),
    "NUL": (b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", BAD),
    "blank before colon": (b"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", BAD),
    "two lengths": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        BAD,
    ),
    "length list": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\na", BAD),
    "signed length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na", BAD),
    "negative length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\na", BAD),
    "huge length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n", BAD),
    "length and chunked": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n"
        b"\r\n0\r\n\r\n",
        BAD,
    ),
    "chunked and length": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n"
        b"\r\n0\r\n\r\n",
        BAD,
    ),
    "chunked not last": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        BAD,
    ),
    "chunked twice": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
        None,
    ),
    "coding": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"501 Not Implemented",
    ),
    "codings": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"501 Not Implemented",
    ),
    "chunked over HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", BAD),
    "expectation": (
        b"POST / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n",
        b"417 Expectation Failed",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_heads_are_refused_and_end_the_connection(name: str) -> None:
    data, status = MALFORMED[name]
    for pieces in cuttings(data):
        driver = Driver().feed([*pieces, b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"])
        if status is None:
            assert driver.seen[0][0] in (BAD, b"501 Not Implemented")
            continue
        assert driver.seen == [(status,)], pieces
        assert driver.protocol.closing
        assert driver.output.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert driver.output.endswith(b"Connection: close\r\n\r\n" + status)


BAD_CHUNKS = {
    "not hexadecimal": b"g\r\n",
    "no size": b"\r\n",
    "prefixed": b"0x1\r\na\r\n0\r\n\r\n",
    "signed": b"+1\r\na\r\n0\r\n\r\n",
    "underscore": b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
    "too long": b"1234567890123456\r\n",
    "more data than announced": b"1\r\nab\r\n0\r\n\r\n",
    "no CRLF after data": b"1\r\na--0\r\n\r\n",
    "bare LF in the line": b"1;\na\r\n\r\n0\r\n\r\n",
    "bare CR in the line": b"1;\ra\r\na\r\n0\r\n\r\n",
    "endless line": b"1;" + b"x" * 5000,
    "bad trailer": b"0\r\nno colon\r\n\r\n",
    "bare LF in a trailer": b"0\r\na: b\nc: d\r\n\r\n",
    "endless trailers": b"0\r\n" + b"a: b\r\n" * 100 + b"\r\n",
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
def test_bad_chunks_end_the_body_and_the_connection(name: str) -> None:
    data = request(CHUNKED, BAD_CHUNKS[name])
    for pieces in cuttings(data):
        driver = Driver().feed([*pieces, b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"])
        (head, (_, fault)) = driver.seen
        assert (head, fault) == (("POST", "/c"), Fault.CUT), pieces
        assert driver.protocol.closing and b"Connection: close" in driver.output


def test_a_head_may_have_a_mebibyte_and_no_more() -> None:
    start = f"GET / HTTP/1.1\r\n{HOST.strip()}\r\nA: ".encode()

    def head(size: int) -> bytes:
        return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"

    for step in (70_000, 2 << 20):
        data = head(MAX_HEAD)
        driver = Driver().feed(data[i : i + step] for i in range(0, len(data), step))
        assert driver.seen == [("GET", "/"), (b"", NONE)]
        data = head(MAX_HEAD + 1)
        driver = Driver().feed(data[i : i + step] for i in range(0, len(data), step))
        assert driver.seen == [(b"431 Request Header Fields Too Large",)]


def test_a_head_that_never_ends_is_cut_off() -> None:
    driver = Driver().feed([b"GET / HTTP/1.1\r\nA: "] + [b"a" * 10_000] * 106)
    assert driver.seen == [(b"431 Request Header Fields Too Large",)]
    assert driver.protocol.held == 0


def test_only_so_many_heads_are_remembered() -> None:
    cache = HeadCache()
    for n in range(3000):
        data = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n
        assert cache.parse(data) is cache.parse(data)
    assert len(cache) < 1000
    data = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 1000)
    assert cache.parse(data) is not cache.parse(data)


@pytest.mark.parametrize("text", ["a\r\nX: y", "a\n", "a\r", "a\0", "a\x1b[2J", "\u20ac"])
def test_no_value_writes_another_header(text: str) -> None:
    for broken in ({"headers": [("X", text)]}, {"headers": [(text, "x")]}, {"content_type": text}):
        with pytest.raises(ValueError, match="contains a character that is not allowed"):
            Reply(200, **broken)  # type: ignore[arg-type]
    Reply(200, headers=[("X", "a\tb \xe9")])


def test_small_pieces_of_a_large_head_are_parsed_in_batches() -> None:
    driver = Driver().feed([b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000])
    for _ in range(100):
        driver.feed([b"a"])
    assert 8192 < driver.protocol.held < 8192 + 1024
    assert driver.feed([b"\r\n\r\n"]).seen == [("GET", "/"), (b"", NONE)]


def test_a_body_longer_than_the_limit_is_given_up_at_the_limit() -> None:
    driver = Driver(limit=10).feed([request(CHUNKED, b"b\r\n01234567890\r\n")])
    assert driver.seen == [("POST", "/c"), (b"", Fault.TOO_BIG)]
    assert not driver.protocol.closing
    driver.feed([b"0\r\n\r\n" + request(f"GET /next HTTP/1.1\n{HOST}\n")])
    assert driver.seen[2:] == [("GET", "/next"), (b"", NONE)]


@pytest.mark.parametrize("length, kept", [(2000, True), (MAX_DRAIN, True), (MAX_DRAIN + 1, False)])
def test_an_unread_body_is_skipped_or_ends_the_connection(length: int, kept: bool) -> None:
    driver = Driver(limit=None)
    driver.feed([request(f"POST / HTTP/1.1\n{HOST}Content-Length: {length}\n\n")])
    assert driver.protocol.closing is not kept
    assert (b"Connection: close" in driver.output) is not kept
    driver.feed([b"x" * length, request(f"GET /next HTTP/1.1\n{HOST}\n")])
    assert driver.seen[1:] == ([("GET", "/next")] if kept else [])


def test_an_unread_chunked_body_is_skipped_up_to_the_same_size() -> None:
    driver = Driver(limit=None).feed([request(CHUNKED, b"40\r\n" + b"x" * 64 + b"\r\n0\r\n\r\n")])
    driver.feed([request(f"GET /next HTTP/1.1\n{HOST}\n")])
    assert driver.seen == [("POST", "/c"), ("GET", "/next")]
    driver.feed([request(CHUNKED), b"100000\r\n", b"x" * (MAX_DRAIN + 1)])
    assert driver.seen[2:] == [("POST", "/c"), ("end",)]


def test_extensions_of_chunks_count_as_skipped() -> None:
    driver = Driver(limit=None).feed([request(CHUNKED)])
    driver.feed([b"1;" + b"x" * 4000 + b"\r\na\r\n"] * 70)
    assert driver.seen == [("POST", "/c"), ("end",)]


def test_an_ignored_chunked_body_is_read_up_to_the_same_size() -> None:
    protocol = HttpProtocol(HeadCache())
    protocol.feed(request(CHUNKED, b"100000\r\n" + b"x" * MAX_DRAIN))
    assert isinstance(protocol.next_event(), Head)
    protocol.ignore_body()
    body = protocol.next_event()
    assert isinstance(body, Body) and (body.data, body.fault) == (b"", Fault.TOO_BIG)
    assert b"Connection: close" in b"".join(protocol.answer(OK, DATE))
    assert protocol.closing and protocol.unread


def test_tiny_chunks_are_read_in_slices() -> None:
    """Each call of next_event() reads a limited number of chunks."""
    protocol = HttpProtocol(HeadCache())
    count = 5000
    protocol.feed(request(f"POST / HTTP/1.1\n{HOST}Transfer-Encoding: chunked\n\n"))
    assert isinstance(protocol.next_event(), Head)
    protocol.read_body(count)
    protocol.feed(b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    protocol.feed_eof()
    slices, left = 0, protocol.held
    while (event := protocol.next_event()) is None:
        assert protocol.paused and 0 < left - protocol.held < 6000
        slices, left = slices + 1, protocol.held
    assert isinstance(event, Body) and event.data == b"x" * count
    assert slices == count // 1024 and not protocol.paused


def test_x_nsq_headers_beyond_what_a_message_holds_are_not_collected() -> None:
    head = request(f"POST / HTTP/1.1\n{HOST}" + "X-Nsq-A: b\n" * 20_000 + "\n")
    found = HeadCache().parse(head)
    assert 32 < len(found.nsq_headers) < 1000


UNUSED = {
    "a target": b"GET /" + b"a" * 900_000,
    "a value": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 900_000,
    "an X-Nsq- value": b"GET / HTTP/1.1\r\nHost: x\r\nX-Nsq-A: " + b"a" * 900_000,
    "X-Nsq- headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Nsq-A: a\r\n" * 80_000,
}


@pytest.mark.parametrize("name", UNUSED)
@pytest.mark.parametrize("step", [9000, 65_536])
def test_a_half_sent_head_holds_only_what_is_used(name: str, step: int) -> None:
    data = UNUSED[name]
    driver = Driver().feed(data[at : at + step] for at in range(0, len(data), step))
    assert driver.protocol.held < 80_000
    rest = b" HTTP/1.1\r\nHost: x" if name == "a target" else b""
    assert driver.feed([rest + b"\r\n\r\n"]).seen[0][0] == "GET"


@pytest.mark.parametrize(
    "header",
    [b"Authorization: " + b"a" * 40_000, b"A" * 40_000 + b": b", b"Host: " + b"a" * 40_000],
)
def test_a_used_header_and_a_name_have_limits(header: bytes) -> None:
    data = b"GET / HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n"
    for step in (9000, len(data)):
        protocol = HttpProtocol(HeadCache(frozenset((b"authorization",))))
        event = None
        for at in range(0, len(data), step):
            protocol.feed(data[at : at + step])
            event = event or protocol.next_event()
        assert isinstance(event, Malformed), header[:20]
        assert event.status == b"431 Request Header Fields Too Large"
        assert protocol.held == 0


@pytest.mark.parametrize("bad", [b"\0", b"\x7f", b"\r"])
def test_the_dropped_end_of_a_value_is_checked(bad: bytes) -> None:
    start = b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20_000
    driver = Driver().feed([start, b"a" * 10_000 + bad + b"a" * 10_000, b"\r\n\r\n"])
    assert driver.seen == [(b"400 Bad Request",)]


def test_a_large_head_counts_until_it_is_answered() -> None:
    data = request(f"POST / HTTP/1.1\n{HOST}A: b\nContent-Length: 10\n" + "X-Nsq-A: b\n" * 100)
    protocol = HttpProtocol(HeadCache())
    protocol.feed(data + b"\r\n")
    assert isinstance(protocol.next_event(), Head)
    assert protocol.held > 10_000


def test_100_continue_without_reading_the_body_closes() -> None:
    data = request(f"POST / HTTP/1.1\n{HOST}Expect: 100-Continue\nContent-Length: 5\n\n")
    protocol = HttpProtocol(HeadCache())
    protocol.feed(data)
    head = protocol.next_event()
    assert isinstance(head, Head) and head.expects_continue
    assert b"Connection: close" in b"".join(protocol.answer(OK, DATE))
    assert protocol.closing and protocol.unread

    protocol = HttpProtocol(HeadCache())
    protocol.feed(data.replace(b": 5", b": 0"))
    head = protocol.next_event()
    assert isinstance(head, Head) and not head.expects_continue


def test_end_of_input() -> None:
    assert Driver().feed([], eof=True).seen == [("end",)]
    assert Driver().feed([b"GET / HT"], eof=True).seen == [(BAD,)]
    assert Driver().feed([request(CHUNKED, b"2\r\na")], eof=True).seen[1] == (b"a", Fault.CUT)
    cut = request(f"POST / HTTP/1.1\n{HOST}Content-Length: 5\n\n", b"abc")
    driver = Driver().feed([cut], eof=True)
    assert driver.seen[1] == (b"abc", Fault.CUT)
    assert b"Connection: close" in driver.output
    assert Driver(limit=None).feed([cut], eof=True).seen[1:] == [("end",)]


def test_no_request_is_parsed_before_the_answer_to_the_one_before() -> None:
    protocol = HttpProtocol(HeadCache())
    protocol.feed(request(f"GET /1 HTTP/1.1\n{HOST}\n") + b"garbage\r\n\r\n")
    head = protocol.next_event()
    assert isinstance(head, Head) and head.target == "/1"
    assert protocol.next_event() is None and protocol.keep_alive
    protocol.answer(OK, DATE)
    assert isinstance(protocol.next_event(), Malformed)


@pytest.mark.parametrize(
    "target, path, query",
    [
        ("/a?b=c?d", "/a", "b=c?d"),
        ("/p%69ng", "/ping", ""),
        ("/%2e%2F", "/./", ""),
        ("http://h:1/ping?a=http://x/", "/ping", "a=http://x/"),
        ("http://h?a=b", "/", "a=b"),
        ("*", "*", ""),
        ("/t#ephemeral?x", "/t#ephemeral", "x"),
    ],
)
def test_targets(target: str, path: str, query: str) -> None:
    driver_head = HeadCache().parse(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (driver_head.path, driver_head.query) == (path, query)


@pytest.mark.parametrize(
    "version, connection, keep",
    [
        ("1.1", "", True),
        ("1.1", "Connection: close\n", False),
        ("1.1", "Connection: foo, CLOSE\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: Keep-Alive\n", True),
    ],
)
def test_keep_alive(version: str, connection: str, keep: bool) -> None:
    driver = Driver().feed([request(f"GET / HTTP/{version}\n{HOST}{connection}\n")])
    assert driver.protocol.closing is not keep
    head = driver.output.split(b"\r\n\r\n")[0]
    expected = {
        ("1.1", True): b"Content-Length: 2",
        ("1.1", False): b"Connection: close",
        ("1.0", False): b"Content-Length: 2",
        ("1.0", True): b"Connection: keep-alive",
    }[version, keep]
    assert head.startswith(f"HTTP/{version} 200 OK\r\n".encode()) and head.endswith(expected)


def test_the_bytes_of_an_answer() -> None:
    driver = Driver().feed([request(f"GET / HTTP/1.1\n{HOST}\n")])
    assert driver.output == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"X-Nsq-Content-Type: nsq; version=1.0\r\nDate: " + DATE + b"\r\n"
        b"Content-Length: 2\r\n\r\nOK"
    )


def answer_to(method: str, version: str, size: int) -> tuple[bytes, bytes, bool]:
    protocol = HttpProtocol(HeadCache())
    protocol.feed(
        request(f"{method} / HTTP/{version}\n{HOST}Connection: keep-alive\n\n"),
    )
    assert isinstance(protocol.next_event(), Head)
    output = b"".join(protocol.answer(Reply(200, b"x" * size, JSON), DATE))
    head, _, body = output.partition(b"\r\n\r\n")
    return head, body, protocol.closing


def test_long_answers_are_chunked_or_end_with_the_connection() -> None:
    head, body, closing = answer_to("GET", "1.1", 2048)
    assert b"Content-Length: 2048" in head and len(body) == 2048 and not closing
    head, body, closing = answer_to("GET", "1.1", 2049)
    assert b"Transfer-Encoding: chunked" in head and b"Content-Length" not in head and not closing
    assert body == b"801\r\n" + b"x" * 2049 + b"\r\n0\r\n\r\n"
    head, body, closing = answer_to("GET", "1.0", 2049)
    assert b"Content-Length" not in head and body == b"x" * 2049 and closing
    head, body, closing = answer_to("HEAD", "1.1", 5)
    assert b"Content-Length: 5" in head and body == b"" and not closing


@pytest.mark.parametrize(
    "query, params",
    [
        ("", {}),
        ("a=1&a=2&b", {"a": "1", "b": ""}),
        ("topic=a%23ephemeral&x=a+b%2Bc", {"topic": "a#ephemeral", "x": "a b+c"}),
        ("&&a==&=b", {"a": "=", "": "b"}),
        ("a=%C3%A9%ff", {"a": "é\udcff"}),
        ("a=%zz", None),
        ("a=%4", None),
        ("%=1", None),
        ("a=1;b=2", None),
    ],
)
def test_queries(query: str, params: dict[str, str] | None) -> None:
    assert parse_query(query) == params


@given(st.text(alphabet="ab%=&;+#1f\x00é", max_size=30))
def test_parse_query_never_raises(query: str) -> None:
    params = parse_query(query)
    assert params is None or all(isinstance(value, str) for value in params.values())


def test_a_query_has_at_most_10000_parameters() -> None:
    assert parse_query("&".join(f"p{n}" for n in range(10_000))) is not None
    assert parse_query("&".join(f"p{n}" for n in range(10_001))) is None


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=8), max_size=4))
def test_parse_query_inverts_urlencode(params: dict[str, str]) -> None:
    from urllib.parse import urlencode

    assert parse_query(urlencode(params)) == params


FRAGMENTS = [
    *[
        b"GET ",
        b"POST ",
        b"/pub?topic=t ",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"\r\n",
        b"\r",
        b"\n",
        b"a: b",
    ],
    *[b"Host: x\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"abc", b"3"],
    *[b"0\r\n\r\n", b"\r\n\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"\0"],
    *[f"POST / HTTP/1.1\r\n{HOST.strip()}\r\n".encode(), b"3\r\nabc\r\n"],
]


@settings(max_examples=runs(40))
@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=6), max_size=25), st.data())
def test_any_input_means_the_same_in_any_cutting(
    fragments: list[bytes], data: st.DataObject
) -> None:
    """The events are the same for any split, nothing raises, and after an error a connection holds
    no data."""
    whole = b"".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    eof = data.draw(st.booleans())
    one, many = Driver(limit=50).feed([whole], eof), Driver(limit=50).feed(pieces, eof)
    assert one.output == many.output
    assert one.seen == many.seen
    for driver in (one, many):
        if driver.seen and len(driver.seen[-1]) == 1:
            assert driver.protocol.held == 0
