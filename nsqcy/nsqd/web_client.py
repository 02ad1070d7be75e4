"""HTTP requests to other daemons, blocking, from a thread: every one ends at a deadline.

Knows what NSQ's daemons expect of each other: the version they accept, and where one that wants TLS
is found. What goes wrong is told in words made here, as the texts of other people's exceptions may
hold the URL, and so a secret. Takes no part in what is asked and answered.
"""

import os
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from urllib3 import HTTPResponse, make_headers
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Url, parse_url

from nsqcy import __version__, gojson
from nsqcy.errors import NsqError

PIECE = 1 << 16  # bytes of a body read at a time
FOREVER = 86400.0  # seconds of a request whose time is not limited
SECOND = 1_000_000_000
PORTS = {"http": 80, "https": 443}

_TLS_REQUIRED: gojson.Fields = {"https_port": (gojson.int32, 0)}


class Settings(Protocol):
    """The options read here."""

    @property
    def http_client_connect_timeout(self) -> int: ...
    @property
    def http_client_request_timeout(self) -> int: ...
    @property
    def tls_root_ca_file(self) -> str: ...
    @property
    def tls_min_version(self) -> int: ...


class WebFailure(NsqError):
    """A server cannot be asked; the text says why."""


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Socket(socket.socket):
    """Receives until a deadline, however slowly the bytes trickle in."""

    deadline = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().recv_into(*args, **kwargs)


class _TlsSocket(ssl.SSLSocket):
    """The same, and sends so: its sendall is many sends."""

    deadline: float | None = None  # none during the handshake, which is one call

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._keep_deadline()
        return super().recv_into(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> int:
        self._keep_deadline()
        return super().send(*args, **kwargs)

    def _keep_deadline(self) -> None:
        if self.deadline is not None:
            self.settimeout(_left(self.deadline))


class _Connection(HTTPConnection):
    """A connection whose every step ends at a deadline."""

    def __init__(self, *args: Any, deadline: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deadline = deadline

    def _new_conn(self) -> socket.socket:
        sock = _Socket(fileno=super()._new_conn().detach())
        sock.deadline = self.deadline
        sock.settimeout(_left(self.deadline))
        return sock


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        assert isinstance(self.sock, _TlsSocket)
        self.sock.deadline = self.deadline


def reason(error: BaseException) -> str:
    """What went wrong, without a word of what was asked."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, HTTPError) and isinstance(cause, OSError):
        error = cause
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__


def https_instead(url: Url, body: bytes) -> Url:
    """Where a server that answered 403 wants to be asked by TLS."""
    try:
        port = gojson.decode(body, _TLS_REQUIRED)["https_port"]
    except ValueError:
        port = 0
    if not 0 < port < 65536:
        raise WebFailure("status 403")
    return url._replace(scheme="https", port=port)


class WebClient:
    """Makes requests; one may be made in each of several threads."""

    def __init__(self, options: Settings) -> None:
        self._connect = options.http_client_connect_timeout / SECOND
        self._whole = options.http_client_request_timeout / SECOND
        self._root_ca_file = options.tls_root_ca_file
        self._tls_min_version = options.tls_min_version
        self._tls: ssl.SSLContext | None = None
        self._tls_stamp: tuple[int, ...] = ()

    def request(
        self,
        url: Url,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        most: int,
    ) -> tuple[int, bytes]:
        """One request and its answer: the status, and of the body at least `most` bytes and one
        more, if it has them."""
        headers = {
            "Accept": "application/vnd.nsq; version=1.0",
            "User-Agent": f"nsqcy/{__version__}",
            **headers,
        }
        if url.auth:
            headers |= make_headers(basic_auth=unquote(url.auth))
        connection = self._connection(url)
        try:
            connection.connect()
            connection.request(
                method, target, body, headers, preload_content=False, decode_content=False
            )
            response = connection.getresponse()
            return response.status, _read(response, most)
        finally:
            connection.close()

    def _connection(self, url: Url) -> HTTPConnection:
        if not url.host or url.scheme not in PORTS:
            raise WebFailure("not an address of an HTTP server")
        host, port = url.host.strip("[]"), url.port or PORTS[url.scheme]
        whole = self._whole if self._whole > 0 else FOREVER
        timeout = min(self._connect, whole) if self._connect > 0 else whole
        deadline = time.monotonic() + whole
        if url.scheme == "http":
            return _Connection(host, port, timeout=timeout, deadline=deadline)
        return _TlsConnection(
            host,
            port,
            timeout=timeout,
            deadline=deadline,
            ssl_context=self._tls_context(),
            cert_reqs="CERT_REQUIRED",
        )

    def _tls_context(self) -> ssl.SSLContext:
        """Made when first wanted, and again when the file of authorities has changed."""
        try:
            stamp = _stamp(self._root_ca_file)
            if self._tls is None or stamp != self._tls_stamp:
                self._tls, self._tls_stamp = self._make_tls_context(), stamp
        except OSError as error:
            raise WebFailure(f"--tls-root-ca-file: {reason(error)}") from None
        return self._tls

    def _make_tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._root_ca_file or None)
        # Authorities of before this rule of Python's are as good to NSQ.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        oldest = max(self._tls_min_version, ssl.TLSVersion.TLSv1_2)
        context.minimum_version = ssl.TLSVersion(oldest)
        context.sslsocket_class = _TlsSocket
        return context


def _stamp(path: str) -> tuple[int, ...]:
    """What changes with the content of a file."""
    if not path:
        return ()
    found = os.stat(path)
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(response: HTTPResponse, most: int) -> bytes:
    """The whole body, or more than an answer may have; raises if it ends early."""
    body = b""
    while len(body) <= most:
        piece = response.read(PIECE, decode_content=False)
        if not piece:
            break
        body += piece
    return body


def get(settings: Settings, url: str, *, most: int) -> tuple[int, bytes]:
    """The answer to a GET, by TLS where the server wants that: the status, and its body."""
    client = WebClient(settings)
    parsed = parse_url(url)
    status, body = client.request(parsed, "GET", parsed.request_uri, {}, most=most)
    if status == 403 and parsed.scheme == "http":
        parsed = https_instead(parsed, body)
        status, body = client.request(parsed, "GET", parsed.request_uri, {}, most=most)
    return status, body
