"""HTTP server that answers as a lookupd, in a thread of the test, and records its requests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class LookupPages:
    """Lookupd that returns `producers`, as (host, port), for every topic."""

    def __init__(self, *producers: tuple[str, int], status: int = 200) -> None:
        self.producers = list(producers)
        self.status = status
        self.asked: list[tuple[str, dict[str, str]]] = []  # path, headers
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                pages.asked.append((self.path, headers))
                body = pages.page()
                self.send_response(pages.status)
                self.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *about: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def page(self) -> bytes:
        if self.status == 404:
            return b'{"message":"TOPIC_NOT_FOUND"}'
        fields = [
            {"broadcast_address": host, "tcp_port": port, "http_port": 1, "hostname": "h"}
            for host, port in self.producers
        ]
        return json.dumps({"channels": [], "producers": fields}).encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
