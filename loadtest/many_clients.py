"""Helpers for tests and load tests with many raw connections: threads, commands, topic owners.

Starts no daemon.
"""

import select
import threading
from collections.abc import Callable, Iterable

from nsqcy.nsqd.master.placement import Placement
from nsqcy.testing.wire_client import Conn, sized


def owners(workers: int, names: Iterable[str]) -> dict[str, int]:
    """Return the worker that owns each topic if the topics are created in this order in a new
    daemon."""
    placement = Placement(workers)
    return {name: placement.place(name) for name in names}


def publish(topic: str, body: bytes) -> bytes:
    return b"PUB " + topic.encode() + b"\n" + sized(body)


class Loop:
    """A thread that repeats `step` until it is stopped; `stop` raises the thread's exception, if
    any."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self._halt = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._halt and self._step() is not False:
                pass
        except BaseException as failure:
            self._failure = failure

    def stop(self) -> None:
        self._halt = True
        self.join()

    def join(self, timeout: float = 60.0) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "a thread does not end"
        if self._failure is not None:
            raise self._failure


def send_as_far_as_it_goes(conn: Conn, data: bytes, quiet: float = 0.5) -> int:
    """Send until the socket accepts nothing for a while; return the number of bytes."""
    sent = 0
    conn.socket.setblocking(False)
    while sent < len(data) and select.select([], [conn.socket], [], quiet)[1]:
        sent += conn.socket.send(data[sent : sent + 262144])
    return sent
