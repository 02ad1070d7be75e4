"""Number of users over time: functions of time alone, and the search for the knee.

Independent of locust and clocks.
"""

from collections.abc import Callable
from dataclasses import dataclass

SHAPES = ("steady", "ramp", "soak", "spike", "knee")
CLIMB = 0.1  # share of a soak, at most a minute, in which all users start
CALM = 0.25  # share of the users before and after the spike
SPIKE = (0.4, 0.6)  # start and end, as shares of the time


def users_at(shape: str, elapsed: float, users: int, seconds: float | None) -> int | None:
    """Return the number of users; None: the test is over. `seconds` is None for no end."""
    if seconds is not None and elapsed >= seconds:
        return None
    whole = seconds or 60.0
    share = elapsed / whole
    if shape == "ramp":
        return max(1, round(users * min(1.0, share)))
    if shape == "soak":
        climb = min(60.0, whole * CLIMB)
        return max(1, round(users * min(1.0, elapsed / climb)))
    if shape == "spike" and not SPIKE[0] <= share < SPIKE[1]:
        return max(1, round(users * CALM))
    return users


@dataclass(frozen=True)
class Step:
    """Result of a step with a given number of users."""

    users: int
    rate: float  # messages per second that were published
    p99: float | None  # milliseconds, for the worst request type
    worst: str  # the worst request type
    failures: float  # share of requests

    def told(self) -> str:
        latency = "no latency" if self.p99 is None else f"p99 {self.p99:.4g} ms ({self.worst})"
        return f"{self.users} users, {self.rate:,.0f} msg/s, {latency}, {self.failures:.2%} failed"


class Knee:
    """Adds users step by step until latency or failures exceed a limit: the knee is the last step
    before that. `measure` returns the results between two times of the test."""

    SETTLE = 0.3  # fraction of a step that is not measured

    def __init__(
        self,
        step_users: int,
        step_seconds: float,
        users: int,
        p99: float,
        failures: float,
        measure: Callable[[int, float, float], Step],
    ) -> None:
        self._add, self._seconds, self._maximum = step_users, step_seconds, users
        self._p99, self._failures = p99, failures
        self._measure = measure
        self._users = min(step_users, users)
        self._begun: float | None = None
        self.steps: list[Step] = []
        self.crossed = ""  # why the last step exceeded a limit; empty if none did

    @property
    def knee(self) -> Step | None:
        """The last step within the limits; None if there is none."""
        good = self.steps[:-1] if self.crossed else self.steps
        return good[-1] if good else None

    def tick(self, elapsed: float) -> int | None:
        """Return the current number of users; None: the search is over."""
        if self._begun is None:
            self._begun = elapsed
        if elapsed < self._begun + self._seconds:
            return self._users
        step = self._measure(self._users, self._begun + self.SETTLE * self._seconds, elapsed)
        self.steps.append(step)
        self.crossed = self._why(step)
        if self.crossed or self._users >= self._maximum:
            return None
        self._users = min(self._users + self._add, self._maximum)
        self._begun = elapsed
        return self._users

    def _why(self, step: Step) -> str:
        if step.failures > self._failures:
            return f"{step.failures:.2%} of requests failed (at most {self._failures:.2%})"
        if step.p99 is None:
            return "nothing was answered"
        if step.p99 > self._p99:
            return f"p99 of {step.worst} was {step.p99:.4g} ms (at most {self._p99:g} ms)"
        return ""

    def told(self) -> str:
        if not self.steps:
            return "no step has ended"
        last = self.steps[-1]
        if not self.crossed:
            return f"not reached: {last.told()}"
        if self.knee is None:
            return f"below {last.users} users: {self.crossed}"
        return f"{self.knee.told()}; with {last.users} users {self.crossed}"
