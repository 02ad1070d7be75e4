"""HTTP/1.1, server side, without I/O: bytes in, events out; replies in, bytes out.

Handles the framing: heads (parsed by httptools), bodies, keep-alive and the end of a connection.
Independent of sockets, clocks and routes.

    feed(bytes) -> next_event() -> Head
                        read_body(limit) or ignore_body(), or neither
                   next_event() -> Body
                        answer(reply, date) -> bytes
                   next_event() -> the next Head, which is not parsed earlier

Strict wherever leniency would allow request smuggling: lines end in CRLF, and a body is framed by
either one Content-Length or `chunked`.
"""

import re
from collections.abc import Iterable
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

MAX_HEAD: Final = (1 << 20) + 4096
"""Maximum bytes of the request line and headers: 1 MiB plus the same slack as in NSQ."""

MAX_DRAIN: Final = 256 << 10
# maximum bytes of a head that another process can read again, if it arrives in pieces
MAX_PACKED_HEAD: Final = 8 << 10
"""Maximum bytes of an unused body to read and drop. A longer body ends the connection."""

CHUNK_ABOVE: Final = 2048
"""Bytes above which a response body is sent chunked, as in NSQ."""

MAX_QUERY: Final = 64 << 10
"""Maximum bytes of a query. Parsing a longer query would delay other connections too long."""

_MAX_PARAMS = 10_000  # as in Go's net/url; queries with more parameters are invalid
_MAX_TARGET = 4096 + 1 + MAX_QUERY + 1  # maximum characters; a longer path or query is invalid
_MAX_KEPT = 32 << 10  # maximum bytes of the headers that are used, and of X-Nsq headers
_HEADER_OVERHEAD = 128  # bytes of memory per kept header
_MAX_NAME = 1024  # maximum bytes of a header's name
# bytes of an unfinished line above which the rest is dropped, unless its header is used
_LONG_LINE = 8192
_CHUNKS = 1024  # maximum chunks of a body read at a time
_MAX_PATH = 4096  # maximum length of a route; a longer path is not unescaped
_MAX_LINE = 4096  # maximum bytes of a chunk size with its extensions, or of a trailer
_MAX_TRAILERS = 64
_BATCH = 8192  # a larger head is parsed in pieces of at least this size
_CACHED_HEAD = 1024  # maximum size of a cached head
_CACHED_HEADS = 512

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_ORIGIN = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/?]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?")
_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*")

BAD_REQUEST = b"400 Bad Request"
NO_HOST = b"400 Bad Request: missing required Host header"
HEAD_TOO_BIG = b"431 Request Header Fields Too Large"
EXPECTATION_FAILED = b"417 Expectation Failed"
BAD_ENCODING = b"501 Not Implemented"
BAD_VERSION = b"505 HTTP Version Not Supported"

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Bytes = bytes | bytearray | memoryview
"""A body, or a part of an answer."""


class Malformed:
    """Event: invalid HTTP. The connection ends with `status`."""

    __slots__ = ("status",)

    def __init__(self, status: bytes) -> None:
        self.status = status

    def render(self) -> bytes:
        return (
            b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\n"
            b"Connection: close\r\n\r\n%b" % (self.status, self.status)
        )


class End:
    """Event: the peer will send no more requests."""

    __slots__ = ()


class Fault(Enum):
    NONE = auto()
    CUT = auto()  # the peer stopped before the end, or the framing is invalid
    TOO_BIG = auto()  # the body exceeds the limit, and `data` is empty


class Body:
    """Event: the body, or b"" if it is not needed."""

    __slots__ = ("data", "fault")

    def __init__(self, data: bytes, fault: Fault = Fault.NONE) -> None:
        self.data = data
        self.fault = fault


