"""A scripted daemon over HTTP, in threads of the test: an nsqlookupd, an nsqd, or both.

`pages` contains the answer for each path: JSON; a number, which is a status; or NEVER, which means
no answer.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

NEVER = object()


class HttpServer:
    """Listens from its creation until `close`."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Upstream(HttpServer):
    """A daemon with these pages."""

    def __init__(self, **pages: Any) -> None:
        self.pages: dict[str, Any] = {f"/{name}": page for name, page in pages.items()}
        self.asked: list[str] = []  # "GET /stats?format=json"
        self.headers: dict[str, str] = {}  # headers of the latest request; names in lower case
        self._closing = threading.Event()
        super().__init__(handler(self))

    def close(self) -> None:
        self._closing.set()
        super().close()

    def producer(self, hostname: str = "h", **fields: Any) -> dict[str, Any]:
        """The daemon's entry in the answers of nsqlookupds."""
        return {
            "remote_address": f"127.0.0.1:{self.port + 1}",
            "hostname": hostname,
            "broadcast_address": "127.0.0.1",
            "tcp_port": self.port,
            "http_port": self.port,
            "version": "1.3.0",
        } | fields


def handler(upstream: Upstream) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            upstream.asked.append(f"{self.command} {self.path}")
            upstream.headers = {name.lower(): value for name, value in self.headers.items()}
            page = upstream.pages.get(urlsplit(self.path).path, 404)
            if page is NEVER:
                upstream._closing.wait(60)
                return
            status = page if isinstance(page, int) else 200
            body = {"message": "SCRIPTED"} if isinstance(page, int) else page
            self.send_response(status)
            self.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *args: object) -> None:
            pass

    return Handler
