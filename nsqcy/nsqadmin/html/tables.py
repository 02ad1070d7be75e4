"""Tables that can be sorted by any column.

Pure: computes headings and the order of rows; templates/macros.html draws both.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from markupsafe import Markup, escape

from nsqcy.cluster.latency import Latency, Percentile
from nsqcy.cluster.stats import ChannelStats, ClientStats, TopicStats
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.formatting import percent
from nsqcy.nsqadmin.html.location import Location, Value, slug
from nsqcy.nsqadmin.html.plots import Plots

_WIDE = 6  # columns

Row = TypeVar("Row")
Columns = Sequence[tuple[str, Callable[[Row], Value]]]  # title and sort key


@dataclass(frozen=True)
class Heading:
    """A column heading. href: link that sorts by the column or reverses the order; empty if the
    table cannot be sorted. order: ascending or descending, for the column by which the table is
    sorted."""

    title: str
    href: str = ""
    order: str = ""


@dataclass(frozen=True)
class Table(Generic[Row]):
    """A table. names: row names, by which scripts identify rows; empty for an unnamed row."""

    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Row]
    names: Sequence[str]

    @property
    def is_wide(self) -> bool:
        """Whether the table does not fit on a phone, and columns can be hidden."""
        return len(self.headings) >= _WIDE


def table(
    caption: str, columns: Columns[Row], rows: Iterable[Row], location: Location | None = None
) -> Table[Row]:
    """Return a table. The first column names the row. With a location, the table is sorted as the
    location's parameters request, and each heading links to the table sorted by that column."""
    rows = list(rows)
    headings = [Heading(title) for title, _ in columns]
    if location is not None and rows:
        headings = [
            heading(location, title, is_text=isinstance(value(rows[0]), str))
            for title, value in columns
        ]
        by = next((value for title, value in columns if slug(title) == location.sorted_by), None)
        if by is not None:
            rows = location.arranged(rows, by)
    names = [name if isinstance(name := columns[0][1](row), str) else "" for row in rows]
    return Table(caption, headings, rows, names)


def heading(location: Location, title: str, *, is_text: bool = False) -> Heading:
    name = slug(title)
    if name != location.sorted_by:
        return Heading(title, location.link(sort=name))
    other = name if location.is_reversed else f"-{name}"
    order = "ascending" if is_text != location.is_reversed else "descending"
    return Heading(title, location.link(sort=other), order)


_CELL = re.compile(r"<td>(0</td>)?")


def labelled(cells: str, headings: Sequence[Heading]) -> Markup:
    """Return a row's cells with their headings as labels, for phones, where a row is a card. Cards
    omit a cell whose value is 0."""
    titles = (each.title for each in headings[1:])  # the first cell names the row

    def put(cell: re.Match[str]) -> str:
        kind = ' class="zero"' if cell[1] else ""
        return f'<td data-label="{escape(next(titles, ""))}"{kind}>{cell[1] or ""}'

    return Markup(_CELL.sub(put, cells))


def unsorted(row: object) -> str:
    """Sort key for a column that does not affect the order."""
    return ""


# Columns that several tables share


DEPTHS: Columns[TopicStats | ChannelStats] = [
    ("Depth", lambda row: row.figures.depth),
    ("Memory + Disk", lambda row: row.figures.backend_depth),
]
CHANNEL: Columns[ChannelStats] = [
    *DEPTHS,
    ("In-Flight", lambda row: row.figures.in_flight_count),
    ("Deferred", lambda row: row.figures.deferred_count),
    ("Requeued", lambda row: row.figures.requeue_count),
    ("Timed Out", lambda row: row.figures.timeout_count),
    ("Messages", lambda row: row.figures.message_count),
    ("Connections", lambda row: row.figures.client_count),
]

CLIENT_COUNTS: Columns[ClientStats] = [
    ("In-Flight", lambda row: row.in_flight_count),
    ("Ready Count", lambda row: row.ready_count),
    ("Finished", lambda row: row.finish_count),
    ("Requeued", lambda row: row.requeue_count),
    ("Messages", lambda row: row.message_count),
]


def rates(plots: Plots, subject: Callable[[Row], Subject], *metrics: str) -> Columns[Row]:
    """Return the columns of current rates, such as `Rate In` for `in`; none without a history."""

    def value(metric: str, row: Row) -> Value:
        return plots.latest(subject(row), metric) or 0.0

    return [(f"Rate {each.title()}", partial(value, each)) for each in metrics if plots]


class Times:
    """Latency columns: one for each quantile that occurs."""

    def __init__(self, latencies: Iterable[Latency | None]) -> None:
        self._quantiles = list(
            dict.fromkeys(
                each.quantile
                for latency in latencies
                for each in (latency and latency.percentiles) or ()
            )
        )

    @property
    def columns(self) -> Columns[TopicStats | ChannelStats]:
        return [
            (percent(quantile), partial(self._value, place))
            for place, quantile in enumerate(self._quantiles)
        ]

    def of(self, latency: Latency | None) -> list[Percentile | None]:
        """Return the percentiles by column; None if nothing was measured."""
        measured = latency.percentiles if latency and latency.count else None
        known = {each.quantile: each for each in measured or ()}
        return [known.get(quantile) for quantile in self._quantiles]

    def _value(self, place: int, row: TopicStats | ChannelStats) -> Value:
        found = self.of(row.latency)[place]
        return "" if found is None else found.max
