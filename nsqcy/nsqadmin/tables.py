"""Tables of figures, and forms that do something: the pieces pages are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from nsqcy.cluster.latency import Latency
from nsqcy.cluster.stats import AnyFigures, ChannelFigures
from nsqcy.nsqadmin import figures
from nsqcy.nsqadmin.here import Here, Value, slug
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.markup import Child, Markup, join, tag
from nsqcy.nsqadmin.plots import Plots, rate


class Cell(NamedTuple):
    """What is shown, and what it is sorted by."""

    shown: Child
    value: Value


Row = Sequence[Child | Cell]
Fields = Sequence[tuple[str, str]]


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    total: Row = (),
    here: Here | None = None,
) -> Markup:
    """The first column names the row; all others are figures, aligned so. With `here` the rows are
    sorted as its user wants, and each heading sorts by its column."""
    rows = list(rows)
    headings = [tag("th", each, scope="col") for each in columns]
    if here is not None and rows:
        are_texts = [isinstance(_value(each), str) for each in rows[0]]
        headings = [
            here.heading(each, is_text=is_text)
            for each, is_text in zip(columns, are_texts, strict=True)
        ]
        place = next((n for n, each in enumerate(columns) if slug(each) == here.sorted_by), None)
        if place is not None:
            rows = here.arranged(rows, lambda row: _value(row[place]))
    return grid(caption, headings, [line(row) for row in rows], line(total) if total else None)


def grid(
    caption: str, headings: Sequence[Markup], lines: Sequence[Markup], foot: Markup | None = None
) -> Markup:
    """A table of what is drawn already, in a box of its own that scrolls if it is too wide."""
    body = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", headings)),
        tag("tbody", lines),
        tag("tfoot", foot) if foot else None,
    )
    return tag("div", body, class_="table", tabindex=0, role="region", aria_label=caption)


def line(row: Row) -> Markup:
    """The text of the first cell is the name of the row, by which a script knows it again."""
    first, *others = row
    name = _value(first)
    cells = [tag("td", _shown(each)) for each in others]
    key = name if isinstance(name, str) and name else None
    return tag("tr", tag("th", _shown(first), scope="row"), cells, data_key=key)


def _shown(cell: Child | Cell) -> Child:
    return cell.shown if isinstance(cell, Cell) else cell


def _value(cell: Child | Cell) -> Value:
    if isinstance(cell, Cell):
        return cell.value
    return cell if isinstance(cell, str | int) and not isinstance(cell, Markup) else ""


def count(value: int) -> Cell:
    return Cell(figures.number(value), value)


def paused(stats: AnyFigures) -> Markup:
    return tag("span", "paused", class_="label old") if stats.paused else join()


def depths(stats: AnyFigures) -> list[Child | Cell]:
    """Depth, and where it is."""
    parts = f"{figures.number(stats.memory_depth)} + {figures.number(stats.backend_depth)}"
    return [count(stats.depth), Cell(parts, stats.backend_depth)]


DEPTHS = ("Depth", "Memory + Disk")
CHANNEL = (*DEPTHS, "In-Flight", "Deferred", "Requeued", "Timed Out", "Messages", "Connections")


def channel_cells(stats: ChannelFigures) -> list[Child | Cell]:
    counts = (
        stats.in_flight_count,
        stats.deferred_count,
        stats.requeue_count,
        stats.timeout_count,
        stats.message_count,
        stats.client_count,
    )
    return [*depths(stats), *map(count, counts)]


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
    """`Rate In` or `Rate Out`; nothing where nobody measures it."""
    return [f"Rate {metric.title()}"] if plots else []


def rate_cells(plots: Plots, subject: Subject, metric: str) -> list[Cell]:
    if not plots:
        return []
    value = plots.latest(subject, metric)
    cell = Cell("", 0.0) if value is None else Cell(rate(value), value)
    return [sparked(cell, plots, subject, metric)]


class Times:
    """Columns of latencies: a column for each quantile that any of them has."""

    def __init__(self, latencies: Iterable[Latency | None]) -> None:
        self._quantiles = list(
            dict.fromkeys(
                each.quantile
                for latency in latencies
                for each in (latency and latency.percentiles) or ()
            )
        )

    @property
    def columns(self) -> list[str]:
        return [figures.percent(each) for each in self._quantiles]

    def cells(self, latency: Latency | None) -> list[Child | Cell]:
        known = {each.quantile: each for each in (latency and latency.percentiles) or ()}
        cells: list[Child | Cell] = []
        for quantile in self._quantiles:
            each = known.get(quantile)
            if each is None:
                cells.append("")
                continue
            span = f"{figures.duration(each.min)} to {figures.duration(each.max)}"
            shown = tag("span", figures.duration(each.average), title=span)
            cells.append(Cell(shown, each.average))
        return cells


def crumbs(*parts: Child) -> Markup:
    pieces = [tag("li", each) for each in parts]
    return tag("nav", tag("ol", pieces), class_="crumbs", aria_label="Where this is")


# Forms


@dataclass(frozen=True)
class Question:
    """What is asked before something is destroyed, and the form that does it."""

    title: str
    text: str
    action: str
    verb: str  # what the button says
    fields: tuple[tuple[str, str], ...] = ()


def form(
    path: str, action: str, label: str, fields: Fields = (), *, danger: bool = False
) -> Markup:
    """A button that does something at once."""
    hidden = [tag("input", type="hidden", name=name, value=value) for name, value in fields]
    kind = "danger" if danger else None
    button = tag("button", label, name="action", value=action, class_=kind)
    return tag("form", hidden, button, method="post", action=path)


def ask(path: str, label: str, action: str, title: str = "", **fields: str) -> Markup:
    """A button that asks first: it leads to the same page, with the question."""
    query = urlencode({"ask": action, **fields})
    href = f"{path}?{query}#question"
    return tag("a", label, class_="button danger", href=href, title=title or None)


def question_box(path: str, question: Question | None) -> Markup:
    if question is None:
        return join()
    buttons = [
        form(path, question.action, question.verb, question.fields, danger=True),
        tag("a", "Cancel", class_="button", href=path),
    ]
    return tag(
        "section",
        tag("h2", question.title, id="asked"),
        tag("p", question.text),
        tag("div", buttons, class_="actions"),
        id="question",
        class_="question",
        aria_labelledby="asked",
    )


def notice(*text: Child) -> Markup:
    return tag("p", *text, class_="notice")
