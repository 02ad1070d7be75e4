"""Rings of numbers: what one subject's figures were at each step of the last while.

Pure. A row is a number for each of METRICS, NaN where it is not known. Rings are of a fixed size
and of single precision: 4 bytes a number, whatever it is. What time it is, is the affair of others:
a tick is the number of a step.
"""

import math
from array import array
from collections.abc import Sequence

METRICS = (
    *("in", "out"),  # messages a second
    *("depth", "in_flight", "deferred"),  # messages
    *("requeued", "timed_out"),  # messages a second
    "latency",  # seconds from publish to finish
)
# Of several steps together a rate is their mean, and anything else its greatest.
RATES = frozenset({"in", "out", "requeued", "timed_out"})

UNKNOWN = math.nan
_WIDTH = len(METRICS)
_EMPTY = array("f", [UNKNOWN]) * _WIDTH
_ITEM = _EMPTY.itemsize


class Ring:
    """The rows of the last `slots` ticks. Ticks only grow; one that was left out is not known."""

    __slots__ = ("_last", "_slots", "_values")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._values = _EMPTY * slots
        self._last = -1

    def write(self, tick: int, row: Sequence[float]) -> None:
        if self._last >= 0:
            for skipped in range(max(self._last + 1, tick - self._slots + 1), tick):
                self._put(skipped, _EMPTY)
        self._put(tick, array("f", row))
        self._last = tick

    def _put(self, tick: int, row: "array[float]") -> None:
        begin = tick % self._slots * _WIDTH
        self._values[begin : begin + _WIDTH] = row

    def read(self, metric: int, begin: int, end: int) -> "array[float]":
        """The numbers of a metric from tick `begin` to the one before `end`."""
        first = max(begin, self._last - self._slots + 1, 0)
        last = min(end, self._last + 1)
        if first >= last:
            return array("f", [UNKNOWN]) * (end - begin)
        column = self._values[metric::_WIDTH]
        here, there = first % self._slots, (last - 1) % self._slots + 1
        known = column[here:there] if here < there else column[here:] + column[:there]
        before = array("f", [UNKNOWN]) * (first - begin)
        return before + known + array("f", [UNKNOWN]) * (end - last)


class Series:
    """One subject: a ring of steps, and one in which `fold` of them are one."""

    __slots__ = ("_coarse", "_fine", "_fold", "_folded", "activity", "last")

    def __init__(self, fine: int, coarse: int, fold: int) -> None:
        self._fine = Ring(fine)
        self._coarse = Ring(coarse)
        self._fold = fold
        self._folded = -1
        self.last = -1
        self.activity = 0.0  # messages a second of late, which says how soon it makes way

    @staticmethod
    def size(fine: int, coarse: int) -> int:
        """Bytes of the rings."""
        return (fine + coarse) * _WIDTH * _ITEM

    def write(self, tick: int, row: Sequence[float]) -> None:
        """A row of a tick later than all before."""
        coarse = tick // self._fold
        if self.last >= 0 and coarse != self.last // self._fold:
            self._close(self.last // self._fold)
        self._fine.write(tick, row)
        self.last = tick

    def _close(self, coarse: int) -> None:
        begin = coarse * self._fold
        row = [
            together(self._fine.read(place, begin, begin + self._fold), name in RATES)
            for place, name in enumerate(METRICS)
        ]
        self._coarse.write(coarse, row)

    def fine(self, metric: str, begin: int, end: int) -> "array[float]":
        return self._fine.read(METRICS.index(metric), begin, end)

    def coarse(self, metric: str, begin: int, end: int) -> "array[float]":
        return self._coarse.read(METRICS.index(metric), begin, end)


def together(values: Sequence[float], is_rate: bool) -> float:
    """Several steps as one; what is not known is left out."""
    known = [each for each in values if each == each]
    if not known:
        return UNKNOWN
    return sum(known) / len(known) if is_rate else max(known)