class Head:
    """Event: the request line and headers. Immutable, because equal heads share one object.

    nsq_headers: X-Nsq- headers with their values; names are lower case, without the prefix
    headers: headers that the daemon reads; see HeadCache
    size: bytes of memory; 0 if the head is small
    """

    __slots__ = (
        "chunked",
        "expects_continue",
        "headers",
        "keep_alive",
        "length",
        "method",
        "minor",
        "nsq_headers",
        "params",
        "path",
        "query",
        "size",
        "target",
    )

    def __init__(
        self,
        method: str = "GET",
        target: str = "/",
        *,
        minor: int = 1,
        keep_alive: bool = True,
        length: int = 0,
        chunked: bool = False,
        expects_continue: bool = False,
        nsq_headers: tuple[tuple[bytes, bytes], ...] = (),
        headers: tuple[tuple[str, str], ...] = (),
        size: int = 0,
    ) -> None:
        self.method = method
        self.target = target
        self.size = size
        self.minor = minor
        self.keep_alive = keep_alive
        self.length = length
        self.chunked = chunked
        self.expects_continue = expects_continue
        self.nsq_headers = nsq_headers
        self.headers = headers
        path, _, self.query = target.partition("?")
        if path[:1] != "/":
            path = _ORIGIN.sub("", path, count=1)
            if path[:1] != "/" and path not in ("", "*"):
                raise _Refused(BAD_REQUEST)
        if "%" in path:
            if _BAD_ESCAPE.search(path):
                raise _Refused(BAD_REQUEST)
            if len(path) <= _MAX_PATH:
                path = unescape(path)
        self.path = path or "/"
        self.params = parse_query(self.query)

    def header(self, name: str) -> str:
        """Return the first value of a header, ignoring case; empty if the header is missing."""
        name = name.lower()
        return next((value for each, value in self.headers if each.lower() == name), "")

    @property
    def is_plain(self) -> bool:
        """Whether this is a common HTTP/1.1 request with keep-alive.

        The framing of the response does not depend on the head, and another request may follow.
        """
        return (
            self.minor == 1
            and self.keep_alive
            and self.method != "HEAD"
            and not (self.chunked or self.expects_continue)
        )


Event = Head | Body | Malformed | End
_END = End()


class _Refused(Exception):
    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.status = status


class _BadChunk(Exception):
    pass


def unescape(text: str) -> str:
    """Decode percent escapes. Invalid UTF-8 becomes surrogates."""
    if "%" not in text:
        return text
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def parse_query(query: str) -> dict[str, str] | None:
    """Return the first value of each parameter, or None if the query is invalid."""
    params: dict[str, str] = {}
    if not query:
        return params
    if len(query) > MAX_QUERY or ";" in query or ("%" in query and _BAD_ESCAPE.search(query)):
        return None
    if query.count("&") >= _MAX_PARAMS:
        return None
    plain = "%" not in query and "+" not in query
    for pair in query.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            if not plain:
                name = unescape(name.replace("+", " "))
                value = unescape(value.replace("+", " "))
            params.setdefault(name, value)
    return params


HeaderSelection = bool | frozenset[bytes]


