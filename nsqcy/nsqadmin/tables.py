"""Tables of figures, and forms that do something: the pieces pages are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from nsqcy.cluster.latency import Latency
from nsqcy.cluster.stats import ChannelFigures, TopicFigures
from nsqcy.nsqadmin import figures
from nsqcy.nsqadmin.markup import Child, Markup, join, tag

Row = Sequence[Child]
Fields = Sequence[tuple[str, str]]


def table(caption: str, columns: Sequence[Child], rows: Iterable[Row], total: Row = ()) -> Markup:
    """The first column names the row; all others are figures, aligned so."""
    head = tag("tr", [tag("th", each, scope="col") for each in columns])
    lines = [_row(row) for row in rows]
    foot = tag("tfoot", _row(total)) if total else None
    body = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", lines), foot)
    return tag("div", body, class_="table", tabindex=0, role="region", aria_label=caption)


def _row(row: Row) -> Markup:
    first, *others = row
    return tag("tr", tag("th", first, scope="row"), [tag("td", each) for each in others])


def paused(stats: TopicFigures) -> Markup:
    return tag("span", "paused", class_="label") if stats.paused else join()


def depths(stats: TopicFigures) -> list[Child]:
    """Depth, and where it is."""
    parts = f"{figures.number(stats.memory_depth)} + {figures.number(stats.backend_depth)}"
    return [figures.number(stats.depth), parts]


DEPTHS = ("Depth", "Memory + Disk")
CHANNEL = (*DEPTHS, "In-Flight", "Deferred", "Requeued", "Timed Out", "Messages", "Connections")


def channel_cells(stats: ChannelFigures) -> list[Child]:
    counts = (
        stats.in_flight_count,
        stats.deferred_count,
        stats.requeue_count,
        stats.timeout_count,
        stats.message_count,
        stats.client_count,
    )
    return [*depths(stats), *map(figures.number, counts)]


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

    def cells(self, latency: Latency | None) -> list[Child]:
        known = {each.quantile: each for each in (latency and latency.percentiles) or ()}
        cells: list[Child] = []
        for quantile in self._quantiles:
            each = known.get(quantile)
            if each is None:
                cells.append("")
                continue
            span = f"{figures.duration(each.min)} to {figures.duration(each.max)}"
            cells.append(tag("span", figures.duration(each.average), title=span))
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
