"""An HTTP server that acts as a destination for messages, in threads of the test.

The path determines the answer: `/500` returns status 500; `/302/x/y` redirects to `/x/y`.
"""

import ssl
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Got:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    port: int  # the client's port: identifies the connection


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # maximum simultaneous connections; others time out


class Destination:
    """Listens from its creation until `close`."""

    def __init__(self) -> None:
        self.requests: list[Got] = []
        self.hold = threading.Event()  # answers to /hold wait for this event
        self._server = Server(("127.0.0.1", 0), handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def secure(self, context: ssl.SSLContext) -> None:
        """Use TLS for new connections."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def url(self, path: str = "/200") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def bodies(self, path: str = "/200") -> list[bytes]:
        return [got.body for got in self.requests if got.path == path]

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def handler(destination: Destination) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            got = Got(self.command, self.path, headers, body, self.client_address[1])
            destination.requests.append(got)
            first, _, rest = self.path[1:].partition("?")[0].partition("/")
            if first == "hold":
                destination.hold.wait(30)
            status = int(first) if first.isdigit() else 200
            self.send_response(status)
            if 300 < status < 400:
                self.send_header("Location", f"/{rest}")
            if status != 204:
                self.send_header("Content-Length", "6")
            self.end_headers()
            if status != 204:
                self.wfile.write(b"answer")

        do_GET = do_POST = handle_request

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
