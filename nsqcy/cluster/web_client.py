"""Blocking HTTP client for daemons. Every request has a deadline.

Implements the conventions of NSQ's daemons: the version in the Accept header, and how to find the
TLS address. Error texts are built here, because library exceptions may contain the URL and
therefore a secret. Does not interpret requests or responses.
"""

import json
import os
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus, client
from http.client import BadStatusLine, HTTPException, responses
from io import BytesIO
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urljoin

from urllib3 import HTTPResponse, make_headers
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Url, parse_url

from nsqcy import __version__
from nsqcy.cluster.budget import BUDGET, UNBOUNDED, Bounds, Lease
from nsqcy.cluster.trust import Trust
from nsqcy.errors import TOKEN_WITHHELD, RequestError
from nsqcy.names import one_line, printable, quote
from nsqcy.util import gojson
from nsqcy.util.self_connect import refuse_itself

PIECE = 1 << 16  # bytes of a body to read at a time
FOREVER = 86400.0  # deadline in seconds for a request without a limit
SECOND = 1_000_000_000
PORTS = {"http": 80, "https": 443}
MAX_ERROR = 64 << 10  # maximum bytes of an error response that are read
MAX_LENGTH = 20  # maximum characters of a Content-Length that are quoted
MAX_SHOWN = 300  # maximum characters of an error response that are quoted
MAX_INFORMATIONAL = 5  # maximum 1xx responses before the final one, as in Go's clients
TIMED_OUT = "timed out"

# Responses of the TCP ports of nsqd and nsqlookupd to an HTTP request.
_BAD_MAGIC = "E_BAD_PROTOCOL"
_ERROR_FRAME = "\x00\x00\x00\x12\x00\x00\x00\x01"
_NSQD_TCP = "this is nsqd's TCP port: use its HTTP port (4151 by default)"
_LOOKUPD_TCP = "this is nsqlookupd's TCP port: use its HTTP port (4161 by default)"

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TLS_REQUIRED: gojson.Fields = {"https_port": (gojson.int32, 0)}


class Settings(Protocol):
    """The daemon options that the client uses."""

    @property
    def http_client_connect_timeout(self) -> int: ...
    @property
    def http_client_request_timeout(self) -> int: ...
    @property
    def tls_root_ca_file(self) -> str: ...
    @property
    def tls_min_version(self) -> int: ...


@dataclass(frozen=True)
class Terms:
    """Request settings. Times are in seconds; 0 or less means no limit."""

    connect_timeout: float = 2.0
    request_timeout: float = 5.0
    root_ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    tls_min_version: int = ssl.TLSVersion.TLSv1_2
    verify: bool = True
    user_agent: str = f"nsqcy/{__version__}"
    token: str = field(default="", repr=False)
    """Sent only to the requested host: redirects are not followed."""
    trust: Trust | None = field(default=None, repr=False, compare=False)
    """Decides which servers get the token; None: all, because the caller specifies them."""
    bounds: Bounds = UNBOUNDED
    """Maximum size of every response; a request may allow less."""

    @classmethod
    def of(cls, settings: Settings) -> "Terms":
        """Return the settings from a daemon's options."""
        return cls(
            connect_timeout=settings.http_client_connect_timeout / SECOND,
            request_timeout=settings.http_client_request_timeout / SECOND,
            root_ca_file=settings.tls_root_ca_file,
            tls_min_version=settings.tls_min_version,
        )

    @property
    def whole(self) -> float:
        """Maximum seconds from the start of a request to the last byte of the response."""
        return self.request_timeout if self.request_timeout > 0 else FOREVER


class Answer(NamedTuple):
    """A response. lease: the response's part of the budget, to be kept as long as the values."""

    status: int
    headers: Mapping[str, str]  # names are lower case
    body: bytes
    lease: Lease | None = None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Socket(socket.socket):
    """Socket that receives until a deadline, even if bytes arrive slowly."""

    deadline = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().recv_into(*args, **kwargs)


