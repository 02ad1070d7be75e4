"""History storage for topics, channels and nodes.

Pure: callers pass times in seconds on a monotonic clock. One thread writes; other threads read.
Memory is bounded: at most MAX_SERIES series, each with rings of fixed size in single precision. If
there are more subjects, nodes take precedence over topics and channels, and busy topics and
channels over less busy ones. A ring's row has a number for each of METRICS, or NaN if it is
unknown. A tick is a step's number.
"""

import math
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Subject(NamedTuple):
    """Subject of a time series: a node, a topic on all nodes, or one of its channels."""

    node: str = ""
    topic: str = ""
    channel: str = ""


CLUSTER = Subject()
"""All nodes together."""


METRICS = (
    *("in", "out"),  # messages per second
    *("depth", "in_flight", "deferred"),  # messages
    *("requeued", "timed_out"),  # messages per second
    "latency",  # seconds from publish to finish
)
# Several steps are aggregated by their mean for rates, and by their maximum for other metrics.
RATES = frozenset({"in", "out", "requeued", "timed_out"})

UNKNOWN = math.nan
_WIDTH = len(METRICS)
_EMPTY = array("f", [UNKNOWN]) * _WIDTH
_ITEM = _EMPTY.itemsize


class Ring:
    """Rows for the last `slots` ticks. Ticks only increase; a skipped tick is unknown."""

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
        """Return the values of a metric for the ticks from `begin` up to, but excluding, `end`."""
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
    """The series for one subject: a ring of steps, and a ring of aggregates over `fold` steps
    each."""

    __slots__ = ("_coarse", "_fine", "_fold", "_folded", "activity", "last")

    def __init__(self, fine: int, coarse: int, fold: int) -> None:
        self._fine = Ring(fine)
        self._coarse = Ring(coarse)
        self._fold = fold
        self._folded = -1
        self.last = -1
        self.activity = 0.0  # recent messages per second; the least active series is replaced first

    @staticmethod
    def size(fine: int, coarse: int) -> int:
        """Return the bytes of both rings."""
        return (fine + coarse) * _WIDTH * _ITEM

    def write(self, tick: int, row: Sequence[float]) -> None:
        """Write the row for a tick, which must be later than all previous ones."""
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
    """Aggregate several steps into one, ignoring unknown values."""
    known = [each for each in values if each == each]
    if not known:
        return UNKNOWN
    return sum(known) / len(known) if is_rate else max(known)


MAX_SERIES = 2048
FINE = 3600.0  # seconds kept at full resolution
COARSE_STEP = 60.0  # seconds per step of older data
_HASTE = 0.02  # weight of the latest step in a series' activity
_BUSIER = 2.0  # a new subject must be this many times busier to replace a series


class Window(NamedTuple):
    """Figures for a time range. columns: by metric, one number per step, NaN if unknown."""

    start: float
    step: float
    columns: Mapping[str, "array[float]"]


class History:
    def __init__(self, step: float, length: float, maximum: int = MAX_SERIES) -> None:
        """step: seconds between two samples. length: seconds of history. maximum: number of
        series."""
        self.step = step
        self.length = length
        self.maximum = maximum
        self._fold = max(1, round(COARSE_STEP / step))
        self._fine = max(1, round(min(length, max(FINE, step)) / step))
        self._coarse = max(1, round(length / (step * self._fold)))
        self._series: dict[Subject, Series] = {}
        self._origin = 0.0  # half a step before the first sample: samples avoid step boundaries
        self._tick = -1
        self._lock = threading.Lock()

    @property
    def bytes_each(self) -> int:
        """Bytes per series."""
        return Series.size(self._fine, self._coarse)

    def age(self, now: float) -> float:
        """Return the seconds since the first sample, up to the length of the history."""
        return min(self.length, now - self._origin) if self._tick >= 0 else 0.0

    def nodes(self, now: float) -> dict[str, float]:
        """Return the nodes in the history, with the seconds since their latest sample."""
        with self._lock:
            last = {key.node: each.last for key, each in self._series.items() if key.node}
        return {node: now - self._origin - tick * self.step for node, tick in last.items()}

    @property
    def series(self) -> int:
        """Number of series."""
        return len(self._series)

    def add(self, now: float, rows: Mapping[Subject, list[float]]) -> None:
        """Add a sample. If there are several samples in the same step, only the first counts."""
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
        """Add series for new subjects while the limit permits."""
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
        """Drop series with only expired data, and series that are much less busy than new
        subjects."""
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
        """Return all metrics for the last `seconds`; None if the subject has no series. If there
        are more steps than `maximum`, they are aggregated."""
        return self._read(subject, now, seconds, maximum, METRICS)

    def read_one(
        self, subject: Subject, metric: str, now: float, seconds: float, maximum: int
    ) -> "array[float] | None":
        """Return one metric for the last `seconds`; see read()."""
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
            # The current step counts only once it has its sample.
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
    """Aggregate every `fold` values into one, aligned with the latest value."""
    is_rate = metric in RATES
    begin = len(values) % fold
    pieces = [values[:begin]] if begin else []
    pieces += [values[place : place + fold] for place in range(begin, len(values), fold)]
    total = sum(values)
    if total == total and not begin:  # fast path: all values known
        return array("f", [sum(each) / fold for each in pieces] if is_rate else map(max, pieces))
    return array("f", [aggregate(piece, is_rate) for piece in pieces])


def _activity(row: list[float]) -> float:
    """Return the rates of messages in and out, per second."""
    return sum(each for each in row[:2] if each == each)
