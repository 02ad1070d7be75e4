"""A worker's heartbeat, which shows the arbiter that the worker's hub runs, and how busy it is.

Owns the timer and the measurement. Writes to the worker's slot in shared memory. Independent of
the worker's tasks.
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

import gevent

PERIOD = 0.5  # seconds between heartbeats
ENTERED = 1  # the state that a worker writes to its slot
_SCHEDSTAT = "/proc/thread-self/schedstat"


class Slot(Protocol):
    """Snapshot of one worker's slot."""

    @property
    def pid(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def beat(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def far_consumers(self) -> int: ...


class Slots(Protocol):
    """The slots in shared memory, one per worker."""

    @property
    def workers(self) -> int: ...
    def view(self, worker: int) -> Slot: ...
    def enter(self, worker: int, pid: int, state: int) -> None: ...
    def beat(self, worker: int, now: int, busy: int, ran: int, connections: int) -> None: ...
    def reset(self, worker: int) -> int: ...


class Heartbeat:
    """Writes a worker's heartbeat and load to its slot, with a timer on its hub."""

    def __init__(self, slots: Slots, worker: int, connections: Callable[[], int]) -> None:
        self._slots = slots
        self._worker = worker
        self._connections = connections
        self._meter = LoadMeter()
        self._timer = gevent.get_hub().loop.timer(PERIOD, PERIOD)

    def start(self) -> None:
        """Write the first heartbeat immediately, then one per PERIOD."""
        self._slots.enter(self._worker, os.getpid(), ENTERED)
        self._beat()
        self._timer.start(self._beat)

    def _beat(self) -> None:
        now = time.monotonic_ns()
        busy, ran = self._meter.permille(now)
        self._slots.beat(self._worker, now, busy, ran, self._connections())


class LoadMeter:
    """Measures the fraction of the last second for which this thread was busy, and for which it
    ran.

    A thread is busy while it runs or waits for a CPU, because workers that share too few CPUs would
    otherwise appear idle. If the kernel does not report waiting time, only running time counts.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self._samples: list[tuple[int, int, int]] = []

    def permille(self, now: int) -> tuple[int, int]:
        """Return the busy and the running fraction of the second before `now`, 0 to 1000 each."""
        self._samples.append((now, *self._times()))
        while len(self._samples) > 2 and now - self._samples[1][0] >= 1_000_000_000:
            del self._samples[0]
        (began, *first), (_, *last) = self._samples[0], self._samples[-1]
        elapsed = max(1, now - began)
        busy, ran = (
            max(0, min(1000, (now - then) * 1000 // elapsed))
            for then, now in zip(first, last, strict=True)
        )
        return busy, ran

    def _times(self) -> tuple[int, int]:
        """Return the nanoseconds for which this thread has been busy, and for which it has run."""
        if self._fd < 0:
            running = time.thread_time_ns()
            return running, running
        running, waiting, _ = map(int, os.pread(self._fd, 64, 0).split())
        return running + waiting, running
