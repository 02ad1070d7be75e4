"""When a user's requests are due: by the clock, whatever became of those before.

A user who waits for a slow answer is late with the next request, and that counts: latencies are
taken from when a request was due. Otherwise a server that stands still for ten seconds would show
one slow request, and not all those that nobody could make meanwhile (coordinated omission).
"""


class Pace:
    """The due times of one user, `rate` a second; 0: each as soon as the one before is answered.

    The time is the caller's. `phase` of 0 to 1 moves the first one by that share of an interval,
    so that users that start together do not all send at the same moments.
    """

    def __init__(self, rate: float, now: float, phase: float = 0.0) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._begin = now + phase * self._interval
        self._taken = 0

    def wait(self, now: float) -> float:
        """Seconds until the next request is due."""
        return max(0.0, self._due - now) if self._interval else 0.0

    def take(self, now: float) -> float:
        """When the request that is made now was due."""
        if not self._interval:
            return now
        due = self._due
        self._taken += 1
        return min(due, now)

    @property
    def _due(self) -> float:
        return self._begin + self._taken * self._interval
