"""Due times of a user's requests: a schedule that does not depend on earlier requests.

A user that waits for a slow response is late with the next request, and this lateness is measured:
latencies start at the due time. Otherwise a server that stalls for ten seconds would show one slow
request instead of all the requests that could not be sent in the meantime (coordinated omission).
"""


class Pace:
    """The due times of one user, `rate` per second; with 0, each request is due when the previous
    one is answered.

    The caller provides the time. `phase`, from 0 to 1, delays the first due time by that share of
    an interval, so that users that start together do not all send at the same time.
    """

    def __init__(self, rate: float, now: float, phase: float = 0.0) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._begin = now + phase * self._interval
        self._taken = 0

    def wait(self, now: float) -> float:
        """Return the seconds until the next request is due."""
        return max(0.0, self._due - now) if self._interval else 0.0

    def take(self, now: float) -> float:
        """Return the due time of the current request."""
        if not self._interval:
            return now
        due = self._due
        self._taken += 1
        return min(due, now)

    @property
    def _due(self) -> float:
        return self._begin + self._taken * self._interval
