"""What topics, channels and nodes were like in the last hours: what is kept, and how it is read.

Pure: times are handed in, seconds of a clock that only goes forward. One thread adds and others
read. Memory is bounded: rings of a fixed size, and at most SERIES_MOST of them. Where there is more
to keep, nodes go before topics and channels, and of these the busiest.
"""

import threading
from array import array
from collections.abc import Mapping
from typing import NamedTuple

from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.history_rings import METRICS, RATES, Series, together

SERIES_MOST = 2048
FINE = 3600.0  # seconds that are kept step by step
COARSE_STEP = 60.0  # seconds that are one step of all that is older
_HASTE = 0.02  # how much of a series' activity is that of its latest step
_BUSIER = 2.0  # so many times as busy is who takes another's place


class Window(NamedTuple):
    """Figures over a time: `columns` by metric, a number a step, NaN where it is not known."""

    start: float
    step: float
    columns: Mapping[str, "array[float]"]


class History:
    def __init__(self, step: float, length: float, most: int = SERIES_MOST) -> None:
        """Seconds between two samples, and how many of them are kept."""
        self.step = step
        self.length = length
        self.most = most
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
        room = self.most - len(self._series)
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
        if len(self._series) + len(new) <= self.most:
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

    def read(self, subject: Subject, now: float, seconds: float, most: int = 0) -> Window | None:
        """The last seconds of all metrics; None of what is not kept. Of more steps than `most`
        several are one."""
        return self._read(subject, now, seconds, most, METRICS)

    def read_one(
        self, subject: Subject, metric: str, now: float, seconds: float, most: int
    ) -> "array[float] | None":
        """The same of one metric."""
        window = self._read(subject, now, seconds, most, (metric,))
        return window and window.columns[metric]

    def _read(
        self, subject: Subject, now: float, seconds: float, most: int, metrics: tuple[str, ...]
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
        if most and count > most:
            fold = -(-count // most)
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
    return array("f", [together(piece, is_rate) for piece in pieces])


def _activity(row: list[float]) -> float:
    """Messages that came and went in a second."""
    return sum(each for each in row[:2] if each == each)
