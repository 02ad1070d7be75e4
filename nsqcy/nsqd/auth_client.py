"""Asking auth servers what a client may do, off the hub.

`Servers` makes one query, blocking, in whichever thread calls it; `Authorizer` is its face on a
hub: sessions ask it, and are told the answer later. What goes wrong is told in words made here, as
the texts of other people's exceptions may hold the URL, and so the client's secret.
"""

import os
import random
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlencode
from weakref import WeakValueDictionary

import gevent
from gevent.threadpool import ThreadPool
from urllib3 import HTTPResponse, make_headers
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from nsqcy import __version__, gojson
from nsqcy._session import Session
from nsqcy.lines import Lines
from nsqcy.nsqd import auth
from nsqcy.nsqd.auth import ANSWER_MOST, AuthFailure, Authorization
from nsqcy.nsqd.options import NsqdOptions

QUERIES_MOST = 32  # at a time, in one worker
IDLE_THREAD = 10.0  # seconds after which a thread without work ends
PIECE = 1 << 16  # bytes of a body read at a time
FOREVER = 86400.0  # seconds of a request whose time is not limited
SECOND = 1_000_000_000
PORTS = {"http": 80, "https": 443}
_STRAY = re.compile("[\ud800-\udfff]")  # bytes that are not UTF-8, as surrogate escapes

_TLS_REQUIRED: gojson.Fields = {"https_port": (gojson.int32, 0)}


@dataclass(frozen=True)
class Question:
    """What a server is told of a client."""

    secret: bytes = field(repr=False)
    remote_ip: str
    tls: bool
    common_name: str

    def parameters(self) -> dict[str, str | bytes]:
        """By name, sorted."""
        return {
            "common_name": self.common_name,
            "remote_ip": self.remote_ip,
            "secret": self.secret,
            "tls": "true" if self.tls else "false",
        }

    def query(self) -> str:
        return urlencode(self.parameters())

    def body(self) -> bytes:
        """As Go has it: each value in an array, U+FFFD for each byte that is not UTF-8."""
        texts = {
            name: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            for name, value in self.parameters().items()
        }
        return gojson.encode({name: [_STRAY.sub("\ufffd", text)] for name, text in texts.items()})


# -- connections that keep a deadline


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


class Servers:
    """The auth servers of the configuration."""

    def __init__(self, options: NsqdOptions) -> None:
        self._urls = [_url(address) for address in options.auth_http_address]
        self._post = options.auth_http_request_method == "post"
        self._connect = options.http_client_connect_timeout / SECOND
        self._whole = options.http_client_request_timeout / SECOND
        self._root_ca_file = options.tls_root_ca_file
        self._tls_min_version = options.tls_min_version
        self._tls: ssl.SSLContext | None = None
        self._tls_stamp: tuple[int, ...] = ()

    def query(self, question: Question) -> Authorization:
        """The answer of the first server that gives one, beginning with any; raises AuthFailure
        with what was wrong with each of them."""
        first = random.randrange(len(self._urls))
        failures = []
        for url in self._urls[first:] + self._urls[:first]:
            try:
                return auth.parse(self._ask(url, question))
            except AuthFailure as failure:
                failures.append(f"{_shown(url)}: {failure}")
            except (OSError, HTTPError, HTTPException, ValueError) as error:
                failures.append(f"{_shown(url)}: {reason(error)}")
        raise AuthFailure("; ".join(failures))

    def _ask(self, url: Url, question: Question) -> bytes:
        status, body = self._request(url, question)
        if status == 403 and url.scheme == "http":
            status, body = self._request(_https(url, body), question)
        if status != 200:
            raise AuthFailure(f"status {status}")
        return body

    def _request(self, url: Url, question: Question) -> tuple[int, bytes]:
        """One request and its answer: the status, and as much of the body as we look at."""
        headers = {
            "Accept": "application/vnd.nsq; version=1.0",
            "User-Agent": f"nsqcy/{__version__}",
        }
        if url.auth:
            headers |= make_headers(basic_auth=unquote(url.auth))
        target, body = url.request_uri, None
        if self._post:
            headers["Content-Type"] = "application/json"
            body = question.body()
        else:
            target += f"?{question.query()}"
        connection = self._connection(url)
        try:
            connection.connect()
            connection.request(
                "POST" if self._post else "GET",
                target,
                body,
                headers,
                preload_content=False,
                decode_content=False,
            )
            response = connection.getresponse()
            return response.status, _read(response)
        finally:
            connection.close()

    def _connection(self, url: Url) -> HTTPConnection:
        if not url.host or url.scheme not in PORTS:
            raise AuthFailure("not an address of an HTTP server")
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
            raise AuthFailure(f"--tls-root-ca-file: {reason(error)}") from None
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


