"""The page of all topics: looked for, sorted, page by page.

Pure: a function of what was gathered. Of thousands of topics only those of one page are drawn.
"""

from collections.abc import Mapping, Sequence

from nsqcy.cluster.stats import TopicStats
from nsqcy.nsqadmin.figures import number
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.here import Here, Value, pages
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.markup import Child, Markup, tag
from nsqcy.nsqadmin.plots import Plots
from nsqcy.nsqadmin.tables import Cell, Row, count, grid, line, notice, rate_cells, sparked

PAGE = 500  # rows

# What topics can be sorted by, and the heading of its column.
_ORDERS = {
    "topic": "Topic",
    "rate_in": "Rate In",
    "depth": "Depth",
    "in_flight": "In-Flight",
    "deferred": "Deferred",
    "messages": "Messages",
    "channels": "Channels",
    "connections": "Connections",
}


def streams(
    frame: Frame,
    names: Sequence[str],
    topics: Mapping[str, TopicStats],
    here: Here,
    plots: Plots,
) -> list[Markup]:
    """All topics: those that have `q` in their names, by `sort`."""
    heading = tag("h1", "Topics", " ", tag("span", number(len(names)), class_="count"))
    if not names:
        return [heading, notice("No Topics Found")]
    wanted = here.params.get("q", "").casefold()
    counts = {name: _figures(topics.get(name)) for name in names if wanted in name.casefold()}
    orders = [each for each in _ORDERS if plots or each != "rate_in"]

    def value(name: str) -> Value:
        match here.sorted_by:
            case "topic":
                return name
            case "rate_in":
                return plots.latest(Subject(topic=name), "in") or 0.0
            case order:
                return counts[name][order]

    found = here.arranged(counts, value) if here.sorted_by in orders else list(counts)
    page, last = _page(here, len(found))
    rows = [
        line(_row(frame, name, counts[name], plots))
        for name in found[(page - 1) * PAGE : page * PAGE]
    ]
    headings = [here.heading(_ORDERS[each], is_text=each == "topic") for each in orders]
    none = [] if rows else [notice("No topic has that in its name.")]
    return [heading, _search(here), grid("Topics", headings, rows), *none, *pages(here, page, last)]


def _page(here: Here, rows: int) -> tuple[int, int]:
    """The page that is wanted, and the last one."""
    last = max(1, -(-rows // PAGE))
    wanted = here.params.get("page", "")
    return min(max(1, int(wanted)) if wanted.isdecimal() and len(wanted) < 9 else 1, last), last


def _figures(stats: TopicStats | None) -> dict[str, int]:
    if stats is None:
        return dict.fromkeys(_ORDERS, 0)
    channels = [each.figures for each in stats.channels.values()]
    return {
        "depth": stats.figures.depth + sum(each.depth for each in channels),
        "in_flight": sum(each.in_flight_count for each in channels),
        "deferred": sum(each.deferred_count for each in channels),
        "messages": stats.figures.message_count,
        "channels": len(channels),
        "connections": sum(each.client_count for each in channels),
    }


def _row(frame: Frame, name: str, counts: Mapping[str, int], plots: Plots) -> Row:
    subject = Subject(topic=name)
    link = Cell(tag("a", name, href=frame.link("topics", name)), name)
    depth, *others = (count(counts[each]) for each in _ORDERS if each not in ("topic", "rate_in"))
    return [
        link,
        *rate_cells(plots, subject, "in"),
        sparked(depth, plots, subject, "depth"),
        *others,
    ]


def _search(here: Here) -> Markup:
    field = tag(
        "input",
        type="search",
        name="q",
        value=here.params.get("q", ""),
        placeholder="Part of a name",
        aria_label="Part of a name",
        autocomplete="off",
        aria_keyshortcuts="/",
    )
    hidden: list[Child] = [
        tag("input", type="hidden", name=name, value=here.params[name])
        for name in ("sort", "range")
        if here.params.get(name)
    ]
    button = tag("button", "Search")
    return tag("form", field, hidden, button, class_="search", role="search", action=here.path)
