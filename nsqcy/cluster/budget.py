"""Memory budget of a process for large responses of other daemons.

A response counts while it is read and while its values are in use; decoded values count with an
estimate of their size. Small responses do not count, so large responses delay only each other.
Thread-safe.
"""

import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from nsqcy.errors import RequestError

FREE = 1 << 20  # bytes of each response that are not counted
MAX_MEMORY = 512 << 20  # maximum bytes of all large responses together
MAX_OBJECTS = 500_000  # maximum objects and arrays in a large response
MAX_VALUES = 4_000_000
OBJECT, VALUE = 400, 40  # estimated bytes of a decoded object or array, and of a value in it


class Bounds(NamedTuple):
    """Maximum size of a response."""

    bytes: int
    objects: int = MAX_OBJECTS
    values: int = MAX_VALUES


UNBOUNDED = Bounds(sys.maxsize)


class Budget:
    def __init__(self, maximum: int = MAX_MEMORY) -> None:
        self.maximum = maximum
        self.used = 0
        self._waiting: list[int] = []  # bytes held by the waiting responses
        # Reentrant, because a garbage collection in this thread may release a lease. Use `with` on
        # the lock, not on the condition: then an exception that interrupts the statement leaves no
        # lock held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def take(self, size: int, held: int, deadline: float) -> None:
        """Wait until this many bytes are available, and take them. held: bytes that the response
        already has. deadline: a time of the monotonic clock. Raises RequestError."""
        with self._lock:
            if self.used + size > self.maximum:
                self._wait(size, held, deadline)
            self.used += size

    def _wait(self, size: int, held: int, deadline: float) -> None:
        """Wait for memory. If responses wait for each other, the largest one fails with
        RequestError."""
        self._waiting.append(held)
        self._changed.notify_all()
        try:
            while self.used + size > self.maximum:
                is_largest = len(self._waiting) > 1 and held == max(self._waiting)
                left = max(0.0, deadline - time.monotonic())
                if is_largest or not self._changed.wait(left):
                    raise RequestError(
                        f"response not read: large responses already use {self.used} of"
                        f" {self.maximum} bytes"
                    )
        finally:
            self._waiting.remove(held)

    def give_back(self, size: int) -> None:
        with self._lock:
            self.used -= size
            self._changed.notify_all()


class Lease:
    """The part of the budget that one response uses, until the last reference to it is gone."""

    def __init__(self, budget: Budget, deadline: float) -> None:
        self._budget = budget
        self._deadline = deadline
        self._size = 0
        self._taken = 0

    def grow(self, size: int) -> None:
        """Raises RequestError."""
        self._size += size
        more = max(0, self._size - FREE) - self._taken
        if more > 0:
            self._budget.take(more, self._taken, self._deadline)
            self._taken += more

    def grow_for(self, body: bytes, bounds: Bounds) -> None:
        """Reserve the memory that a response will need once it is decoded. Raises RequestError."""
        if len(body) <= FREE:
            return
        objects = body.count(b"{") + body.count(b"[")
        values = body.count(b",")
        for what, count, limit in (
            ("objects", objects, bounds.objects),
            ("values", values, bounds.values),
        ):
            if count > limit:
                raise RequestError(f"the response has {count} {what}: the limit is {limit}")
        self.grow(objects * OBJECT + values * VALUE)

    def end(self) -> None:
        taken, self._taken = self._taken, 0
        if taken:
            self._budget.give_back(taken)

    __del__ = end


BUDGET = Budget()  # shared by the whole process
_DECODING = threading.Lock()


def decoding(body: bytes) -> AbstractContextManager[Any]:
    """Return a context for decoding a response. Large responses take turns, because their text may
    temporarily take four times its size."""
    return _DECODING if len(body) > FREE else nullcontext()
