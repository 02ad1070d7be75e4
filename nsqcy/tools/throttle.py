"""So many a second, and no more.

Reads no clock: a moment is seconds from its caller.
"""


class Throttle:
    """A balance that begins at 1, gains `rate` a second up to `rate`, and pays 1 a time."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._balance = 1.0
        self._then = now

    def delay(self, now: float) -> float:
        """Pay for one; seconds to wait before it. Nobody waits when the rate is below 1."""
        if self._rate < 1:
            return 0.0
        gained = (now - self._then) * self._rate
        self._balance = min(self._balance + gained, float(self._rate)) - 1
        self._then = now
        return max(-self._balance / self._rate, 0.0)
