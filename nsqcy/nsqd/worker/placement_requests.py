"""Requests to the master for a topic's owner.

Waits for the answer. `placed` notifies the waiting sessions.
"""

from collections import deque
from collections.abc import Callable

import gevent

from nsqcy.nsqd.process_messages.reports import Place
from nsqcy.nsqd.worker.master_link import MasterLink
from nsqcy.process.control import CallTimeout


class PlacementRequests:
    """Repeats a request until the master answers, then calls `placed(topic, worker)`."""

    def __init__(self, master: MasterLink, placed: Callable[[str, int], None]) -> None:
        self._master = master
        self._placed = placed
        self._wanted: deque[bytes] = deque()
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(self._spawn)

    def begin(self, key: bytes) -> None:
        """Request a topic's owner. Never blocks."""
        self._wanted.append(key)
        self._wake.send()

    def place(self, topic: str) -> None:
        """Return once the owner of a topic is known."""
        while True:
            try:
                worker = self._master.call(Place(topic))
            except CallTimeout:
                continue
            self._placed(topic, worker)
            return

    def _spawn(self) -> None:
        while self._wanted:
            gevent.spawn(self.place, self._wanted.popleft().decode())