def _read(response: HTTPResponse) -> bytes:
    """The whole body, or more than an answer may have; raises if it ends early."""
    body = b""
    while len(body) <= ANSWER_MOST:
        piece = response.read(PIECE, decode_content=False)
        if not piece:
            break
        body += piece
    return body


def _url(address: str) -> Url:
    try:
        return parse_url(address if "://" in address else f"http://{address}/auth")
    except LocationParseError:
        return Url()  # whose host is None


def _shown(url: Url) -> str:
    """An address as a log may show it: without what could be a password or a token."""
    if not url.host:
        return "an --auth-http-address"
    return url._replace(auth=None, query=None, fragment=None).url


def _https(url: Url, body: bytes) -> Url:
    """Where a server that answered 403 wants to be asked by TLS."""
    try:
        port = gojson.decode(body, _TLS_REQUIRED)["https_port"]
    except ValueError:
        port = 0
    if not 0 < port < 65536:
        raise AuthFailure("status 403")
    return url._replace(scheme="https", port=port)


# -- on the hub


class Authorizer:
    """Asks for sessions, a bounded number at a time; each waits, and nobody else does."""

    def __init__(self, options: NsqdOptions, enter: Callable[[], object], log: Lines) -> None:
        """enter: called before a session is spoken to, outside of a turn."""
        self._servers = Servers(options)
        self._enter = enter
        self._log = log
        self._asked: deque[Session] = deque()
        self._running = 0
        self._known: WeakValueDictionary[bytes, Authorization] = WeakValueDictionary()
        hub = gevent.get_hub()
        self._pool = ThreadPool(QUERIES_MOST, hub=hub, idle_task_timeout=IDLE_THREAD)
        # Sessions ask at the end of a turn, where nothing may spawn.
        self._wake = hub.loop.async_()
        self._wake.start(self._start)

    def ask(self, session: Session) -> None:
        """Find out what a client may do: its authorized() or auth_failed() follows."""
        self._asked.append(session)
        self._wake.send()

    def restore(self, source: bytes) -> Authorization:
        """The authorization of a client that another worker has asked for."""
        return self._shared(auth.parse(source))

    def _shared(self, authorization: Authorization) -> Authorization:
        """Clients of one service get one answer: keep it, and what follows from it, once."""
        return self._known.setdefault(authorization.source, authorization)

    def _start(self) -> None:
        for _ in range(min(len(self._asked), QUERIES_MOST - self._running)):
            self._running += 1
            gevent.spawn(self._run)

    def _run(self) -> None:
        try:
            while self._asked:
                session = self._asked.popleft()
                if not session.closed:
                    self._tell(session, self._pool.apply(self._attempt, (_question(session),)))
        finally:
            self._running -= 1

    def _attempt(self, question: Question) -> Authorization | str:
        """In a thread: the answer, or what is wrong. It raises nothing, as the hub would print the
        arguments."""
        try:
            return self._servers.query(question)
        except AuthFailure as failure:
            return str(failure)
        except Exception as error:
            return reason(error)

    def _tell(self, session: Session, answer: Authorization | str) -> None:
        self._enter()
        if session.closed:
            return
        if isinstance(answer, str):
            self._log.warn(f"PROTOCOL(V2): [{session.remote_address}] AUTH failed {answer}")
            session.auth_failed()
        else:
            session.authorized(self._shared(answer))


def _question(session: Session) -> Question:
    tls, common_name = session.tls_facts()
    return Question(
        secret=session.secret or b"",
        remote_ip=session.remote_address.rpartition(":")[0].strip("[]"),
        tls=tls,
        common_name=common_name,
    )
