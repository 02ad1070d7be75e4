"""Common parts of reports: the frame of a page, and requests over time as lines.

A page is self-contained, and has a light and a dark theme.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from loadtest.swarm.lines import STYLE, Line
from loadtest.swarm.thresholds import PERCENTILES
from loadtest.swarm.timeline import Timeline
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


def document(title: str, heading: str, head: str, sections: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark"><style>'
        f"{CSS}{STYLE}{DARK}</style></head><body><main><h1>{escape(heading)}</h1>"
        f"<p>{escape(head)}</p>{''.join(sections)}</main></body></html>\n"
    )


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
