"""Selection of the destination for the next message.

Owns the health and speed of destinations, which are numbered in command-line order. Independent of
the kind of destination. Reads no clock: callers pass the time in seconds.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

HOSTPOOL, EPSILON_GREEDY, ROUND_ROBIN, MULTICAST = MODES = (
    "hostpool",
    "epsilon-greedy",
    "round-robin",
    "multicast",
)

FIRST_RETRY, LAST_RETRY = 30.0, 900.0  # seconds until a dead destination is retried

FIRST_EPSILON, LAST_EPSILON, EPSILON_DECAY = 0.3, 0.01, 0.9
BUCKETS = 120
BUCKET_SECONDS = 300.0 / BUCKETS


class Chooser(Protocol):
    """Chooses destinations and learns from the results."""

    def choose(self, now: float) -> Sequence[int]:
        """Return the destinations for the next message, in order."""

    def succeeded(self, destination: int, now: float, took: float) -> None: ...

    def failed(self, destination: int, now: float) -> None: ...


def chooser(mode: str, count: int, random: Callable[[], float]) -> Chooser:
    """Return the chooser for one of MODES. random: returns a number in [0, 1)."""
    if mode == HOSTPOOL:
        return HostPool(count)
    if mode == EPSILON_GREEDY:
        return EpsilonGreedy(count, random)
    if mode == ROUND_ROBIN:
        return RoundRobin(count)
    assert mode == MULTICAST, mode
    return Multicast(count)


class Multicast:
    """Sends every message to all destinations."""

    def __init__(self, count: int) -> None:
        self._all = range(count)

    def choose(self, now: float) -> Sequence[int]:
        return self._all

    def succeeded(self, destination: int, now: float, took: float) -> None:
        pass

    def failed(self, destination: int, now: float) -> None:
        pass


class RoundRobin:
    """Rotates through all destinations, dead or alive."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def choose(self, now: float) -> Sequence[int]:
        chosen = self._next
        self._next = (chosen + 1) % self._count
        return (chosen,)

    def succeeded(self, destination: int, now: float, took: float) -> None:
        pass

    def failed(self, destination: int, now: float) -> None:
        pass


class _Health:
    """The health of a destination: alive, or dead until its next retry."""

    __slots__ = ("dead", "delay", "due")

    def __init__(self) -> None:
        self.dead = False
        self.delay = FIRST_RETRY
        self.due = 0.0

    def may_be_tried(self, now: float) -> bool:
        return not self.dead or self.due <= now

    def try_it(self, now: float) -> None:
        """Record that the destination was chosen. If it is dead, double the time until its next
        retry."""
        if self.dead:
            self.delay = min(2 * self.delay, LAST_RETRY)
            self.due = now + self.delay

    def fail(self, now: float) -> None:
        if not self.dead:
            self.dead = True
            self.delay = FIRST_RETRY
            self.due = now + FIRST_RETRY


class HostPool:
    """Rotates through the destinations that are alive."""

    def __init__(self, count: int) -> None:
        self._health = [_Health() for _ in range(count)]
        self._next = 0

    def choose(self, now: float) -> Sequence[int]:
        return (self._rotate(now),)

    def succeeded(self, destination: int, now: float, took: float) -> None:
        self._health[destination].dead = False

    def failed(self, destination: int, now: float) -> None:
        self._health[destination].fail(now)

    def _rotate(self, now: float) -> int:
        count = len(self._health)
        for step in range(count):
            chosen = (self._next + step) % count
            if self._health[chosen].may_be_tried(now):
                self._health[chosen].try_it(now)
                break
        else:  # all are dead: try any destination
            for each in self._health:
                each.dead = False
            chosen = 0
        self._next = (chosen + 1) % count
        return chosen


class EpsilonGreedy(HostPool):
    """Prefers fast destinations; sometimes takes the next in rotation, to measure its speed."""

    def __init__(self, count: int, random: Callable[[], float]) -> None:
        super().__init__(count)
        self._random = random
        self._epsilon = FIRST_EPSILON
        self._speeds = [_Speed() for _ in range(count)]

    def choose(self, now: float) -> Sequence[int]:
        if self._random() < self._epsilon:
            self._epsilon = max(self._epsilon * EPSILON_DECAY, LAST_EPSILON)
            return (self._rotate(now),)
        weights = self._weights(now)
        if not weights:
            return (self._rotate(now),)
        chosen = self._draw(weights)
        self._health[chosen].try_it(now)
        return (chosen,)

    def succeeded(self, destination: int, now: float, took: float) -> None:
        super().succeeded(destination, now, took)
        self._speeds[destination].add(now, took)

    def _weights(self, now: float) -> dict[int, float]:
        """Return the weights of the destinations that may be tried and have a known speed."""
        weights = {}
        for destination, health in enumerate(self._health):
            mean = self._speeds[destination].mean(now)
            if mean > 0 and health.may_be_tried(now):
                weights[destination] = 1 / mean
        return weights

    def _draw(self, weights: dict[int, float]) -> int:
        left = self._random() * sum(weights.values())
        for destination, weight in weights.items():
            left -= weight
            if left < 0:
                return destination
        return destination


class _Speed:
    """Response times of the last five minutes; later ones have more weight."""

    __slots__ = ("_counts", "_last", "_sums")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._sums = [0.0] * BUCKETS
        self._last = -1  # bucket number since the start of the clock

    def add(self, now: float, took: float) -> None:
        self._turn(now)
        self._counts[self._last % BUCKETS] += 1
        self._sums[self._last % BUCKETS] += took

    def mean(self, now: float) -> float:
        """Return the weighted mean in seconds; 0 if unknown. An empty bucket counts like the bucket
        before it."""
        self._turn(now)
        total = weights = latest = 0.0
        for age in reversed(range(BUCKETS)):
            bucket = (self._last - age) % BUCKETS
            if self._counts[bucket]:
                latest = self._sums[bucket] / self._counts[bucket]
            if latest:
                weight = (BUCKETS - age) / BUCKETS
                total += weight * latest
                weights += weight
        return total / weights if weights else 0.0

    def _turn(self, now: float) -> None:
        current = int(now / BUCKET_SECONDS)
        for number in range(max(self._last, current - BUCKETS) + 1, current + 1):
            self._counts[number % BUCKETS] = 0
            self._sums[number % BUCKETS] = 0.0
        self._last = max(self._last, current)