class _HeadParser:
    """Parser for one head in any number of pieces.

    Keeps only the parts that are used, so that a head that never ends costs little memory.
    httptools keeps a header until its line ends: the end of a long line is checked here and not
    passed on.

    httptools accepts a fixed list of methods, but HTTP allows any: this class removes the method,
    and httptools always sees POST.
    """

    def __init__(self, keep_headers: HeaderSelection) -> None:
        self.complete = False
        self._keep_all = keep_headers is True
        self._wanted = set(keep_headers) if isinstance(keep_headers, frozenset) else set()
        self._kept: list[tuple[str, str]] = []
        self._parser: HttpRequestParser | None = None
        self._start = b""  # input until the method is complete
        self._method = ""
        self._target: list[bytes] = []  # pieces
        self._target_size = 0
        self._headers: dict[bytes, bytes] = {}
        self._nsq_headers: list[tuple[bytes, bytes]] = []
        self._hosts = 0
        self._keep_alive = False
        self._size = 0  # bytes of the headers that are used, in memory
        self._nsq_size = 0
        self._is_too_big = False
        self._in_headers = False
        self._line = b""  # start of the unfinished line
        self._passed = 0  # bytes of the unfinished line that httptools has received
        self._dropping = False  # whether the rest of the line is not passed on

    @property
    def held(self) -> int:
        """Bytes of memory."""
        return self._target_size + self._size + self._nsq_size + self._passed

    def feed(self, data: bytes) -> None:
        if self._parser is None:
            data = self._take_method(self._start + data)
        if self._parser is None:
            return
        if self._dropping:
            data = data[_end_of_value(data, 0) :]
            if not data:
                return
            self._dropping = False
        begin = data.rfind(b"\n") + 1
        if begin:
            self._in_headers = True
            self._line = b""
            self._passed = 0
        if self._in_headers:
            if self._passed + len(data) - begin > _LONG_LINE:
                data = self._without_end(data, begin)
            if len(self._line) < _MAX_NAME:
                self._line += data[begin : begin + _MAX_NAME]
            self._passed += len(data) - begin
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            pass  # the server offers no upgrade, so this is a normal request
        except HttpParserError:
            # head() rejects a transfer coding that does not end in `chunked`.
            if not self.complete:
                raise _Refused(BAD_REQUEST) from None
        if self._is_too_big:
            raise _Refused(HEAD_TOO_BIG)

    def _without_end(self, data: bytes, begin: int) -> bytes:
        """Remove the end of a long unfinished line, which begins in `data` or earlier, unless its
        header is used."""
        name, colon, _ = (self._line + data[begin : begin + _MAX_NAME]).partition(b":")
        if not colon:
            raise _Refused(HEAD_TOO_BIG)
        if self._is_used(name.lower()):
            if self._size + self._passed + len(data) - begin > _MAX_KEPT:
                raise _Refused(HEAD_TOO_BIG)
            return data
        cut = begin + max(0, _LONG_LINE - self._passed)
        end = _end_of_value(data, cut)
        self._dropping = end == len(data)
        return data[:cut] + data[end:]

    def _is_used(self, name: bytes) -> bool:
        return self._keep_all or name in self._wanted or name in _OUR_HEADERS

    def _take_method(self, data: bytes) -> bytes:
        token = _TOKEN.match(data)
        end = token.end() if token else 0
        if data[end : end + 1] == b" " and end:
            self._method = data[:end].decode()
            self._parser = HttpRequestParser(self)
            return b"POST" + data[end:]
        if end < len(data):
            raise _Refused(BAD_REQUEST)
        self._start = data
        return b""

    def drop(self) -> None:
        """Release httptools' parser.

        The two parsers form a reference cycle: large heads would stay in memory until the next
        garbage collection.
        """
        self._parser = None

    def on_url(self, url: bytes) -> None:
        if self._target_size < _MAX_TARGET:
            self._target.append(url[: _MAX_TARGET - self._target_size])
            self._target_size += len(self._target[-1])

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if self._is_used(lower):
            self._size += len(name) + len(value) + _HEADER_OVERHEAD
        if len(name) > _MAX_NAME or self._size > _MAX_KEPT:
            self._is_too_big = True
            return
        if self._keep_all or lower in self._wanted:
            self._wanted.discard(lower)
            self._kept.append((name.decode("latin-1"), value.rstrip(b" \t").decode("latin-1")))
        name = lower
        if name in _OUR_HEADERS:
            if name == b"host":
                self._hosts += 1
            self._headers[name] = value.rstrip(b" \t")
        elif name.startswith(_NSQ) and self._nsq_size <= _MAX_KEPT:
            # A message has space for fewer headers, so later ones are not collected.
            self._nsq_size += len(name) + len(value) + _HEADER_OVERHEAD
            self._nsq_headers.append((name[len(_NSQ) :], value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.complete = True
        self._keep_alive = self._parser.should_keep_alive()  # available only during this callback

    def head(self) -> Head:
        assert self._parser is not None
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise _Refused(BAD_VERSION if version == "2.0" else BAD_REQUEST)
        minor = int(version[2])
        if self._hosts != 1 and (minor or self._hosts):
            raise _Refused(BAD_REQUEST if self._hosts else NO_HOST)
        headers = self._headers
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or not minor):
            raise _Refused(BAD_ENCODING if minor else BAD_REQUEST)
        expect = headers.get(b"expect", b"").lower()
        if expect not in (b"", b"100-continue"):
            raise _Refused(EXPECTATION_FAILED)
        length = int(headers.get(b"content-length", 0))
        return Head(
            self._method,
            b"".join(self._target).decode("latin-1"),
            minor=minor,
            keep_alive=self._keep_alive,
            length=length,
            chunked=coding is not None,
            expects_continue=bool(expect and minor and (length or coding)),
            nsq_headers=tuple(self._nsq_headers),
            headers=tuple(self._kept),
            size=self.held if self.held > _CACHED_HEAD else 0,
        )


def _end_of_value(data: bytes, begin: int) -> int:
    """Return the end, within this piece, of the header value that contains `begin`."""
    found = _VALUE.match(data, begin)
    assert found is not None  # the value may be empty
    return found.end()


_NSQ = b"x-nsq-"
_OUR_HEADERS = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect"))


class HeadCache:
    """Cache of parsed heads.

    A client sends the same head with every publish, and a lookup takes a tenth of the time of
    parsing.

    keep_headers: headers to keep in addition to those for framing and /pub: all, none, or
        the first one with each of these names, in lower case
    """

    def __init__(self, keep_headers: HeaderSelection = False) -> None:
        self.keep_headers = keep_headers
        self._heads: dict[bytes, Head] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def parse(self, data: bytes) -> Head:
        head = self._heads.get(data)
        if head is None:
            parser = _HeadParser(self.keep_headers)
            try:
                parser.feed(data)
                if not parser.complete:
                    raise _Refused(BAD_REQUEST)
                head = parser.head()
            finally:
                parser.drop()
            if len(data) <= _CACHED_HEAD:
                if len(self._heads) >= _CACHED_HEADS:
                    self._heads.clear()
                self._heads[data] = head
        return head

    def accepted(self, data: bytes) -> Head | None:
        """Return the head, or None if it is invalid."""
        try:
            return self.parse(data)
        except _Refused:
            return None


class _State(Enum):
    HEAD = auto()
    ASKED = auto()  # a head was returned; the caller may now choose what to do with the body
    KEEP = auto()  # the body is being read
    IGNORE = auto()  # the body is being read, and dropped
    READ = auto()  # the body has been returned; waiting for the answer
    DRAIN = auto()  # answered; the rest of the body is being skipped
    BROKEN = auto()  # further input is ignored


_HEAD = _State.HEAD
_ASKED = _State.ASKED
_KEEP = _State.KEEP
_IGNORE = _State.IGNORE
_READ = _State.READ
_DRAIN = _State.DRAIN
_BROKEN = _State.BROKEN


class HttpProtocol:
    """The requests of one connection, one after the other. An idle connection has no buffer."""

    __slots__ = (
        "_body",
        "_buffer",
        "_cache",
        "_chunked",
        "_eof",
        "_head",
        "_in_chunk",
        "_left",
        "_limit",
        "_more",
        "_parser",
        "_paused",
        "_raw",
        "_size",
        "_skipped",
        "_state",
        "_tail",
        "_trailers",
        "closing",
        "is_last",
    )

    def __init__(self, cache: HeadCache) -> None:
        self._cache = cache
        self._state = _HEAD
        self._buffer = b""
        self._eof = False
        self._parser: _HeadParser | None = None  # parser for a head that arrives in pieces
        self._tail = b""  # last three bytes that the parser received
        self._size = 0  # number of bytes that the parser received
        # The head of an unfinished request as it was received, for `pack`; None: it is too long.
        self._raw: bytes | None = b""
        self._head: Head | None = None
        self.closing = False  # no further requests will be answered
        self.is_last = False  # the answer to the current request ends the connection
        self._chunked = False
        self._more = False  # the body has not ended yet
        self._left = 0  # bytes of the body or the chunk still to receive
        self._in_chunk = False
        self._trailers = 0  # number of lines after the last chunk
        self._body: bytes | bytearray = b""
        self._limit = 0
        self._skipped = 0
        self._paused = False

    # State, for the connection

    @property
    def idle(self) -> bool:
        """Whether the connection is between two requests."""
        return self._state is _HEAD and self._parser is None and not self._buffer

    @property
    def at_rest(self) -> bool:
        """Whether the connection is idle and another request may follow."""
        return (
            self._state is _HEAD
            and self._parser is None
            and not (self._buffer or self._eof or self.closing)
        )

    @property
    def in_head(self) -> bool:
        """Whether a head has begun but is not complete."""
        return self._state is _HEAD and (self._parser is not None or bool(self._buffer))

    @property
    def has_input(self) -> bool:
        """Whether there is unprocessed input."""
        return bool(self._buffer) or self._eof

    @property
    def paused(self) -> bool:
        """Whether next_event() stopped although the buffered body has more chunks."""
        return self._paused

    @property
    def held(self) -> int:
        """Bytes of buffered input, including a large head until it is answered."""
        begun = self._parser.held if self._parser else self._head.size if self._head else 0
        return len(self._buffer) + len(self._body) + begun + len(self._raw or b"")

    @property
    def keep_alive(self) -> bool:
        """Whether the answer to the current request may leave the connection open."""
        head = self._head
        if head is None or self.is_last or not head.keep_alive or self._state is _BROKEN:
            return False
        if not self._more:
            return True
        # A client that expects 100 Continue but does not receive it may or may not send the body.
        if self._state is _ASKED and head.expects_continue:
            return False
        return (self._skipped if self._chunked else self._left) <= MAX_DRAIN

    @property
    def unread(self) -> bool:
        """Whether closing now may lose responses, because the peer may still be sending."""
        return not self._eof and (self._state is _BROKEN or self._more or bool(self._buffer))

    # Input

    def feed(self, data: bytes) -> None:
        if self._state is not _BROKEN:
            self._buffer = self._buffer + data if self._buffer else data

    def feed_eof(self) -> None:
        self._eof = True

    def next_event(self) -> Event | None:
        """Return the next event, or None if more input or an answer is needed first. If `paused`,
        the next event follows in a later turn."""
        self._paused = False
        state = self._state
        if state is _DRAIN:
            if not self._drained():
                if self._paused:
                    return None
                return self._ended() if self._eof or self._state is _BROKEN else None
            state = self._state = _HEAD
        if state is _HEAD:
            try:
                return self._next_head()
            except _Refused as refused:
                self._break()
                return Malformed(refused.status)
        if state is _KEEP or state is _IGNORE:
            return self._next_body()
        return None

    def read_body(self, limit: int) -> None:
        """Collect the body; abandon it if it exceeds `limit`."""
        self._state = _KEEP
        self._limit = limit

    def ignore_body(self) -> None:
        """Read and drop the body; abandon it if it exceeds MAX_DRAIN."""
        self._state = _IGNORE
        self._limit = MAX_DRAIN

    def give_up(self) -> None:
        """Abandon the unfinished head or body. The connection ends with the answer to the request,
        if there is one."""
        self._break()

    # Heads

    def _next_head(self) -> Event | None:
        buffer = self._buffer
        if self._parser is None:
            if buffer[:1] in (b"\r", b"\n"):  # some clients end a body with an extra CRLF
                buffer = self._buffer = buffer.lstrip(b"\r\n")
            if not buffer:
                return self._ended() if self._eof else None
            end = buffer.find(b"\r\n\r\n") + 4
            if end >= 4:
                if end > MAX_HEAD:
                    raise _Refused(HEAD_TOO_BIG)
                self._buffer = buffer[end:]
                head = buffer[:end]
                return self._begin(self._cache.parse(head), head)
            self._parser = _HeadParser(self._cache.keep_headers)
        return self._continue_head(self._parser)

    def _continue_head(self, parser: _HeadParser) -> Event | None:
        """Parse a head piece by piece, so that invalid HTTP is rejected immediately."""
        buffer, tail = self._buffer, self._tail
        end = (tail + buffer).find(b"\r\n\r\n")
        complete = end >= 0
        piece = buffer[: end + 4 - len(tail)] if complete else buffer
        if self._size + len(piece) > MAX_HEAD:
            raise _Refused(HEAD_TOO_BIG)
        if self._eof and not complete:
            raise _Refused(BAD_REQUEST)
        # The parser joins the pieces of a header, so avoid many small pieces.
        if not complete and self._size > _BATCH and len(piece) < _BATCH:
            return None
        parser.feed(piece)
        self._buffer = buffer[len(piece) :]
        if self._raw is not None:
            fits = len(self._raw) + len(piece) <= MAX_PACKED_HEAD
            self._raw = self._raw + piece if fits else None
        if not complete:
            self._size += len(piece)
            self._tail = (tail + piece)[-3:]
            return None
        if not parser.complete:
            raise _Refused(BAD_REQUEST)
        head = parser.head()
        parser.drop()
        self._parser = None
        self._tail = b""
        self._size = 0
        return self._begin(head, self._raw)

    def _begin(self, head: Head, raw: bytes | None) -> Head:
        self._head = head
        self._state = _ASKED
        self._chunked = head.chunked
        self._left = head.length
        self._more = head.chunked or head.length > 0
        self._raw = raw if self._more else b""
        self._in_chunk = False
        self._trailers = 0
        self._skipped = 0
        return head

    def _ended(self) -> End:
        self._break()
        return _END

    def _break(self) -> None:
        self._state = _BROKEN
        self._buffer = self._body = self._tail = b""
        if self._parser is not None:
            self._parser.drop()
            self._parser = None
        self._raw = b""
        self._more = False

    # Bodies

    def _next_body(self) -> Body | None:
        left = self._left
        if not self._chunked and not self._body and len(self._buffer) >= left <= self._limit:
            # Fast path: the entire body arrived with the head.
            data, self._buffer = self._buffer[:left], self._buffer[left:]
            self._left = 0
            self._more = False
            return self._give(data if self._state is _KEEP else b"", Fault.NONE)
        try:
            self._consume()
        except _BadChunk:
            data = bytes(self._body)
            self._break()
            return Body(data, Fault.CUT)
        if (len(self._body) if self._state is _KEEP else self._skipped) > self._limit:
            return self._give(b"", Fault.TOO_BIG)
        if not self._more:
            return self._give(bytes(self._body), Fault.NONE)
        if self._eof and not self._paused:
            data = bytes(self._body)
            self._break()
            return Body(data, Fault.CUT)
        return None

    def _give(self, data: bytes, fault: Fault) -> Body:
        self._state = _READ
        self._body = self._raw = b""
        return Body(data, fault)

    def _drained(self) -> bool:
        """Skip the available part of an unread body; return whether the entire body has been
        skipped."""
        try:
            self._consume()
        except _BadChunk:
            self._break()
            return False
        if self._more and self._skipped > MAX_DRAIN:
            self._break()
        return not self._more and self._state is _DRAIN

    def _consume(self) -> None:
        """Remove bytes of the body from the buffer; clear `_more` at the end of the body."""
        before = len(self._buffer)
        if self._chunked:
            self._consume_chunks()
        else:
            data = self._buffer[: self._left]
            self._buffer = self._buffer[len(data) :]
            self._left -= len(data)
            self._more = self._left > 0
            self._store(data)
        if self._state is not _KEEP:
            self._skipped += before - len(self._buffer)

    def _consume_chunks(self) -> None:
        buffer = self._buffer
        at = chunks = 0
        while self._more:
            if self._left:
                data = buffer[at : at + self._left]
                if not data:
                    break
                at += len(data)
                self._left -= len(data)
                self._store(data)
            elif self._in_chunk:
                end = buffer[at : at + 2]
                if not b"\r\n".startswith(end):
                    raise _BadChunk
                if len(end) < 2:
                    break
                at += 2
                self._in_chunk = False
            else:
                line_end = buffer.find(b"\r\n", at)
                if (len(buffer) if line_end < 0 else line_end) - at > _MAX_LINE:
                    raise _BadChunk
                if line_end < 0:
                    break
                if chunks == _CHUNKS:
                    self._paused = True
                    break
                chunks += 1
                self._take_line(buffer[at:line_end])
                at = line_end + 2
        self._buffer = buffer[at:]

    def _take_line(self, line: bytes) -> None:
        """Process a line outside the data: a chunk size, a trailer, or the final empty line."""
        if self._trailers:
            if not line:
                self._more = False
            elif self._trailers > _MAX_TRAILERS or not _TRAILER.fullmatch(line):
                raise _BadChunk
            self._trailers += 1
            return
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise _BadChunk
        self._left = int(size[1], 16)
        if self._left:
            self._in_chunk = True
        else:
            self._trailers = 1

    def _store(self, data: bytes) -> None:
        if self._state is _KEEP:
            if not self._body:
                self._body = data
            elif isinstance(self._body, bytes):
                self._body = bytearray(self._body + data)
            else:
                self._body += data

    # The hand-over to another process, between two requests or in an unfinished one

    def pack(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the state as JSON can contain it, and the input that the next process reads again;
        None if the head is too long for this."""
        state: dict[str, Any] = {"eof": self._eof, "closing": self.closing}
        if self.closing:
            return state, b""
        if self._state is _DRAIN and self._more:
            state["drain"] = [
                self._chunked,
                self._left,
                self._in_chunk,
                self._trailers,
                self._skipped,
            ]
            return state, bytes(self._buffer)
        if self._raw is None:
            return None
        return state, self._raw + self._body_so_far() + self._buffer

    def unpack(self, state: dict[str, Any], data: bytes) -> None:
        """Continue where the protocol of another process was, in a new protocol."""
        self._eof = state["eof"]
        self.closing = state["closing"]
        if self.closing:
            self._break()
            return
        if "drain" in state:
            self._state = _DRAIN
            self._more = True
            self._chunked, self._left, self._in_chunk, self._trailers, self._skipped = state[
                "drain"
            ]
        self._buffer = data

    def _body_so_far(self) -> bytes:
        """Return the received part of an unfinished body, in any equivalent form."""
        if self._state is not _KEEP and self._state is not _IGNORE:
            return b""
        body = bytes(self._body) if self._state is _KEEP else bytes(self._skipped)
        if not self._chunked:
            return body
        if self._in_chunk:  # its rest and the line end follow
            return b"%x\r\n%b" % (len(body) + self._left, body)
        found = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return found + b"0\r\n" if self._trailers else found

    # Output

    def answer(self, reply: "Reply", date: bytes) -> tuple[Bytes, ...]:
        """Encode the answer to the current request; set `closing` if it is the last answer. A long
        body is a separate part, because copying it would take long."""
        head = self._head
        assert head is not None
        keep_alive = self.keep_alive
        if keep_alive and head.minor and head.method != "HEAD":
            before, after, rest = reply.usual()
        else:
            fits = len(reply.body) <= CHUNK_ABOVE
            keep_alive = keep_alive and (fits or head.minor == 1)
            before, after, rest = reply.render(head.minor, keep_alive, head.method != "HEAD")
        self._head = None
        self._raw = b""
        if not keep_alive:
            self.closing = True
        if self._state is not _BROKEN:
            self._state = _DRAIN if self._more else _HEAD
        return before + date + after, *rest


PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json; charset=utf-8"

_REASONS: Final = {
    200: "OK",
    301: "Moved Permanently",
    303: "See Other",
    304: "Not Modified",
    307: "Temporary Redirect",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


def _reason(status: int) -> str:
    """Return the reason phrase; empty for an unknown status, which another server may send."""
    try:
        return _REASONS.get(status) or HTTPStatus(status).phrase
    except ValueError:
        return ""


class Rendered(NamedTuple):
    """Encoded answer: the parts before and after the date.

    A long body stays separate in `rest`, so that it is not copied.
    """

    before: bytes
    after: bytes
    rest: tuple[Bytes, ...] = ()


_UNSAFE_IN_HEADERS = re.compile("[^\t -~\x80-\xff]")


class Reply:
    """An answer that does not depend on the request. With `nsq`, it has the header
    `X-Nsq-Content-Type`. Raises ValueError for a header that could inject another header."""

    __slots__ = ("_usual", "body", "content_type", "headers", "logged", "nsq", "status")

    def __init__(
        self,
        status: int,
        body: Bytes = b"",
        content_type: str = "",
        *,
        nsq: bool = True,
        headers: Iterable[tuple[str, str]] = (),
        logged: bool = True,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.nsq = nsq
        self.headers = tuple(headers)
        for name, value in (("Content-Type", content_type), *self.headers):
            if _UNSAFE_IN_HEADERS.search(name + value):
                raise ValueError(f"header {name!r} contains a character that is not allowed")
        self.logged = logged
        self._usual: Rendered | None = None

    def usual(self) -> Rendered:
        """Return the parts for HTTP/1.1 with keep-alive, which are cached."""
        if self._usual is None:
            self._usual = self.render(1, True, True)
        return self._usual

    def render(self, minor: int, keep_alive: bool, with_body: bool) -> Rendered:
        lines = [f"HTTP/1.{minor} {self.status} {_reason(self.status)}"]
        if self.content_type:
            lines.append(f"Content-Type: {self.content_type}")
        if self.nsq:
            lines.append("X-Nsq-Content-Type: nsq; version=1.0")
        lines += [f"{name}: {value}" for name, value in self.headers]
        before = "\r\n".join([*lines, "Date: "]).encode("latin-1")

        body = self.body
        short = len(body) <= CHUNK_ABOVE
        after = b""
        if short:
            after = b"\r\nContent-Length: %d" % len(body)
        elif minor:
            after = b"\r\nTransfer-Encoding: chunked"
        if not keep_alive and minor:
            after += b"\r\nConnection: close"
        elif keep_alive and not minor:
            after += b"\r\nConnection: keep-alive"
        after += b"\r\n\r\n"
        if not with_body:
            return Rendered(before, after)
        if short:
            return Rendered(before, after + body)
        if minor:
            return Rendered(before, after + b"%x\r\n" % len(body), (body, b"\r\n0\r\n\r\n"))
        return Rendered(before, after, (body,))
