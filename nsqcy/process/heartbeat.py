"""The beat of a worker: how the arbiter knows that its hub still turns, and how busy it is.

Owns the timer and the measuring; the slot they are written to is a part of the memory all
processes share. Knows nothing of what the worker does.
"""

import os
import time
from collections.abc import Callable
from typing import Protocol

import gevent

PERIOD = 0.5  # seconds between beats
ENTERED = 1  # the state a worker writes into its slot
_SCHEDSTAT = "/proc/thread-self/schedstat"


class Slot(Protocol):
    """One worker's slot, as it was when it was looked at."""

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


class Slots(Protocol):
    """The slots of the memory all processes share, one a worker."""

    def view(self, worker: int) -> Slot: ...
    def enter(self, worker: int, pid: int, state: int) -> None: ...
    def beat(self, worker: int, now: int, busy: int, connections: int) -> None: ...
    def reset(self, worker: int) -> int: ...


class Heartbeat:
    """Writes a worker's beat and load into its slot, by a timer on its own hub."""

    def __init__(self, slots: Slots, worker: int, connections: Callable[[], int]) -> None:
        self._slots = slots
        self._worker = worker
        self._connections = connections
        self._meter = BusyMeter()
        self._timer = gevent.get_hub().loop.timer(PERIOD, PERIOD)

    def start(self) -> None:
        """Beat once now, and from now on."""
        self._slots.enter(self._worker, os.getpid(), ENTERED)
        self._beat()
        self._timer.start(self._beat)

    def _beat(self) -> None:
        now = time.monotonic_ns()
        busy = self._meter.permille(now)
        self._slots.beat(self._worker, now, busy, self._connections())


class BusyMeter:
    """What part of the last second this thread wanted a CPU: running, or waiting to run.

    Waiting counts, or workers that share too few CPUs would all look idle. Where the kernel does
    not tell, running alone must do.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self._samples: list[tuple[int, int]] = []

    def permille(self, now: int) -> int:
        """0 to 1000, over the second before `now`."""
        self._samples.append((now, self._wanted()))
        while len(self._samples) > 2 and now - self._samples[1][0] >= 1_000_000_000:
            del self._samples[0]
        began, wanted = self._samples[0]
        elapsed = now - began
        if elapsed <= 0:
            return 0
        return max(0, min(1000, (self._samples[-1][1] - wanted) * 1000 // elapsed))

    def _wanted(self) -> int:
        if self._fd < 0:
            return time.thread_time_ns()
        running, waiting, _ = os.pread(self._fd, 64, 0).split()
        return int(running) + int(waiting)
