"""History plots of one subject, and sparklines in tables.

Pure: computes paths and strings from the history and a time; templates/plots.html draws them. Plots
work without scripts; a script adds readouts of values and live updates. Unknown values are gaps. A
plot is stretched to fit its box: lines keep their width, and text is outside the stretched area.

No plotting library is used, because the available ones need a canvas or a browser, and a plot here
is only two SVG lines.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from nsqcy.config.durations import SECOND
from nsqcy.nsqadmin.history.store import History, Subject, Window
from nsqcy.nsqadmin.html import formatting
from nsqcy.nsqadmin.html.formatting import amount, rate

_STEPS = (1.0, 2.0, 5.0, 10.0)


def scale_top(values: Iterable[float], minimum: float) -> float:
    """Return the top of the scale: a round number no smaller than the maximum value."""
    maximum = max((each for each in values if each == each), default=0.0)
    if maximum <= minimum:
        return minimum
    unit = 1.0
    while unit * 10 < maximum:
        unit *= 10
    while unit > maximum:
        unit /= 10
    return next(unit * step for step in _STEPS if unit * step >= maximum * 0.999999)


def line_path(values: Sequence[float], top: float, width: int, height: int) -> str:
    """Return the `d` of an SVG path from left to right, with 0 at the bottom. A value between two
    gaps is a dot."""
    pieces: list[str] = []
    scale = height / top
    stride = width / max(1, len(values) - 1)
    is_open = False
    for place, value in enumerate(values):
        if value != value:
            is_open = False
            continue
        x, y = round(place * stride), height - round(min(value, top) * scale)
        if is_open:
            pieces.append(f"L{x} {y}")
        else:
            pieces.append(f"M{x} {y}h0")  # a line of length zero still shows its round caps
            is_open = True
    return "".join(pieces)


FRAMES = {"15m": 900, "1h": 3600, "6h": 21600, "12h": 43200, "24h": 86400, "48h": 172800}
FRAME = "1h"
START = "start"  # the time frame since nsqadmin's first sample
YOUNG = 900  # seconds
_MIN_SECONDS = 60
_CURRENT_STEPS = 3  # a value older than this is not current
_RECENT = 60.0  # seconds
SPARK = 900  # seconds shown by a sparkline
MAX_POINTS = 360
_SPARK_POINTS = 30
SPARK_BOX = 58, 16
BOX = 720, 160
_LABELS = 3  # sections of the time axis


@dataclass(frozen=True)
class Chart:
    """A kind of plot. unit: how scripts format values. minimum: smallest value for the top of the
    scale."""

    title: str
    unit: str
    minimum: float
    show: Callable[[float], str]
    lines: Sequence[tuple[str, str]]  # metric and label
    is_optional: bool = False  # omitted if all values are unknown


def _time(value: float) -> str:
    return formatting.duration(value * SECOND)


CHARTS = (
    Chart("Throughput", "rate", 1.0, rate, (("in", "In"), ("out", "Out"))),
    Chart("Depth", "count", 10.0, amount, (("depth", "Depth"),)),
    Chart(
        "In flight and deferred",
        "count",
        10.0,
        amount,
        (("in_flight", "In flight"), ("deferred", "Deferred")),
    ),
    Chart("Errors", "rate", 1.0, rate, (("requeued", "Requeued"), ("timed_out", "Timed out"))),
    Chart("Latency", "time", 0.001, _time, (("latency", "Slowest percentile"),), True),
)


_BACKLOG = Chart("Backlog", "count", 10.0, amount, (("depth", "Backlog"),))


def charts(subject: Subject) -> list[Chart]:
    """Return the charts for a subject. Depth is a figure of one queue. The corresponding figure of
    a topic, a node or the cluster includes all its channels, and is called the backlog."""
    if subject.channel:
        return [*CHARTS]
    return [_BACKLOG if each.title == "Depth" else each for each in CHARTS]


@dataclass(frozen=True)
class Line:
    """One line in a plot. d: its path. latest: the formatted latest value. values: for scripts."""

    name: str
    d: str
    latest: str
    values: str


@dataclass(frozen=True)
class Plot:
    """One plot. scale: labels of the y axis, from the top."""

    title: str
    unit: str
    spoken: str
    scale: Sequence[str]
    lines: Sequence[Line]


@dataclass(frozen=True)
class Section:
    """All plots for a subject. start: seconds since the epoch. ago: labels of the time axis."""

    plots: Sequence[Plot]
    start: str
    step: str
    ago: Sequence[str]


@dataclass(frozen=True)
class Plots:
    """Plots of a history. now: seconds on the history's clock. since_epoch: the wall clock's offset
    from it. Without a history, nothing is drawn."""

    history: History | None
    now: float
    since_epoch: float
    chosen: str = ""

    def __bool__(self) -> bool:
        return self.history is not None

    # In tables

    def spark(self, subject: Subject, metric: str, seconds: int = SPARK) -> str:
        """Return the path of a sparkline for the last minutes; empty if no value is known."""
        if self.history is None:
            return ""
        values = self.history.read_one(subject, metric, self.now, seconds, _SPARK_POINTS)
        return "" if values is None else line_path(values, scale_top(values, 1.0), *SPARK_BOX)

    def latest(self, subject: Subject, metric: str) -> float | None:
        """Return the current value; None if unknown."""
        known = self._last(subject, metric)
        return known[-1] if known else None

    def recent(self, subject: Subject, metric: str) -> float | None:
        """Return the mean of the last minute; None if unknown."""
        known = self._last(subject, metric, _RECENT)
        return fmean(known) if known else None

    def _last(self, subject: Subject, metric: str, seconds: float = 0.0) -> list[float]:
        """Return the known values of the last `seconds`, and at least the current ones."""
        if self.history is None:
            return []
        span = max(seconds, _CURRENT_STEPS * self.history.step)
        values = self.history.read_one(subject, metric, self.now, span, 0)
        return [each for each in values or () if each == each]

    # In a separate section

    def section(self, subject: Subject) -> Section | None:
        """Return all plots for a subject; None if no value is known."""
        if self.history is None:
            return None
        seconds = self._seconds
        window = self.history.read(subject, self.now, seconds, MAX_POINTS)
        if window is None:
            return None
        now = {metric: self.latest(subject, metric) for metric in window.columns}
        drawn = [plot for chart in charts(subject) if (plot := _plot(chart, window, now))]
        start = f"{window.start + self.since_epoch:.3f}"
        return Section(drawn, start, f"{window.step:g}", _times(seconds))

    @property
    def frames(self) -> list[str]:
        length = self.history.length if self.history else 0.0
        return [name for name, seconds in FRAMES.items() if seconds <= length] + [START]

    @property
    def frame(self) -> str:
        """The chosen time range, if the history is long enough. The default for a short history is
        all of it."""
        is_young = self.history is not None and self.history.age(self.now) < YOUNG
        usual = START if is_young else FRAME
        return next(each for each in (self.chosen, usual, *self.frames) if each in self.frames)

    @property
    def _seconds(self) -> int:
        if self.frame != START or self.history is None:
            return FRAMES[self.frame]
        return max(_MIN_SECONDS, math.ceil(self.history.age(self.now)))


def _plot(chart: Chart, window: Window, now: Mapping[str, float | None]) -> Plot | None:
    columns = [window.columns[metric] for metric, _ in chart.lines]
    if chart.is_optional and not any(value == value for column in columns for value in column):
        return None
    top = scale_top((value for column in columns for value in column), chart.minimum)
    lines = [
        Line(
            name,
            line_path(column, top, *BOX),
            _shown(chart, now[metric]),
            ",".join("" if each != each else f"{each:.6g}" for each in column),
        )
        for (metric, name), column in zip(chart.lines, columns, strict=True)
    ]
    scale = [chart.show(each) for each in (top, top / 2, 0.0)]
    return Plot(chart.title, chart.unit, _spoken(chart, lines, columns), scale, lines)


def _shown(chart: Chart, value: float | None) -> str:
    return "–" if value is None else chart.show(value)


def _spoken(chart: Chart, lines: Sequence[Line], columns: Sequence[Sequence[float]]) -> str:
    """Describe the chart in words, for screen readers."""
    parts = []
    for line, column in zip(lines, columns, strict=True):
        known = [each for each in column if each == each]
        now = "unknown" if line.latest == "–" else line.latest
        maximum = f"maximum {chart.show(max(known))}" if known else "maximum unknown"
        parts.append(f"{line.name}: {now} now, {maximum}")
    return f"{chart.title}. {'; '.join(parts)}"


def _times(seconds: int) -> list[str]:
    """Return relative labels, because the reader's time zone may differ from this machine's."""
    parts = [seconds * (_LABELS - place) // _LABELS for place in range(_LABELS)]
    return [*(f"−{_ago(each)}" for each in parts), "now"]


def _ago(seconds: int) -> str:
    minutes = seconds // 60
    if seconds % 60:
        return formatting.span(seconds)
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"
