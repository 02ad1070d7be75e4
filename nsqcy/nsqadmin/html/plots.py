"""The history on pages: plots of one subject, and the small ones in tables.

Pure: a plot is a function of the history and of the time it is made for, and is complete as it
comes; a script in the browser only reads values out and exchanges it for a newer one. Unknown
values are gaps. A plot stretches to its box: lines keep their width, and texts stand beside it, as
they would stretch as well.

No library draws them: those there are need a canvas or a browser, and these are two lines of SVG.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nsqcy.config.durations import SECOND
from nsqcy.nsqadmin.history.store import History, Subject, Window
from nsqcy.nsqadmin.html import formatting
from nsqcy.nsqadmin.html.elements import Cell, Child, Markup, Row, join, tag
from nsqcy.nsqadmin.html.formatting import amount, rate
from nsqcy.nsqadmin.html.location import Location

_STEPS = (1.0, 2.0, 5.0, 10.0)


def scale_top(values: Iterable[float], least: float) -> float:
    """Where the scale of these numbers ends: a round number that none of them is above."""
    most = max((each for each in values if each == each), default=0.0)
    if most <= least:
        return least
    unit = 1.0
    while unit * 10 < most:
        unit *= 10
    while unit > most:
        unit /= 10
    return next(unit * step for step in _STEPS if unit * step >= most * 0.999999)


def line_path(values: Sequence[float], top: float, width: int, height: int) -> str:
    """The d of a path from left to right, 0 at the bottom. A number between two gaps is a dot."""
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
            pieces.append(f"M{x} {y}h0")  # a line of no length has its round ends
            is_open = True
    return "".join(pieces)


FRAMES = {"15m": 900, "1h": 3600, "6h": 21600, "12h": 43200, "24h": 86400, "48h": 172800}
FRAME = "1h"
SPARK = 900  # seconds that the small ones are of
MAX_POINTS = 360
_SPARK_POINTS = 30
_SPARK_BOX = 58, 16
_BOX = 720, 160
_LABELS = 3  # parts that the axis of time is in


@dataclass(frozen=True)
class Chart:
    """`unit` is what a script knows its values by, `least` where its scale ends at least."""

    title: str
    unit: str
    least: float
    show: Callable[[float], str]
    lines: Sequence[tuple[str, str]]  # metric, and what it is called
    is_optional: bool = False  # not there where nothing is known


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


@dataclass(frozen=True)
class Plots:
    """`now` is seconds of the history's clock, `since_epoch` what they are less than those of the
    wall; without a history there is nothing to draw."""

    history: History | None
    now: float
    since_epoch: float
    chosen: str = FRAME

    def __bool__(self) -> bool:
        return self.history is not None

    # In tables

    def spark(self, subject: Subject, metric: str) -> Markup:
        """How a figure was of late; empty where that is not known."""
        if self.history is None:
            return join()
        values = self.history.read_one(subject, metric, self.now, SPARK, _SPARK_POINTS)
        if values is None:
            return join()
        width, height = _SPARK_BOX
        top = scale_top(values, 1.0)
        line = tag("path", d=line_path(values, top, width, height))
        return tag(
            "svg",
            line,
            class_="spark",
            viewBox=f"-1 -1 {width + 2} {height + 2}",
            preserveAspectRatio="none",
            aria_hidden="true",
        )

    def latest(self, subject: Subject, metric: str) -> float | None:
        """What it is now, as far as that is known."""
        if self.history is None:
            return None
        step = self.history.step
        values = self.history.read_one(subject, metric, self.now, 3 * step, 0)
        known = [each for each in values or () if each == each]
        return known[-1] if known else None

    # On a page of its own

    def section(self, location: Location, subject: Subject) -> Markup:
        """All charts of a subject, and the choice of how far they go back."""
        if self.history is None:
            return join()
        seconds = FRAMES[self.frame]
        window = self.history.read(subject, self.now, seconds, MAX_POINTS)
        if window is None:
            return join()
        drawn = [each for chart in CHARTS if (each := self._chart(chart, window, seconds))]
        return tag(
            "section",
            tag(
                "div", tag("h2", "History", id="history"), self._choice(location), class_="heading"
            ),
            tag("div", drawn, class_="plots"),
            aria_labelledby="history",
            class_="history",
        )

    @property
    def frames(self) -> list[str]:
        length = self.history.length if self.history else 0.0
        return [name for name, seconds in FRAMES.items() if seconds <= length] or [FRAME]

    @property
    def frame(self) -> str:
        """The chosen one, if it can be had."""
        return next(each for each in (self.chosen, FRAME, *self.frames) if each in self.frames)

    def _choice(self, location: Location) -> Markup:
        links = [
            tag(
                "a",
                name,
                href=location.link(range=name),
                aria_current="true" if name == self.frame else None,
            )
            for name in self.frames
        ]
        return tag("nav", links, class_="frames", aria_label="Time frame")

    def _chart(self, chart: Chart, window: Window, seconds: int) -> Markup:
        columns = [window.columns[metric] for metric, _ in chart.lines]
        is_known = any(value == value for column in columns for value in column)
        if chart.is_optional and not is_known:
            return join()
        width, height = _BOX
        top = scale_top((value for column in columns for value in column), chart.least)
        lines = [
            tag(
                "path",
                d=line_path(column, top, width, height),
                class_=f"line{place}",
                data_values=",".join("" if each != each else f"{each:.6g}" for each in column),
            )
            for place, column in enumerate(columns)
        ]
        grid = tag(
            "path", d=f"M0 0H{width}M0 {height // 2}H{width}M0 {height}H{width}", class_="grid"
        )
        svg = tag(
            "svg",
            *(grid, lines),
            viewBox=f"0 -2 {width} {height + 4}",
            preserveAspectRatio="none",
            role="img",
            aria_label=_spoken(chart, columns),
        )
        return tag(
            "figure",
            tag("figcaption", tag("b", chart.title), _legend(chart, columns), tag("time")),
            tag("div", [tag("span", chart.show(each)) for each in (top, top / 2, 0.0)], class_="y"),
            tag("div", svg, tag("i"), class_="canvas"),
            tag("div", [tag("span", each) for each in _times(seconds)], class_="x"),
            class_="plot",
            tabindex=0,
            data_start=f"{window.start + self.since_epoch:.3f}",
            data_step=f"{window.step:g}",
            data_unit=chart.unit,
        )


def _legend(chart: Chart, columns: Sequence[Sequence[float]]) -> list[Child]:
    return [
        tag(
            "span",
            *(tag("i", class_=f"line{place}"), name, " ", tag("output", _last(chart, column))),
            class_="key",
        )
        for place, ((_, name), column) in enumerate(zip(chart.lines, columns, strict=True))
    ]


def _last(chart: Chart, column: Sequence[float]) -> str:
    return next((chart.show(each) for each in reversed(column) if each == each), "–")


def _spoken(chart: Chart, columns: Sequence[Sequence[float]]) -> str:
    """The chart in words, for screen readers."""
    parts = []
    for (_, name), column in zip(chart.lines, columns, strict=True):
        known = [each for each in column if each == each]
        most = f"at most {chart.show(max(known))}" if known else "not known"
        parts.append(f"{name}: {_last(chart, column)} now, {most}" if known else f"{name}: {most}")
    return f"{chart.title}. {'; '.join(parts)}"


def _times(seconds: int) -> list[str]:
    """How long ago: whoever reads it may be in another time zone than this machine."""
    parts = [seconds * (_LABELS - place) // _LABELS for place in range(_LABELS)]
    return [*(f"−{_ago(each)}" for each in parts), "now"]


def _ago(seconds: int) -> str:
    minutes = seconds // 60
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"


# Figures with their past


def sparked(cell: Cell, plots: Plots, subject: Subject, metric: str) -> Cell:
    """A figure behind a small plot of it."""
    spark = plots.spark(subject, metric)
    return Cell([spark, " ", cell.shown], cell.value) if spark else cell


def with_spark(cells: Sequence[Child | Cell], plots: Plots, subject: Subject) -> Row:
    """What channel_cells() gives, with a plot of the depth."""
    depth, *others = cells
    assert isinstance(depth, Cell)
    return [sparked(depth, plots, subject, "depth"), *others]


def rate_columns(plots: Plots, metric: str) -> list[str]:
    """`Rate In` or `Rate Out`; nothing without a history."""
    return [f"Rate {metric.title()}"] if plots else []


def rate_cells(plots: Plots, subject: Subject, metric: str) -> list[Cell]:
    if not plots:
        return []
    value = plots.latest(subject, metric)
    cell = Cell("", 0.0) if value is None else Cell(rate(value), value)
    return [sparked(cell, plots, subject, metric)]