class _TlsSocket(ssl.SSLSocket):
    """TLS socket that also sends until a deadline, because its sendall sends in many steps."""

    deadline: float | None = None  # None during the handshake, which is a single call

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._keep_deadline()
        return super().recv_into(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> int:
        self._keep_deadline()
        return super().send(*args, **kwargs)

    def _keep_deadline(self) -> None:
        if self.deadline is not None:
            self.settimeout(_left(self.deadline))


class _FinalResponse(client.HTTPResponse):
    """Response that skips all informational ones before it: http.client skips only 100."""

    def _read_status(self) -> tuple[str, int, str]:
        for _ in range(MAX_INFORMATIONAL + 1):
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if found[1] // 100 != 1 or found[1] == HTTPStatus.SWITCHING_PROTOCOLS:
                return found
            client.parse_headers(self.fp)
        raise HTTPException(f"more than {MAX_INFORMATIONAL} informational responses")


class _Connection(HTTPConnection):
    """Connection with a deadline for every step."""

    response_class = _FinalResponse

    def __init__(self, *args: Any, deadline: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deadline = deadline

    def _new_conn(self) -> socket.socket:
        sock = _Socket(fileno=super()._new_conn().detach())
        refuse_itself(sock)
        sock.deadline = self.deadline
        sock.settimeout(_left(self.deadline))
        return sock


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        assert isinstance(self.sock, _TlsSocket)
        self.sock.deadline = self.deadline


class ResponseStream:
    """Response that is read in pieces as they arrive, for at most a day. Only `close` may be called
    from another thread."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        assert isinstance(connection.sock, _Socket | _TlsSocket)
        self._connection = connection
        self._socket = connection.sock
        self._socket.deadline = time.monotonic() + FOREVER
        # This detects a peer that disappeared without closing the connection.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self._response = response

    def read(self) -> bytes:
        """Return the next bytes, or b"" at the end. Raises RequestError."""
        piece = b""
        try:
            # Not stream(), which reads a chunk's length in a line without a limit.
            piece = self._response.read1(PIECE, decode_content=False)
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            raise RequestError(reason(error)) from None
        finally:
            if not piece:
                self._connection.close()
        return piece

    def close(self) -> None:
        """End the response, even if a read is waiting in another thread."""
        with suppress(OSError):
            # Not SSLSocket.shutdown: the reading thread still needs the TLS state.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def reason(error: BaseException) -> str:
    """Return an error's text, without any part of the request."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, HTTPError) and isinstance(cause, OSError):
        error = cause
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return TIMED_OUT
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, BadStatusLine) and str(error).endswith(_BAD_MAGIC):
        return _NSQD_TCP if str(error).startswith(_ERROR_FRAME) else _LOOKUPD_TCP
    return type(error).__name__


def https_instead(url: Url, body: bytes) -> Url:
    """Return the HTTPS URL in a 403 response."""
    try:
        port = gojson.decode(body, _TLS_REQUIRED)["https_port"]
    except ValueError:
        port = 0
    if not 0 < port < 65536:
        raise RequestError("status 403", 403)
    return url._replace(scheme="https", port=port)


def describe(error: RequestError) -> str:
    """Return a daemon's own text for an error, or why there was no response."""
    text = str(error)
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        text = str(json.loads(error.body)["message"])
    if error.status == 401 and text == "UNAUTHORIZED":
        text += ": missing or invalid token"
    return printable(text)


def unwanted(answer: Answer) -> RequestError:
    """Return the error for a response whose status is not 200."""
    status = answer.status
    line = f"{status} {responses.get(status, '')}".rstrip()
    shown = quote(answer.body[:MAX_SHOWN])
    return RequestError(f"got response {line} {shown}", status, answer.body)


def _redirected(url: Url, answer: Answer) -> RequestError:
    try:
        there = parse_url(urljoin(url.url, answer.headers["location"]))
        place = f" to {there._replace(auth=None, query=None, fragment=None).url}"
    except (HTTPError, ValueError):
        place = ""
    text = f"got a redirect{one_line(place[:MAX_SHOWN])}; redirects are not followed"
    return RequestError(f"{text}: set the address of the daemon itself", answer.status)


class WebClient:
    """HTTP client. Thread-safe."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._tls: ssl.SSLContext | None = None
        self._tls_stamp: tuple[int, ...] = ()

    def ask(
        self,
        url: Url,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        maximum: int,
    ) -> Answer:
        """Send a request and return the response, with any status. Switches to TLS if the server
        requires it. Raises RequestError for a redirect, because its target may be any server, and
        without a status if there is no response."""
        try:
            return self._ask(url, method, dict(headers or {}), body, maximum)
        except RequestError as error:
            failure = RequestError(str(error), error.status, error.body)
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            failure = RequestError(reason(error))
        # At this point the error has no traceback, which would keep the response alive as long as
        # the error.
        raise failure

    def fetch(
        self,
        url: Url,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        maximum: int,
    ) -> Answer:
        """Like ask(), but raise RequestError for a status other than 200."""
        answer = self.ask(url, method, headers, body, maximum=maximum)
        if answer.status != 200:
            raise unwanted(answer)
        return answer

    def _ask(
        self, url: Url, method: str, headers: dict[str, str], body: bytes | None, maximum: int
    ) -> Answer:
        bounds = self.terms.bounds
        bounds = bounds._replace(bytes=min(bounds.bytes, maximum))
        deadline = time.monotonic() + self.terms.whole
        trusted = self._trusts(url)
        shown = self._token(trusted) | headers
        answer = self._whole(url, method, shown, body, bounds, deadline)
        if answer.status == 403 and url.scheme == "http" and b"https_port" in answer.body:
            url = https_instead(url, answer.body)
            trusted = trusted or self._trusts(url)
            shown = self._token(trusted) | headers
            answer = self._whole(url, method, shown, body, bounds, deadline)
        if answer.status in (401, 403) and self.terms.token and not trusted:
            raise RequestError(f"{TOKEN_WITHHELD} --trust-lookupd", answer.status)
        if answer.status in REDIRECTS and "location" in answer.headers:
            raise _redirected(url, answer)
        return answer

    def may_send_token(self, url: Url) -> bool:
        """Return whether there is no token, or the server may receive it."""
        return not self.terms.token or self._trusts(url)

    def _trusts(self, url: Url) -> bool:
        """Return whether a server may receive the token: because it is named in the options, has
        authenticated, or has a certificate from our own CA. Anyone can get a certificate of a
        public CA."""
        terms = self.terms
        has_own_ca = url.scheme == "https" and bool(terms.root_ca_file) and terms.verify
        return terms.trust is None or has_own_ca or terms.trust.covers(url)

    def _token(self, trusted: bool) -> dict[str, str]:
        token = self.terms.token
        return {"Authorization": f"Bearer {token}"} if token and trusted else {}

    def _whole(
        self,
        url: Url,
        method: str,
        headers: dict[str, str],
        body: bytes | None,
        bounds: Bounds,
        deadline: float,
    ) -> Answer:
        """Send one request and return its response. Raises RequestError if it is too large."""
        lease = Lease(BUDGET, deadline)
        try:
            answer = self.request(
                url,
                method,
                url.request_uri,
                headers,
                body,
                maximum=bounds.bytes,
                deadline=deadline,
                lease=lease,
            )
            lease.grow_for(answer.body, bounds)
        except BaseException:
            lease.end()  # the error's traceback refers to the lease
            raise
        return answer

    def request(
        self,
        url: Url,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        maximum: int,
        deadline: float | None = None,
        lease: Lease | None = None,
    ) -> Answer:
        """Send one request and return its response, with at least `maximum` + 1 bytes of a longer
        body; for a status other than 200, at most MAX_ERROR bytes. Raises urllib3's exceptions."""
        headers = {
            "Accept": "application/vnd.nsq; version=1.0",
            "User-Agent": self.terms.user_agent,
            **headers,
        }
        if url.auth:
            headers |= make_headers(basic_auth=unquote(url.auth))
        connection = self._connection(url, deadline or time.monotonic() + self.terms.whole)
        try:
            connection.connect()
            connection.request(
                method, target, body, headers, preload_content=False, decode_content=False
            )
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.headers.items()}
            if lease is not None:
                _check_head(url, response.status, lower, maximum)
            kept = maximum if response.status == 200 else min(maximum, MAX_ERROR)
            found = _read(response, kept, lease)
            if lease is not None and response.status == 200 and len(found) > maximum:
                raise _too_long(url, f"more than {maximum}", maximum)
            return Answer(response.status, lower, found, lease)
        finally:
            connection.close()

    def stream(self, url: Url, headers: Mapping[str, str], body: bytes) -> ResponseStream:
        """Send a POST request and return its response as a stream. Raises RequestError, including
        for a status other than 200."""
        try:
            return self._stream(url, headers, body)
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            raise RequestError(reason(error)) from None

    def _stream(self, url: Url, headers: Mapping[str, str], body: bytes) -> ResponseStream:
        connection = self._connection(url, time.monotonic() + self.terms.whole)
        headers = {"User-Agent": self.terms.user_agent, **headers}
        try:
            connection.connect()
            connection.request(
                "POST", url.request_uri, body, headers, preload_content=False, decode_content=False
            )
            response = connection.getresponse()
            if response.status != 200:
                raise unwanted(Answer(response.status, {}, _read(response, MAX_SHOWN)))
        except BaseException:
            connection.close()
            raise
        return ResponseStream(connection, response)

    def _connection(self, url: Url, deadline: float) -> HTTPConnection:
        if not url.host or url.scheme not in PORTS:
            raise RequestError("invalid address of an HTTP server")
        host, port = url.host.strip("[]"), url.port or PORTS[url.scheme]
        left = _left(deadline)
        timeout = min(self.terms.connect_timeout, left) if self.terms.connect_timeout > 0 else left
        if url.scheme == "http":
            return _Connection(host, port, timeout=timeout, deadline=deadline)
        return _TlsConnection(
            host,
            port,
            timeout=timeout,
            deadline=deadline,
            ssl_context=self._tls_context(),
            cert_reqs="CERT_REQUIRED" if self.terms.verify else "CERT_NONE",
        )

    def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS context. It is created on first use, and again when one of its files
        changes."""
        terms = self.terms
        stamp: tuple[int, ...] = ()
        for path in (terms.root_ca_file, terms.cert_file, terms.key_file):
            try:
                stamp += _stamp(path)
            except OSError as error:
                raise RequestError(f"{path}: {reason(error)}") from None
        if self._tls is None or stamp != self._tls_stamp:
            try:
                self._tls, self._tls_stamp = _make_tls_context(terms), stamp
            except OSError as error:
                files = [terms.root_ca_file, terms.cert_file, terms.key_file]
                shown = ", ".join(filter(None, files))
                raise RequestError(f"{shown}: {reason(error)}") from None
        return self._tls


def _make_tls_context(terms: Terms) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=terms.root_ca_file or None)
    context.hostname_checks_common_name = False  # only subject alternative names count
    # NSQ also accepts CAs that do not meet Python's newer strict rules.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    oldest = max(terms.tls_min_version, ssl.TLSVersion.TLSv1_2)
    context.minimum_version = ssl.TLSVersion(oldest)
    context.sslsocket_class = _TlsSocket
    if not terms.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if terms.cert_file:
        context.load_cert_chain(terms.cert_file, terms.key_file or None)
    return context


def _stamp(path: str) -> tuple[int, ...]:
    """Return a value that changes when a file's content does."""
    if not path:
        return ()
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(response: HTTPResponse, maximum: int, lease: Lease | None = None) -> bytes:
    """Return the entire body, or more than `maximum` bytes of it. Raises an exception if the body
    ends early."""
    body = BytesIO()
    while body.tell() <= maximum:
        piece = response.read(PIECE, decode_content=False)
        if not piece:
            break
        if lease is not None:
            lease.grow(len(piece))
        body.write(piece)
    return body.getvalue()


def _check_head(url: Url, status: int, headers: Mapping[str, str], maximum: int) -> None:
    """Raise RequestError if the response is too long or compressed, before its body is read."""
    if status != 200:
        return
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal() and (len(length) > 18 or int(length) > maximum):
        raise _too_long(url, length[:MAX_LENGTH], maximum)
    if headers.get("content-encoding", "identity") != "identity":
        text = f"{_route(url)}: the response is compressed, but no compression was requested"
        raise RequestError(text, status)


def _too_long(url: Url, length: str, maximum: int) -> RequestError:
    text = f"{_route(url)}: the response has {length} bytes; the limit is {maximum}"
    return RequestError(text, 200)


def _route(url: Url) -> str:
    """Return a URL's path; its other parts may contain secrets."""
    return url.path or "/"
