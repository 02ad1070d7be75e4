"""The page of all topics: looked for, sorted, page by page.

Pure: a function of what was gathered. Of thousands of topics only those of one page are drawn.
"""

from collections.abc import Mapping, Sequence

from nsqcy.cluster.stats import TopicFigures, TopicStats
from nsqcy.nsqadmin import signs
from nsqcy.nsqadmin.figures import number
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.here import Here, Value, pages
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.markup import Child, Markup, tag
from nsqcy.nsqadmin.plots import Plots
from nsqcy.nsqadmin.signs import Sign
from nsqcy.nsqadmin.tables import Cell, Row, count, grid, line, notice, rate_cells, sparked

PAGE = 500  # rows

# What topics can be sorted by, and the heading of its column.
_ORDERS = {
    "topic": "Topic",
    "attention": signs.TITLE,
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
    if not names:
        return [_heading(here, 0, 0), notice("No Topics Found")]
    seen = _signs(topics, plots)
    wanted = here.params.get("q", "").casefold()
    counts = {name: _figures(topics.get(name)) for name in names if wanted in name.casefold()}
    orders = [each for each in _ORDERS if plots or each != "rate_in"]

    def value(name: str) -> Value:
        match here.sorted_by:
            case "topic":
                return name
            case "attention":
                return len(seen.get(name, ()))
            case "rate_in":
                return plots.latest(Subject(topic=name), "in") or 0.0
            case order:
                return counts[name][order]

    found = here.arranged(counts, value) if here.sorted_by in orders else list(counts)
    page, last = _page(here, len(found))
    rows = [
        line(_row(frame, name, seen.get(name, ()), counts[name], plots))
        for name in found[(page - 1) * PAGE : page * PAGE]
    ]
    headings = [here.heading(_ORDERS[each], is_text=each == "topic") for each in orders]
    none = [] if rows else [notice("No topic has that in its name.")]
    table = grid("Topics", headings, rows)
    heading = _heading(here, len(names), sum(name in seen for name in names))
    return [heading, _search(here), table, *none, *pages(here, page, last)]


def _heading(here: Here, topics: int, with_signs: int) -> Markup:
    """How many there are, and a link that puts those first at which somebody should look."""
    parts: list[Child] = ["Topics", " ", tag("span", number(topics), class_="count")]
    if with_signs:
        link = tag("a", f"⚠ {number(with_signs)}", href=here.link(sort="attention"))
        title = "those that somebody should look at come first"
        parts += [" ", tag("span", link, class_="label old", title=title)]
    return tag("h1", parts)


def _signs(topics: Mapping[str, TopicStats], plots: Plots) -> dict[str, list[Sign]]:
    """Of the topics that have any."""
    channels = (each for stats in topics.values() for each in stats.channels.values())
    dead = {each.dead_letter_topic for each in channels}
    seen = {
        name: signs.of_topic(stats, plots, has_dead_letters=name in dead)
        for name, stats in topics.items()
    }
    return {name: found for name, found in seen.items() if found}


def _page(here: Here, rows: int) -> tuple[int, int]:
    """The page that is wanted, and the last one."""
    last = max(1, -(-rows // PAGE))
    wanted = here.params.get("page", "")
    return min(max(1, int(wanted)) if wanted.isdecimal() and len(wanted) < 9 else 1, last), last


def _figures(stats: TopicStats | None) -> dict[str, int]:
    channels = [each.figures for each in stats.channels.values()] if stats else []
    counts = stats.figures if stats else TopicFigures()
    return {
        "depth": counts.depth + sum(each.depth for each in channels),
        "in_flight": sum(each.in_flight_count for each in channels),
        "deferred": sum(each.deferred_count for each in channels),
        "messages": counts.message_count,
        "channels": len(channels),
        "connections": sum(each.client_count for each in channels),
    }


def _row(
    frame: Frame, name: str, seen: Sequence[Sign], counts: Mapping[str, int], plots: Plots
) -> Row:
    subject = Subject(topic=name)
    link = Cell(tag("a", name, href=frame.link("topics", name)), name)
    depth, *others = (count(counts[each]) for each in _ORDERS if each in counts)
    return [
        link,
        signs.cell(seen),
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
