"""What a service manager hears of us over time: that we live, or that we need longer.

Owns the rhythm. It is told that we live while this hub turns and all children beat; that starting
and saving go on, while they do. Knows nothing of what children do.
"""

from collections.abc import Callable
from typing import Any

import gevent

from nsqcy.process.service import AGAIN, MORE_TIME, Notifier

PATIENCE = 2.0  # seconds without a beat that mean nothing, however short the manager's own are
HASTE = 8  # after a silence we look so much more often, lest one missed beat be the end


class Watchdog:
    """`silent` gives the children that have not beaten for so many nanoseconds."""

    def __init__(self, notifier: Notifier, silent: Callable[[int], list[int]]) -> None:
        self._notifier = notifier
        self._silent = silent
        self._status = ""
        self._greenlet: Any = None

    def serve(self, status: str) -> None:
        """Ready. From now on tell that we live, in half of the time that is allowed."""
        self._status = status
        self.stop()
        self._notifier.ready(status)
        if self._notifier.watchdog:
            self._greenlet = gevent.spawn(self._tell_alive, self._notifier.watchdog / 2)

    def prolong(self) -> None:
        """From now on, until something else is said: what is going on takes its time."""
        self.stop()
        if self._notifier.heard:
            self._greenlet = gevent.spawn(self._ask_for_time)

    def stop(self) -> None:
        """Say nothing more by ourselves."""
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
