"""Periodic notifications to the service manager: the watchdog, and timeout extensions.

Owns the intervals. Sends the watchdog notification while this hub runs and all children send
heartbeats. Extends the timeout while starting or saving. Independent of the children's tasks.
"""

from collections.abc import Callable
from typing import Any

import gevent

from nsqcy.process.systemd import AGAIN, MORE_TIME, Notifier

PATIENCE = 2.0  # minimum seconds without a heartbeat before a child counts as silent
HASTE = 8  # while a child is silent, check more often by this factor


class Watchdog:
    """Sends the notifications. `silent` returns the children that have sent no heartbeat for N
    ns."""

    def __init__(self, notifier: Notifier, silent: Callable[[int], list[int]]) -> None:
        self._notifier = notifier
        self._silent = silent
        self._status = ""
        self._greenlet: Any = None

    def serve(self, status: str) -> None:
        """Report readiness, then send the watchdog notification at half its interval."""
        self._status = status
        self.stop()
        self._notifier.ready(status)
        if self._notifier.watchdog:
            self._greenlet = gevent.spawn(self._tell_alive, self._notifier.watchdog / 2)

    def prolong(self) -> None:
        """Extend the service manager's timeout until `serve` or `stop`."""
        self.stop()
        if self._notifier.heard:
            self._greenlet = gevent.spawn(self._ask_for_time)

    def stop(self) -> None:
        """Stop the periodic notifications."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def _tell_alive(self, period: float) -> None:
        limit = int(max(period, PATIENCE) * 1e9)
        while True:
            silent = self._silent(limit)
            if not silent:
                self._notifier.status(self._status)
                self._notifier.alive()
            else:
                who = " and ".join(f"worker {index}" for index in silent)
                self._notifier.status(f"no heartbeat: {who}")
            gevent.sleep(period / HASTE if silent else period)

    def _ask_for_time(self) -> None:
        while True:
            if not self._silent(int(MORE_TIME * 1e9)):
                self._notifier.prolong()
            gevent.sleep(AGAIN)
