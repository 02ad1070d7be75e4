"""Bar charts as SVG, readable on light and dark pages. Independent of what the bars mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

WIDTH, LEFT, BAR, GAP, HEAD = 880, 150, 16, 5, 44
PANEL = (WIDTH - LEFT) // 2
LABEL = 80  # space for a figure after its bar
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 }
  .head { font-weight: 600; font-size: 14px }
  .unit { fill: #777 }
  .name { text-anchor: end }
  .bar { fill: #9aa5b1 }
  .ours { fill: #2f6fdd }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd }
    .unit { fill: #999 }
    .bar { fill: #66717d }
    .ours { fill: #6aa2ff }
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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
    ]
    top = 0
    for group in groups:
        parts += _group(group, units, ours, top)
        top += HEAD + len(group.bars) * (BAR + GAP)
    return "\n".join([*parts, "</svg>", ""])


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
