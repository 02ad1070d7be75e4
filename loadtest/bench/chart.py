"""Charts of bars and lines as SVG, readable on light and dark pages. Independent of what they
mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import NamedTuple

WIDTH, LEFT, BAR, GAP, HEAD = 880, 150, 16, 5, 44
PANEL = (WIDTH - LEFT) // 2
LABEL = 80  # space for a figure after its bar
SIDE, PLOT = 200, 64  # width and height of the lines of a panel
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .head { font-weight: 600; font-size: 14px }
  .unit { fill: #777 }
  .name { text-anchor: end }
  .bar { fill: #9aa5b1 }
  .ours { fill: #2f6fdd }
  .line { fill: none; stroke: #2f6fdd; stroke-width: 2 }
  .axis { stroke: #9aa5b1 }
  .last { text-anchor: end }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd }
    .unit { fill: #999 }
    .bar { fill: #66717d }
    .ours { fill: #6aa2ff }
    .line { stroke: #6aa2ff }
  }
"""


class Bar(NamedTuple):
    """A name with one bar in the left panel and one in the right panel."""

    name: str
    figures: tuple[float, float]


@dataclass
class Group:
    """The bars for one kind of work."""

    title: str
    bars: Sequence[Bar]


def short(value: float) -> str:
    """Format a number with three digits, and a letter for thousands or millions."""
    for size, letter in ((1e6, " M"), (1e3, " k"), (1, "")):
        if value >= size:
            digits = max(0, 2 - len(str(int(value / size))) + 1)
            return f"{value / size:.{digits}f}{letter}"
    return f"{value:.2f}"


def svg(groups: Sequence[Group], units: tuple[str, str], ours: str) -> str:
    height = sum(HEAD + len(group.bars) * (BAR + GAP) for group in groups) + GAP
    parts = _head(height)
    top = 0
    for group in groups:
        parts += _group(group, units, ours, top)
        top += HEAD + len(group.bars) * (BAR + GAP)
    return "\n".join([*parts, "</svg>", ""])


def _head(height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
    ]


class Line(NamedTuple):
    """A name, and points with one figure for each panel."""

    name: str
    points: Sequence[tuple[float, tuple[float, ...]]]


def lines(rows: Sequence[Line], units: Sequence[str]) -> str:
    """Return a row of panels for each line. Both axes are logarithmic; the vertical one covers at
    least a factor of 10, so that noise looks flat."""
    height = HEAD + len(rows) * (PLOT + HEAD)
    parts = _head(height)
    for side, unit in enumerate(units):
        parts.append(f'<text class="unit" x="{_left(side, units)}" y="18">{escape(unit)}</text>')
    for row, line in enumerate(rows):
        y = HEAD + row * (PLOT + HEAD)
        parts.append(f'<text class="head" x="0" y="{y + PLOT / 2}">{escape(line.name)}</text>')
        for side in range(len(units)):
            points = [(x, figures[side]) for x, figures in line.points]
            parts += _line(points, _left(side, units), y)
    return "\n".join([*parts, "</svg>", ""])


def _left(side: int, units: Sequence[str]) -> int:
    return LEFT + 30 + side * (WIDTH - LEFT - 30) // len(units)


def _line(points: Sequence[tuple[float, float]], left: int, top: int) -> list[str]:
    xs, ys = ([log10(point[axis]) for point in points] for axis in range(2))
    wide, middle = max(xs) - min(xs) or 1.0, (max(ys) + min(ys)) / 2
    high = max(max(ys) - min(ys), 1.0)
    places = [
        (left + (x - min(xs)) / wide * SIDE, top + (0.5 - (y - middle) / high) * PLOT)
        for x, y in zip(xs, ys, strict=True)
    ]
    floor = top + PLOT + 4
    parts = [f'<path class="axis" d="M{left} {floor}h{SIDE}"/>']
    parts.append(
        f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
    )
    parts += [f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
    for at, kind in ((0, "first"), (-1, "last")):
        x, y = places[at]
        parts.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y - 7:.1f}">{short(points[at][1])}</text>'
        )
        quantity = short(points[at][0]).replace(".00", "").replace(".0", "")
        parts.append(f'<text class="unit {kind}" x="{x:.1f}" y="{floor + 14}">{quantity}</text>')
    return parts


def _group(group: Group, units: tuple[str, str], ours: str, top: int) -> list[str]:
    parts = [f'<text class="head" x="{LEFT}" y="{top + 18}">{escape(group.title)}</text>']
    for side, unit in enumerate(units):
        at = LEFT + side * PANEL
        parts.append(f'<text class="unit" x="{at}" y="{top + 36}">{escape(unit)}</text>')
    largest = [max(bar.figures[side] for bar in group.bars) or 1.0 for side in range(2)]
    for row, bar in enumerate(group.bars):
        y = top + HEAD + row * (BAR + GAP)
        kind = "bar ours" if bar.name == ours else "bar"
        parts.append(f'<text class="name" x="{LEFT - 8}" y="{y + 12}">{escape(bar.name)}</text>')
        for side in range(2):
            at = LEFT + side * PANEL
            width = max(1.0, bar.figures[side] / largest[side] * (PANEL - LABEL))
            parts.append(
                f'<rect class="{kind}" x="{at}" y="{y}" width="{width:.1f}" height="{BAR}"/>'
                f'<text x="{at + width + 6:.1f}" y="{y + 12}">{short(bar.figures[side])}</text>'
            )
    return parts
