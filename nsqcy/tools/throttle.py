"""Rate limiter.

Reads no clock: callers pass the time in seconds.
"""


class Throttle:
    """Token bucket: starts with 1 token, gains `rate` per second up to `rate`; each call costs
    1."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._balance = 1.0
        self._then = now

    def delay(self, now: float) -> float:
        """Take one token; return the seconds to wait. With a rate below 1, there is no limit."""
        if self._rate < 1:
            return 0.0
        gained = (now - self._then) * self._rate
        self._balance = min(self._balance + gained, float(self._rate)) - 1
        self._then = now
        return max(-self._balance / self._rate, 0.0)
