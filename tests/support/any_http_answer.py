"""An HTTP server that answers every request with the same bytes, in threads of the test.

The bytes need not be valid HTTP, JSON, or what the client expects.
"""

import json
import socket
import threading
from contextlib import suppress
from typing import Any, Self


def answer(
    body: bytes, status: int = 200, reason: str = "OK", headers: tuple[str, ...] = ()
) -> bytes:
    """Return a response with this body."""
    lines = [
        f"HTTP/1.1 {status} {reason}",
        "X-NSQ-Content-Type: nsq; version=1.0",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def json_answer(value: Any, status: int = 200) -> bytes:
    return answer(json.dumps(value).encode(), status)


class AnyAnswer:
    """`answer`: the bytes to send, or a function that sends to a socket."""

    def __init__(self, answer: Any = b"") -> None:
        self.answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # the test has ended
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                if not (piece := client.recv(65536)):
                    return
                request += piece
            if callable(self.answer):
                self.answer(client)
            else:
                client.sendall(self.answer)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):  # the rest of the request
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
