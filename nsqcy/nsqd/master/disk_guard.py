"""Minimum free space on the data path's disk (--min-free-disk).

Owns the check, which runs once per second in a thread, so that a hung disk does not block the hub.
The callback passes the result on to the workers.
"""

import os
from collections.abc import Callable
from typing import Any

import gevent
from gevent.threadpool import ThreadPool

from nsqcy.logging import events
from nsqcy.logging.types import Lines

PERIOD = 1.0  # seconds


def free_bytes(path: str) -> int:
    """Return the number of bytes available to users other than root."""
    found = os.statvfs(path or ".")
    return found.f_bavail * found.f_frsize


class DiskGuard:
    """Calls `changed` with the reason when writes must be rejected, and with None when they are
    allowed again."""

    def __init__(
        self,
        path: str,
        minimum: int,
        changed: Callable[[str | None], None],
        log: Lines,
        free: Callable[[str], int] = free_bytes,
    ) -> None:
        self.refusal: str | None = None
        self._path = path
        self._minimum = minimum
        self._changed = changed
        self._log = log
        self._free = free
        self._pool = ThreadPool(1, hub=gevent.get_hub())
        self._greenlet: Any = None

    def start(self) -> None:
        """Check now, and then once per period. Waits for the first check."""
        self.look()
        self._greenlet = gevent.spawn(self._watch)

    def restore(self, refusal: str | None) -> None:
        """Continue from the result of the previous version's latest check."""
        self.refusal = refusal
        self._greenlet = gevent.spawn(self._watch)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def look(self) -> None:
        """Check once. Waits for the disk."""
        try:
            short = self._pool.apply(self._free, (self._path,)) < self._minimum
            refusal = f"fewer than {self._minimum} bytes are free on disk" if short else None
        except OSError as error:
            refusal = f"cannot determine the free disk space: {(error.strerror or '').lower()}"
        if refusal == self.refusal:
            return
        self.refusal = refusal
        if refusal is None:
            events.publishes_accepted(self._log)
        else:
            events.publishes_refused(self._log, reason=refusal)
        self._changed(refusal)

    def _watch(self) -> None:
        while True:
            gevent.sleep(PERIOD)
            self.look()
