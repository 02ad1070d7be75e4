"""Line plots over time as SVG, in the style of loadtest.bench.chart. Independent of what they
show."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from loadtest.bench.chart import STYLE as TEXT
from loadtest.bench.chart import WIDTH, short

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 210, 64, 14, 44, 24
COLORS = ("#2f6fdd", "#e08a1e", "#2f9e6e", "#c8423b", "#7b5ea7", "#8c6d4f", "#cc79a7", "#8a929c")
DARK = ("#6aa2ff", "#ffb257", "#5ac79b", "#ff7b72", "#b394e0", "#c9a98a", "#eaa0cc", "#aab2bc")
TICKS_Y, TICKS_X = 4, 8
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)

Point = tuple[float, float | None]  # seconds; value, or None if there is none


def _strokes(colors: Sequence[str]) -> str:
    return "\n".join(f"  .c{at} {{ stroke: {color} }}" for at, color in enumerate(colors))


STYLE = f"""{TEXT}
  .line {{ fill: none; stroke-width: 1.5; stroke-linejoin: round }}
  .grid {{ stroke: #8883; fill: none }}
  .mark {{ stroke: #c8423b55; fill: none }}
  .tick {{ fill: #777; font-size: 11px }}
  .high {{ text-anchor: end }}
  .wide {{ text-anchor: middle }}
{_strokes(COLORS)}
  @media (prefers-color-scheme: dark) {{
    .tick {{ fill: #999 }}
{_strokes(DARK)}
  }}
"""


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Panel:
    """Lines over the same time span. A logarithmic scale cannot show zero. `marks`: times of
    events, in seconds."""

    title: str
    unit: str
    lines: Sequence[Line]
    logarithmic: bool = False
    marks: Sequence[float] = ()


def svg(panel: Panel, seconds: float) -> str:
    """Draw one panel from 0 to this number of seconds; the page must include STYLE."""
    values = [value for line in panel.lines for _, value in line.points if value is not None]
    axis = _Logarithmic(values) if panel.logarithmic else _Linear(values)
    span = max(1.0, seconds)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f'<text class="head" x="0" y="14">{escape(panel.title)}'
            f'<tspan class="unit" dx="8">{escape(panel.unit)}</tspan></text>',
            *_legend(panel.lines),
            *_grid(axis, span),
            *(_mark(each, span) for each in panel.marks),
            *(_line(line, at, axis, span) for at, line in enumerate(panel.lines)),
            "</svg>",
        ]
    )


class _Linear:
    """An axis from zero to a round number above all values."""

    def __init__(self, values: Iterable[float]) -> None:
        step = round_up(max(values, default=0.0) / TICKS_Y or 1.0)
        self.ticks = [step * number for number in range(TICKS_Y + 1)]

    def share(self, value: float) -> float:
        return value / self.ticks[-1]


class _Logarithmic:
    """Whole decades."""

    def __init__(self, values: Iterable[float]) -> None:
        there = [value for value in values if value > 0] or [1.0]
        self._low = math.floor(math.log10(min(there)))
        self._high = max(self._low + 1, math.ceil(math.log10(max(there))))
        self.ticks = [10.0**power for power in range(self._low, self._high + 1)]

    def share(self, value: float) -> float:
        power = math.log10(value) if value > 0 else self._low
        return (power - self._low) / (self._high - self._low)


def round_up(value: float) -> float:
    """Return the next of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= value * (1 - 1e-9))


def _x(second: float, span: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * second / span


def _y(axis: _Linear | _Logarithmic, value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * axis.share(value)


def _legend(lines: Sequence[Line]) -> Iterable[str]:
    x = LEFT
    for at, line in enumerate(lines):
        yield f'<path class="line c{at % len(COLORS)}" d="M{x} 30h14"/>'
        yield f'<text class="tick" x="{x + 18}" y="34">{escape(line.name)}</text>'
        x += 34 + 6 * len(line.name)


def _grid(axis: _Linear | _Logarithmic, span: float) -> Iterable[str]:
    for tick in axis.ticks:
        y = _y(axis, tick)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        name = short(tick) if tick else "0"
        yield f'<text class="tick high" x="{LEFT - 6}" y="{y + 4:.1f}">{name}</text>'
    step = next((each for each in STEPS if span / each <= TICKS_X), STEPS[-1])
    for number in range(int(span / step) + 1):
        x = _x(number * step, span)
        yield f'<text class="tick wide" x="{x:.1f}" y="{HEIGHT - 6}">{clock(number * step)}</text>'


def _mark(second: float, span: float) -> str:
    return f'<path class="mark" d="M{_x(min(second, span), span):.1f} {TOP}V{HEIGHT - BOTTOM}"/>'


def _line(line: Line, at: int, axis: _Linear | _Logarithmic, span: float) -> str:
    """Draw a line with gaps where there is no value; an isolated point becomes a dot."""
    words, before = [], False
    for second, value in line.points:
        if value is not None:
            place = f"{_x(min(second, span), span):.1f} {_y(axis, value):.1f}"
            words.append(f"L{place}" if before else f"M{place}h0.1")
        before = value is not None
    return f'<path class="line c{at % len(COLORS)}" d="{"".join(words)}"/>'


def clock(seconds: int) -> str:
    """`45 s`, `1:30`, `2:00:00`."""
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
