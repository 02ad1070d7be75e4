"""What topics, channels and nodes were like in the last hours: what is kept, and how it is read.

Pure: times are handed in, seconds of a clock that only goes forward. One thread adds and others
read. Memory is bounded: rings of a fixed size and of single precision, and at most MAX_SERIES of
them. Where there is more to keep, nodes go before topics and channels, and of these the busiest. A
row of a ring is a number for each of METRICS, NaN where it is not known; a tick is the number of a
step.
"""

import math
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Subject(NamedTuple):
    """What figures are of: a node; or a topic on all nodes, or one of its channels."""

    node: str = ""
    topic: str = ""
    channel: str = ""


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
            aggregate(self._fine.read(place, begin, begin + self._fold), name in RATES)
            for place, name in enumerate(METRICS)
        ]
        self._coarse.write(coarse, row)

    def fine(self, metric: str, begin: int, end: int) -> "array[float]":
        return self._fine.read(METRICS.index(metric), begin, end)

    def coarse(self, metric: str, begin: int, end: int) -> "array[float]":
        return self._coarse.read(METRICS.index(metric), begin, end)


def aggregate(values: Sequence[float], is_rate: bool) -> float:
    """Several steps as one; what is not known is left out."""
    known = [each for each in values if each == each]
    if not known:
        return UNKNOWN
    return sum(known) / len(known) if is_rate else max(known)


MAX_SERIES = 2048
FINE = 3600.0  # seconds that are kept step by step
COARSE_STEP = 60.0  # seconds that are one step of all that is older
_HASTE = 0.02  # how much of a series' activity is that of its latest step
_BUSIER = 2.0  # a newcomer replaces a series that is this many times less busy


class Window(NamedTuple):
    """Figures over a time: `columns` by metric, a number a step, NaN where it is not known."""

    start: float
    step: float
    columns: Mapping[str, "array[float]"]


class History:
    def __init__(self, step: float, length: float, maximum: int = MAX_SERIES) -> None:
        """Seconds between two samples, and how many of them are kept."""
        self.step = step
        self.length = length
        self.maximum = maximum
        self._fold = max(1, round(COARSE_STEP / step))
        self._fine = max(1, round(min(length, max(FINE, step)) / step))
        self._coarse = max(1, round(length / (step * self._fold)))
        self._series: dict[Subject, Series] = {}
        self._origin = 0.0  # half a step before the first sample, so that none is between two steps
        self._tick = -1
        self._lock = threading.Lock()

    @property
    def bytes_each(self) -> int:
        """Of a series."""
        return Series.size(self._fine, self._coarse)

    @property
    def series(self) -> int:
        """How many there are."""
        return len(self._series)

    def add(self, now: float, rows: Mapping[Subject, list[float]]) -> None:
        """A sample. Two of the same step are one: the first."""
        if self._tick < 0:
            self._origin = now - self.step / 2
        tick = int((now - self._origin) / self.step)
        if tick <= self._tick:
            return
        with self._lock:
            if tick // self._fold != self._tick // self._fold:
                self._make_room(tick, rows)
            self._tick = tick
            self._admit(rows)
            for subject, series in self._series.items():
                row = rows.get(subject)
                if row is not None:
                    series.write(tick, row)
                    series.activity += _HASTE * (_activity(row) - series.activity)

    def _admit(self, rows: Mapping[Subject, list[float]]) -> None:
        """New ones, as long as there is room."""
        room = self.maximum - len(self._series)
        if room <= 0:
            return
        new = [each for each in rows if each not in self._series]
        if len(new) > room:
            new.sort(key=lambda each: (not each.node, -_activity(rows[each])))
        for subject in new[:room]:
            series = Series(self._fine, self._coarse, self._fold)
            series.activity = _activity(rows[subject])
            self._series[subject] = series

    def _make_room(self, tick: int, rows: Mapping[Subject, list[float]]) -> None:
        """Forget what is older than all that is kept, and what is much less busy than others that
        are not kept yet."""
        oldest = tick - round(self.length / self.step)
        for subject in [key for key, each in self._series.items() if each.last < oldest]:
            del self._series[subject]
        new = {each: _activity(row) for each, row in rows.items() if each not in self._series}
        if len(self._series) + len(new) <= self.maximum:
            return
        calm = sorted(
            (key for key in self._series if not key.node),
            key=lambda key: self._series[key].activity,
        )
        busy = sorted(new, key=lambda key: (not key.node, -new[key]))
        for newcomer, leaving in zip(busy, calm, strict=False):
            threshold = self._series[leaving].activity * _BUSIER
            if not newcomer.node and new[newcomer] <= threshold:
                break
            del self._series[leaving]

    # Reading

    def read(self, subject: Subject, now: float, seconds: float, maximum: int = 0) -> Window | None:
        """The last seconds of all metrics; None of what is not kept. Of more steps than `maximum`
        several are one."""
        return self._read(subject, now, seconds, maximum, METRICS)

    def read_one(
        self, subject: Subject, metric: str, now: float, seconds: float, maximum: int
    ) -> "array[float] | None":
        """The same of one metric."""
        window = self._read(subject, now, seconds, maximum, (metric,))
        return window and window.columns[metric]

    def _read(
        self, subject: Subject, now: float, seconds: float, maximum: int, metrics: tuple[str, ...]
    ) -> Window | None:
        with self._lock:
            series = self._series.get(subject)
            if series is None:
                return None
            is_fine = seconds <= self._fine * self.step
            step = self.step if is_fine else self.step * self._fold
            read = series.fine if is_fine else series.coarse
            # The step that is under way is not over yet, unless it has its sample.
            end = self._tick + 1 if is_fine else self._tick // self._fold
            end = max(end, int((now - self._origin) / step))
            count = max(1, round(seconds / step))
            columns = {name: read(name, end - count, end) for name in metrics}
        over = self._origin + end * step
        if maximum and count > maximum:
            fold = -(-count // maximum)
            columns = {name: _folded(each, fold, name) for name, each in columns.items()}
            step *= fold
        return Window(over - len(columns[metrics[0]]) * step, step, columns)


def _folded(values: "array[float]", fold: int, metric: str) -> "array[float]":
    """So many as one each, counted from the latest."""
    is_rate = metric in RATES
    begin = len(values) % fold
    pieces = [values[:begin]] if begin else []
    pieces += [values[place : place + fold] for place in range(begin, len(values), fold)]
    total = sum(values)
    if total == total and not begin:  # all of it is known, as it mostly is: there is a quicker way
        return array("f", [sum(each) / fold for each in pieces] if is_rate else map(max, pieces))
    return array("f", [aggregate(piece, is_rate) for piece in pieces])


def _activity(row: list[float]) -> float:
    """Messages that came and went in a second."""
    return sum(each for each in row[:2] if each == each)
