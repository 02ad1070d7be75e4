"""Rates from two samples of a channel's counters.

Pure functions, used where counters are sampled: by nsqd for /stats, and by programs that query an
nsqd twice because it does not report rates. Independent of the source of the counters.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Counts(NamedTuple):
    """A channel's counters. `backlog`: messages waiting or in flight."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    timed_out: int = 0
    backlog: int = 0


class Rates(NamedTuple):
    """Messages per second. `growth` is the growth of the backlog; negative if it shrinks."""

    received: float = 0.0
    finished: float = 0.0
    requeued: float = 0.0
    timed_out: float = 0.0
    growth: float = 0.0


def between(before: Counts, after: Counts, seconds: float) -> Rates | None:
    """Return the mean rates between two samples; None if a counter decreased, because the channel
    was recreated or its nsqd restarted."""
    grown = [late - early for early, late in zip(before, after, strict=True)]
    if seconds <= 0 or min(grown[:-1]) < 0:
        return None
    return Rates(*[each / seconds for each in grown])


def per_second(before: int, after: int, seconds: float) -> float | None:
    """Return the rate of a single counter; None if it decreased."""
    return (after - before) / seconds if seconds > 0 and after >= before else None


def total(rates: Iterable[Rates | None]) -> Rates | None:
    """Sum the rates of several nodes; None if a node's rates are unknown."""
    known = list(rates)
    if not known or None in known:
        return None
    return Rates(*map(sum, zip(*filter(None, known), strict=True)))


def drain_seconds(depth: int, growth: float) -> float | None:
    """Return the time until a queue is empty at the current rate; None if it does not shrink."""
    if not depth:
        return 0.0
    return depth / -growth if growth < 0 else None
