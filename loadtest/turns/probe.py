"""A gevent loop that records its longest iteration in CPU time.

gevent creates it in every process of a daemon that runs with GEVENT_LOOP=loadtest.turns.probe.Loop;
the daemon itself is unchanged. CPU time of the loop's thread does not include waiting, neither in
the poll nor for a CPU. Each process writes to its own file in the directory NSQCY_TURNS.
"""

import mmap
import os
import struct
import time
from pathlib import Path

from gevent.libev.corecext import loop

DIRECTORY = "NSQCY_TURNS"
FIELDS = struct.Struct("=QQ")  # iterations, and ns of the longest one
_FIRST = 2  # libev's highest priority: before all other watchers


class Loop(loop):  # type: ignore[misc]
    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        path = Path(os.environ[DIRECTORY]) / str(os.getpid())
        with path.open("w+b") as file:
            file.truncate(FIELDS.size)
            self._figures = mmap.mmap(file.fileno(), FIELDS.size)
        self._since = time.thread_time_ns()
        self._check = self.check(priority=_FIRST)
        self._check.start(self._on_polled)

    def _on_polled(self) -> None:
        """Handle the end of a poll: the time since the previous one is one iteration."""
        now = time.thread_time_ns()
        turns, longest = FIELDS.unpack_from(self._figures)
        FIELDS.pack_into(self._figures, 0, turns + 1, max(longest, now - self._since))
        self._since = now
