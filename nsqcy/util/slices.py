"""Long work on a hub, one slice per turn.

Greenlets that sleep for zero seconds continue before the loop polls, sometimes for many
milliseconds. With this module, one greenlet continues each time the loop polls.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

import gevent
from gevent.hub import Waiter

Result = TypeVar("Result")


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


class Slices:
    """Counts units of work, and calls `give_way` after each slice."""

    def __init__(self, give_way: Callable[[], object], size: int) -> None:
        self._give_way = give_way
        self._size = size
        self._left = size

    def step(self) -> None:
        """Called before each unit of work."""
        if self._left == 0:
            self._give_way()
            self._left = self._size
        self._left -= 1

    def end(self) -> None:
        """Called after work that takes as long as a whole slice."""
        self._left = 0


def finish(work: Generator[object, None, Result], give_way: Callable[[], object]) -> Result:
    """Return the result of work that yields after each slice."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
        give_way()
