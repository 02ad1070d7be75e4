"""Messages that the client's threads have received but the program has not, most urgent first."""

import heapq
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from nsqcy.client.mailbox import Waiters, thread_gate

NOT_PRIORITISED = -1  # urgency of messages that are delivered regardless of the prefetch count


@dataclass(order=True, slots=True)
class Delivery:
    """A message for one channel of kombu. A lower urgency comes first."""

    urgency: int
    number: int
    deliver: Callable[[], bool] = field(compare=False)
    """Passes the message to the program; returns whether there was a consumer."""


class Inbox:
    """Received messages. Each source of messages has its own queue and may refuse to deliver.
    Thread-safe."""

    def __init__(self) -> None:
        # Not a Condition, whose lock an interrupted caller may never release.
        self._lock = threading.RLock()
        self._waiters = Waiters(thread_gate)
        self._numbers = count()
        self._queues: dict[Any, list[Delivery]] = {}
        self._loop: Any = None  # an event loop that delivers the messages, instead of get()
        self._reader: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._is_woken = False  # whether there is a byte to read

    def put(self, source: Any, urgency: int, deliver: Callable[[], bool]) -> None:
        """Add a message of a source, which has an attribute `is_full`."""
        with self._lock:
            delivery = Delivery(urgency, next(self._numbers), deliver)
            heapq.heappush(self._queues.setdefault(source, []), delivery)
        self.wake()

    def wake(self) -> None:
        """Make the program check for messages: there are more, or a source is no longer full."""
        self._waiters.wake_all()
        with self._lock:
            if self._waker is not None and not self._is_woken:
                self._is_woken = True
                with suppress(OSError):
                    self._waker.send(b"\0")

    def get(self, timeout: float | None) -> Delivery | None:
        """Return the most urgent message, or None after a number of seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (found := self._pop()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            self._waiters.wait(self._has_news, left)
        return found

    def _has_news(self) -> bool:
        with self._lock:
            return bool(self._ready())

    def _pop(self) -> Delivery | None:
        with self._lock:
            ready = self._ready()
            if not ready:
                return None
            _, source = min(ready, key=lambda each: each[0])
            return heapq.heappop(self._queues[source])

    def _ready(self) -> list[tuple[Delivery, Any]]:
        """Return the most urgent message of each source that may deliver."""
        return [
            (waiting[0], source)
            for source, waiting in self._queues.items()
            if waiting and (waiting[0].urgency == NOT_PRIORITISED or not source.is_full)
        ]

    def deliver_from(self, loop: Any) -> None:
        """Deliver messages from an event loop of kombu, as soon as they arrive."""
        self.close()
        reader, waker = socket.socketpair()
        reader.setblocking(False)
        waker.setblocking(False)
        loop.add_reader(reader, self._deliver_all, reader)
        with self._lock:
            self._loop, self._reader, self._waker, self._is_woken = loop, reader, waker, False
        self.wake()

    def _deliver_all(self, reader: socket.socket) -> None:
        with suppress(BlockingIOError):
            reader.recv(1)
        with self._lock:
            self._is_woken = False
        while (delivery := self.get(0)) is not None:
            delivery.deliver()

    def close(self) -> None:
        """Leave the event loop, if any."""
        with self._lock:
            loop, reader, waker = self._loop, self._reader, self._waker
            self._loop = self._reader = self._waker = None
        if loop is not None and reader is not None and waker is not None:
            loop.remove(reader)
            reader.close()
            waker.close()
