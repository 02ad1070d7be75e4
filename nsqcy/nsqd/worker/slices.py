"""Long work on a hub, one slice a turn.

A greenlet that sleeps for no time continues before the loop has polled, for milliseconds on end.
Here one greenlet at a time continues, once each time the loop polls.
"""

from collections import deque

import gevent
from gevent.hub import Waiter


class Turns:
    """Greenlets that wait for their own turn of this hub's loop."""

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()
        self._next = gevent.get_hub().loop.async_()
        self._next.start(self._resume)

    def wait(self) -> None:
        """Return in a turn in which no other waiting greenlet continues."""
        waiter = Waiter()
        self._waiting.append(waiter)
        self._next.send()
        waiter.get()

    def _resume(self) -> None:
        if self._waiting:
            self._waiting.popleft().switch(None)
        if self._waiting:
            self._next.send()
