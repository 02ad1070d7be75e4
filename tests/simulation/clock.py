"""Virtual time: events in the order of their times."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Clock:
    """Runs scheduled events, without waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = itertools.count()

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (time, next(self._number), call, args))

    def run(self, until: float) -> None:
        """Run all events due before `until`."""
        events = self._events
        while events and events[0][0] < until:
            self.now, _, call, args = heapq.heappop(events)
            call(*args)
        self.now = until
