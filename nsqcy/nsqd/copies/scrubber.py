"""Background verification of a worker's copies: reads their files at a limited rate, and lets each
copy repair damaged parts.

Determines the order and the pace, independently of the groups' roles and of the source of intact
data.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import gevent

from nsqcy.nsqd.copies.mending import Pace

PAUSE = 60.0  # seconds between two passes over all copies


class Scrubbed(Protocol):
    """A copy on this node (`nsqcy.nsqd.copies.copy_files.CopyFiles`)."""

    def scrubbed_paths(self) -> list[str]: ...
    def scrub(self, path: str, pace: Pace, done: Callable[[], object]) -> None: ...


class Scrubber:
    """Passes over all copies, one file after another."""

    def __init__(
        self,
        rate: int,
        copies: Callable[[], Iterable[Scrubbed]],
        kick: Callable[[], object],
        pause: float = PAUSE,
    ) -> None:
        """
        rate: bytes per second; 0 turns the scrubber off
        kick: submits the requested operations to the I/O threads
        """
        self._rate = rate
        self._copies = copies
        self._kick = kick
        self._pause = pause
        self._queue: deque[tuple[Scrubbed, str]] = deque()
        self._timer: gevent.Greenlet[..., object] | None = None
        if rate:
            self._after(pause, self._next)

    def stop(self) -> None:
        self._rate = 0
        if self._timer is not None:
            self._timer.kill()

    def _next(self) -> None:
        if not self._queue:
            for copy in self._copies():
                self._queue.extend((copy, path) for path in copy.scrubbed_paths())
        if not self._queue:
            self._after(self._pause, self._next)
            return
        copy, path = self._queue.popleft()
        copy.scrub(path, self._paced, self._done)
        self._kick()

    def _done(self) -> None:
        self._after(0.0 if self._queue else self._pause, self._next)

    def _paced(self, size: int, call: Callable[[], object]) -> None:
        def run() -> None:
            call()
            self._kick()

        self._after(size / self._rate if self._rate else 0.0, run)

    def _after(self, delay: float, call: Callable[[], object]) -> None:
        if self._rate:
            self._timer = gevent.spawn_later(delay, call)
