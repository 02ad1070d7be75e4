"""Who fails to say who he is: a table in memory, bounded, that forgets with time.

Time is given. Called from several threads.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

MAX_FAILURES = 10  # of one address, before it has to wait
RECOVERY = 10.0  # seconds after which one of them is forgotten
MAX_ADDRESSES = 10_000


class Failures:
    """Addresses that failed to log in, and how long they have to wait before they may try again.

    Each failure is a drop in a bucket that leaks: who fails now and then never waits, and who tries
    all day has one try every RECOVERY seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._empty_at: OrderedDict[str, float] = OrderedDict()  # when all of it is forgotten

    def wait(self, address: str) -> float:
        """Seconds until it may try; 0 for now."""
        with self._lock:
            empty_at = self._empty_at.get(address, 0.0)
        return max(0.0, empty_at - self._clock() - (MAX_FAILURES - 1) * RECOVERY)

    def add(self, address: str) -> None:
        now = self._clock()
        with self._lock:
            empty_at = max(self._empty_at.get(address, now), now) + RECOVERY
            self._empty_at[address] = min(empty_at, now + MAX_FAILURES * RECOVERY)
            self._empty_at.move_to_end(address)
            while len(self._empty_at) > MAX_ADDRESSES:
                self._empty_at.popitem(last=False)
