"""Scripted auth server in threads of the test. Its answer depends on the secret.

Owns one listening socket and the record of its requests. Knows nothing about nsqd.
"""

import json
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.nsqd_process import free_port


def grant(
    topic: str = ".*",
    channels: Iterable[str] = (".*",),
    permissions: Iterable[str] = ("subscribe", "publish"),
) -> dict[str, Any]:
    """One authorization in an answer."""
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def answer(*grants: dict[str, Any], ttl: Any = 3600, **other: Any) -> bytes:
    """Return the body of an answer; without grants it allows everything."""
    body = {
        "ttl": ttl,
        "identity": "me",
        "identity_url": "http://u",
        "authorizations": grants or [grant()],
    }
    return json.dumps(body | other).encode()


@dataclass
class Reply:
    """Reply to a request: `raw` replaces the HTTP answer, `open` keeps the request waiting."""

    body: bytes = field(default_factory=answer)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    open: threading.Event | None = None
    trickle: float = 0.0  # seconds between two bytes
    again: bool = False  # whether the body is sent repeatedly


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def secret(self) -> str:
        found = json.loads(self.body) if self.body else parse_qs(urlsplit(self.path).query)
        return str(found.get("secret", [""])[0])


class AuthServer:
    """A server that listens from its creation until `close`."""

    def __init__(
        self, port: int = 0, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.replies: dict[str, Reply] = {}
        self.requests: list[Asked] = []
        self.closing = threading.Event()
        self.default = Reply()
        self._server = Server((host, port or free_port()), handler(self))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"{self._server.server_address[0]}:{self.port}"

    def says(self, secret: str, *grants: dict[str, Any], **other: Any) -> None:
        """Set the response to requests with this secret."""
        self.replies[secret] = Reply(answer(*grants, **other))

    def asked(self, secret: str) -> list[Asked]:
        return [request for request in list(self.requests) if request.secret == secret]

    @contextmanager
    def silent(self, secret: str) -> Iterator[None]:
        """Keep requests with this secret waiting until the end of the block."""
        gate = threading.Event()
        self.replies[secret] = Reply(open=gate)
        try:
            yield
        finally:
            gate.set()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def handler(server: AuthServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(length))
            server.requests.append(asked)
            self.reply(server.replies.get(asked.secret, server.default))

        do_POST = do_GET

        def reply(self, reply: Reply) -> None:
            if reply.open is not None:
                reply.open.wait(60)
            self.close_connection = True
            try:
                if reply.raw is None:
                    self.send_response(reply.status)
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                self.send(reply.body if reply.raw is None else reply.raw, reply.trickle)
                while reply.again and not server.closing.is_set():
                    self.send(reply.body, reply.trickle)
            except OSError:
                pass  # nsqd has disconnected

        def send(self, data: bytes, pause: float) -> None:
            if not pause:
                self.wfile.write(data)
                return
            for at in range(len(data)):
                self.wfile.write(data[at : at + 1])
                if server.closing.wait(pause):
                    return

        def log_message(self, *args: object) -> None:
            pass

    return Handler
