"""Common parts of reports: the frame of a page, and line plots of requests over time.

A page is self-contained, and has a light and a dark theme.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from loadtest.soak.lines import STYLE, Line
from loadtest.soak.timeline import PERCENTILES, Timeline
from nsqcy.pipeline.plots import CSS

DARK = """
@media (prefers-color-scheme: dark) {
  body { background: #14171b; color: #dfe4ea }
  section { background: #1c2127; border-color: #2c333b }
  p, th { color: #98a2ad } th, td { border-color: #2c333b }
}
.missed { color: #c8423b; font-weight: 600 }
"""

Figures = dict[str, Any]


def write(path: Path, page: str, figures: Figures) -> None:
    """Write a page and, next to it, its figures as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    path.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")


def document(
    title: str, heading: str, begun: float, seconds: float, about: str, sections: Sequence[str]
) -> str:
    head = f"{datetime.fromtimestamp(begun, UTC):%Y-%m-%d %H:%M:%S} UTC, {seconds:,.0f} s, {about}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark"><style>'
        f"{CSS}{STYLE}{DARK}</style></head><body><main><h1>{escape(heading)}</h1>"
        f"<p>{escape(head)}</p>{''.join(sections)}</main></body></html>\n"
    )


def columns(rows: Sequence[tuple[str, ...]], left: int = 1) -> list[str]:
    """Return the lines of a table for a terminal; `left`: number of left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def channels(accounts: Iterable[Figures], names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the head and the rows of a table of channels."""
    rows = [
        (f"{each['topic']}/{each['channel']}", *(f"{each[name]:,}" for name in names))
        for each in accounts
    ]
    return [("channel", *(name.replace("_", " ") for name in names)), *rows]


def escaped(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [tuple(map(escape, row)) for row in rows]


def by_kind(timeline: Timeline, begun: float) -> dict[str, list[Figures]]:
    """Return the figures for each span of the timeline, by request type."""
    found: dict[str, list[Figures]] = {}
    span = timeline.span
    for (second, kind), cell in sorted(timeline.kinds().items()):
        found.setdefault(kind, []).append(
            {
                "second": second - begun,
                "rate": cell.messages / span,
                "failures": cell.failures / span,
                **{each: cell.percentile(PERCENTILES[each]) for each in ("p50", "p99")},
            }
        )
    return found


def lines_of(kinds: dict[str, list[Figures]], figure: str, span: int) -> list[Line]:
    """Return a line for each request type, with gaps where there were no requests."""
    return [Line(kind, _points(rows, figure, span)) for kind, rows in kinds.items()]


def _points(rows: Sequence[Figures], figure: str, span: int) -> list[tuple[float, float | None]]:
    points: list[tuple[float, float | None]] = []
    for row in rows:
        if points and row["second"] - points[-1][0] > 1.5 * span:
            points.append((points[-1][0] + span, None))
        points.append((max(0.0, row["second"]), row[figure]))
    return points
