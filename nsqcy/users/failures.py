"""Failed log-ins by address: a bounded in-memory table whose entries expire.

The caller supplies the clock. Thread-safe.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

MAX_FAILURES = 10  # maximum failures from one address before it must wait
RECOVERY = 10.0  # seconds after which one failure is forgotten
MAX_ADDRESSES = 10_000


class Failures:
    """Leaky bucket of failed log-ins per address.

    An address that fails occasionally never waits. An address that fails continuously may try once
    per RECOVERY seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # time when all failures are forgotten
        self._empty_at: OrderedDict[str, float] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return the seconds until the address may try again; 0 if it may now."""
        with self._lock:
            empty_at = self._empty_at.get(address, 0.0)
        return max(0.0, empty_at - self._clock() - (MAX_FAILURES - 1) * RECOVERY)

    def add(self, address: str) -> float:
        """Count a failure. If the address has to wait, count nothing, and return the seconds."""
        now = self._clock()
        with self._lock:
            empty_at = max(self._empty_at.get(address, now), now) + RECOVERY
            wait = empty_at - now - MAX_FAILURES * RECOVERY
            if wait > 0:
                return wait
            self._empty_at[address] = empty_at
            self._empty_at.move_to_end(address)
            while len(self._empty_at) > MAX_ADDRESSES:
                self._empty_at.popitem(last=False)
        return 0.0
