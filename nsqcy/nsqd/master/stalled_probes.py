"""Answers /ready and /live in place of the workers while all of them hang or are stopped.

Workers serve HTTP, so a health check of an nsqd without a running worker would otherwise wait until
it times out. Reads the beginning of a request without consuming it: the workers get every other
connection unchanged. Serves plain HTTP only.
"""

import socket
from collections.abc import Callable, Sequence

import gevent
from gevent.socket import wait_read

from nsqcy.process.handoff import Accepted

MAX_PENDING = 16
REQUEST_TIMEOUT = 1.0  # seconds within which a request must arrive
PROBES = tuple(
    f"{method} {path}{end}".encode()
    for method in ("GET", "HEAD")
    for path in ("/live", "/ready")
    for end in (" ", "?")
)
MAX_REQUEST = 64 << 10


class StalledProbes:
    """Reads the requests on some new connections, and answers probes."""

    def __init__(self) -> None:
        self._pending = 0

    @property
    def is_reading(self) -> bool:
        """Whether any connection is neither answered nor given to a worker yet."""
        return self._pending > 0

    def take(
        self, item: Accepted, workers: Sequence[int], give: Callable[[list[Accepted]], None]
    ) -> bool:
        """Take a connection that no worker would serve now; return False if there are too many.
        `give` gets the connection if its request is not a probe."""
        if item.kind != "http" or self._pending >= MAX_PENDING:
            return False
        self._pending += 1
        gevent.spawn(self._serve, item, workers, give)
        return True

    def _serve(
        self, item: Accepted, workers: Sequence[int], give: Callable[[list[Accepted]], None]
    ) -> None:
        try:
            is_answered = _answered(item.sock, workers)
        except OSError:  # the client has gone, or sends nothing
            is_answered = False
        finally:
            self._pending -= 1
        if is_answered:
            item.sock.close()
        else:
            give([item])


def _answered(sock: socket.socket, workers: Sequence[int]) -> bool:
    wait_read(sock.fileno(), REQUEST_TIMEOUT, TimeoutError())
    if not sock.recv(32, socket.MSG_PEEK | socket.MSG_DONTWAIT).startswith(PROBES):
        return False
    # Closing a socket with unread data would reset the connection and discard the response.
    request = sock.recv(MAX_REQUEST, socket.MSG_DONTWAIT)
    body = "".join(f"worker {each} does not answer\n" for each in workers).rstrip().encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    sock.send(head.encode() + (b"" if request.startswith(b"HEAD") else body), socket.MSG_DONTWAIT)
    return True
