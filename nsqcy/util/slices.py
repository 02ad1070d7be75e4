"""Long work on a hub, one slice per turn.

Greenlets that sleep for zero seconds continue before the loop polls, sometimes for many
milliseconds. With this module, one greenlet continues each time the loop polls.
"""

from collections import deque

import gevent
from gevent.hub import Waiter


class Turns:
    """Greenlets that are waiting for their own turn of this hub's loop."""

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
