"""The pages of all topics, of one topic, and of one channel.

Pure: functions of what was fetched. What a user may not do has no button. Of thousands of topics
only those of one page are drawn.
"""

from collections.abc import Mapping, Sequence

from nsqcy.cluster.stats import ChannelStats, CursorStats, TopicFigures, TopicStats
from nsqcy.config.durations import SECOND
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html import attention, formatting
from nsqcy.nsqadmin.html.attention import Sign
from nsqcy.nsqadmin.html.elements import (
    Cell,
    Child,
    Markup,
    Question,
    Row,
    ask,
    crumbs,
    form,
    join,
    notice,
    question_box,
    tag,
)
from nsqcy.nsqadmin.html.formatting import number, plural
from nsqcy.nsqadmin.html.layout import Layout, further
from nsqcy.nsqadmin.html.location import Location, Value
from nsqcy.nsqadmin.html.plots import Plots, rate_cells, rate_columns, sparked, with_spark
from nsqcy.nsqadmin.html.tables import (
    CHANNEL,
    DEPTHS,
    Times,
    attributes,
    channel_cells,
    client_counts,
    client_name,
    connected,
    count,
    depths,
    grid,
    heading,
    line,
    nearness,
    page_links,
    paused,
    table,
)

PAGE = 500  # rows

# What topics can be sorted by, and the heading of its column.
_ORDERS = {
    "topic": "Topic",
    "attention": attention.TITLE,
    "rate_in": "Rate In",
    "depth": "Depth",
    "in_flight": "In-Flight",
    "deferred": "Deferred",
    "messages": "Messages",
    "channels": "Channels",
    "connections": "Connections",
}


def streams(
    layout: Layout,
    names: Sequence[str],
    topics: Mapping[str, TopicStats],
    location: Location,
    plots: Plots,
) -> list[Markup]:
    """All topics: those that have `q` in their names, by `sort`."""
    if not names:
        return [_streams_heading(location, 0, 0), notice("No Topics Found")]
    seen = _attention(topics, plots)
    wanted = location.params.get("q", "").casefold()
    counts = {name: _stream_counts(topics.get(name)) for name in names if wanted in name.casefold()}
    orders = [each for each in _ORDERS if plots or each != "rate_in"]

    def value(name: str) -> Value:
        match location.sorted_by:
            case "topic":
                return name
            case "attention":
                return len(seen.get(name, ()))
            case "rate_in":
                return plots.latest(Subject(topic=name), "in") or 0.0
            case order:
                return counts[name][order]

    found = location.arranged(counts, value) if location.sorted_by in orders else list(counts)
    page, last = _page(location, len(found))
    rows = [
        line(_stream_row(layout, name, seen.get(name, ()), counts[name], plots))
        for name in found[(page - 1) * PAGE : page * PAGE]
    ]
    headings = [heading(location, _ORDERS[each], is_text=each == "topic") for each in orders]
    none = [] if rows else [notice("No topic has that in its name.")]
    table = grid("Topics", headings, rows)
    title = _streams_heading(location, len(names), sum(name in seen for name in names))
    return [title, _search(location), table, *none, *page_links(location, page, last)]


def _streams_heading(location: Location, topics: int, with_signs: int) -> Markup:
    """How many there are, and a link that sorts those first that need attention."""
    parts: list[Child] = ["Topics", " ", tag("span", number(topics), class_="count")]
    if with_signs:
        link = tag("a", f"⚠ {number(with_signs)}", href=location.link(sort="attention"))
        title = "those that somebody should look at come first"
        parts += [" ", tag("span", link, class_="label old", title=title)]
    return tag("h1", parts)


def _attention(topics: Mapping[str, TopicStats], plots: Plots) -> dict[str, list[Sign]]:
    """Of the topics that have any."""
    channels = (each for stats in topics.values() for each in stats.channels.values())
    dead = {each.dead_letter_topic for each in channels}
    seen = {
        name: attention.of_topic(stats, plots, has_dead_letters=name in dead)
        for name, stats in topics.items()
    }
    return {name: found for name, found in seen.items() if found}


def _page(location: Location, rows: int) -> tuple[int, int]:
    """The page that is wanted, and the last one."""
    last = max(1, -(-rows // PAGE))
    wanted = location.params.get("page", "")
    return min(max(1, int(wanted)) if wanted.isdecimal() and len(wanted) < 9 else 1, last), last


def _stream_counts(stats: TopicStats | None) -> dict[str, int]:
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


def _stream_row(
    layout: Layout, name: str, seen: Sequence[Sign], counts: Mapping[str, int], plots: Plots
) -> Row:
    subject = Subject(topic=name)
    link = Cell(tag("a", name, href=layout.link("topics", name)), name)
    depth, *others = (count(counts[each]) for each in _ORDERS if each in counts)
    return [
        link,
        attention.cell(seen),
        *rate_cells(plots, subject, "in"),
        sparked(depth, plots, subject, "depth"),
        *others,
    ]


def _search(location: Location) -> Markup:
    field = tag(
        "input",
        type="search",
        name="q",
        value=location.params.get("q", ""),
        placeholder="Part of a name",
        aria_label="Part of a name",
        autocomplete="off",
        aria_keyshortcuts="/",
    )
    hidden: list[Child] = [
        tag("input", type="hidden", name=name, value=location.params[name])
        for name in ("sort", "range")
        if location.params.get(name)
    ]
    button = tag("button", "Search")
    return tag("form", field, hidden, button, class_="search", role="search", action=location.path)


# --- a topic ------------------------------------------------------------------------------------


def topic(layout: Layout, stats: TopicStats, location: Location, plots: Plots) -> list[Markup]:
    path = location.path
    return [
        crumbs(tag("a", "Streams", href=layout.home), stats.name),
        tag("h1", stats.name, " ", attention.labels(attention.of_topic(stats, plots))),
        question_box(path, _topic_question(stats, location.params)),
        _topic_actions(layout, path, stats),
        further(layout, stats.name),
        _topic_table(layout, stats, location),
        _channels_table(layout, stats, location, plots),
        plots.section(location, Subject(topic=stats.name)),
        readers_table(layout, stats),
    ]


def _topic_question(stats: TopicStats, params: Mapping[str, str]) -> Question | None:
    name, nodes = stats.name, plural(len(stats.nodes), "node")
    held = sum(each.figures.depth for each in stats.channels.values()) + stats.figures.depth
    match params.get("ask"):
        case "empty":
            text = f"{plural(stats.figures.depth, 'message')} of the topic on {nodes} will be lost;"
            text += " those of its channels stay."
            return Question(f"Empty topic {name}?", text, "empty", "Empty Queue")
        case "delete":
            channels = plural(len(stats.channels), "channel")
            text = f"The topic, {channels} and {plural(held, 'message')} on {nodes} will be lost."
            return Question(f"Delete topic {name}?", text, "delete", "Delete Topic")
        case "tombstone":
            node = params.get("node", "")
            found = next((row for row in stats.nodes if row.node == node), None)
            if found is None:
                return None
            text = f"{node} is hidden from the consumers of {name} for a while, and the topic is"
            text += f" deleted there, with {plural(found.figures.depth, 'message')} of its own and"
            text += " those of its channels."
            fields = (("node", node),)
            return Question(f"Tombstone {node}?", text, "tombstone", "Tombstone", fields)
    return None


def _topic_actions(layout: Layout, path: str, stats: TopicStats) -> Markup:
    if not layout.is_admin:
        return join()
    pause = ("unpause", "UnPause Topic") if stats.figures.paused else ("pause", "Pause Topic")
    buttons = [
        form(path, *pause),
        ask(path, "Empty Queue", "empty"),
        ask(path, "Delete Topic", "delete"),
    ]
    return tag("div", buttons, class_="actions")


def _topic_table(layout: Layout, stats: TopicStats, location: Location) -> Markup:
    times = Times(row.latency for row in stats.nodes)

    def row(first: Child | Cell, each: TopicStats) -> Row:
        counts = [count(each.figures.message_count), count(len(each.channels))]
        return [first, *depths(each.figures), *counts, *times.cells(each.latency)]

    def host(each: TopicStats) -> Cell:
        bury = join()
        if layout.is_admin:
            bury = ask(location.path, "✘", "tombstone", f"Tombstone {each.node}", node=each.node)
        link = node_link(layout, each.node, each.hostname)
        return Cell([bury, " ", link, " ", paused(each.figures)], each.node)

    return table(
        "Topic Message Queue",
        ["NSQd Host", *DEPTHS, "Messages", "Channels", *times.columns],
        [row(host(each), each) for each in stats.nodes],
        row("Total:", stats),
        location,
    )


def _channels_table(layout: Layout, stats: TopicStats, location: Location, plots: Plots) -> Markup:
    if not stats.channels:
        return notice("No channels exist for this topic. Messages queue until there is one.")
    channels = list(stats.channels.values())
    times = Times(each.latency for each in channels)

    def name(each: ChannelStats) -> Cell:
        return Cell(
            tag("a", each.name, href=layout.link("topics", stats.name, each.name)), each.name
        )

    def row(each: ChannelStats) -> Row:
        figures = with_spark(channel_cells(each.figures), plots, _subject(each))
        return [
            *(name(each), attention.cell(attention.of_channel(each, plots))),
            *rate_cells(plots, _subject(each), "out"),
            *(*figures, *times.cells(each.latency)),
        ]

    columns = ["Channel", attention.TITLE, *rate_columns(plots, "out"), *CHANNEL, *times.columns]
    return table("Channel Message Queues", columns, map(row, channels), location=location)


def _subject(stats: ChannelStats) -> Subject:
    return Subject(topic=stats.topic, channel=stats.name)


def node_link(layout: Layout, node: str, hostname: str) -> Markup:
    """By the name of the host, if it is another than that of the address."""
    host, _, port = node.rpartition(":")
    link = layout.link("nodes", node)
    if hostname and hostname.lower() != host.lower():
        return join(f"{hostname}:{port} (", tag("a", node, href=link), ")")
    return tag("a", node, href=link)


# --- a channel ----------------------------------------------------------------------------------


def channel(
    layout: Layout, stats: ChannelStats, clients: Clients, location: Location, plots: Plots
) -> list[Markup]:
    path = location.path
    return [
        crumbs(
            tag("a", "Streams", href=layout.home),
            tag("a", stats.topic, href=layout.link("topics", stats.topic)),
            stats.name,
        ),
        tag("h1", stats.name, " ", attention.labels(attention.of_channel(stats, plots))),
        question_box(path, _channel_question(stats, location.params)),
        _channel_actions(layout, path, stats),
        further(layout, stats.topic, stats.name),
        _channel_table(layout, stats, location),
        plots.section(location, _subject(stats)),
        _clients_table(layout, stats, clients, location),
    ]


def _channel_question(stats: ChannelStats, params: Mapping[str, str]) -> Question | None:
    counts = stats.figures
    name, nodes = f"{stats.topic}/{stats.name}", plural(len(stats.nodes), "node")
    held = counts.depth + counts.in_flight_count + counts.deferred_count
    lost = f"{plural(held, 'message')} on {nodes} will be lost"
    match params.get("ask"):
        case "empty":
            text = f"{lost}, with those in flight and deferred."
            return Question(f"Empty channel {name}?", text, "empty", "Empty Queue")
        case "delete":
            text = f"The channel and {lost}; {plural(counts.client_count, 'consumer')} will be cut"
            text += " off."
            return Question(f"Delete channel {name}?", text, "delete", "Delete Channel")
    return None


def _channel_actions(layout: Layout, path: str, stats: ChannelStats) -> Markup:
    if not layout.is_admin:
        return join()
    pause = ("unpause", "UnPause Channel") if stats.figures.paused else ("pause", "Pause Channel")
    buttons = [
        form(path, *pause),
        ask(path, "Empty Queue", "empty"),
        ask(path, "Delete Channel", "delete"),
    ]
    return tag("div", buttons, class_="actions")


def _channel_table(layout: Layout, stats: ChannelStats, location: Location) -> Markup:
    times = Times(row.latency for row in stats.nodes)
    is_told = stats.figures.delivery_msg_count > 0

    def row(first: Child | Cell, each: ChannelStats) -> Row:
        near = [_locality(each)] if is_told else []
        return [first, *channel_cells(each.figures), *near, *times.cells(each.latency)]

    def host(each: ChannelStats) -> Cell:
        link = node_link(layout, each.node, each.hostname)
        return Cell([link, " ", attention.labels(attention.of_queue(each))], each.node)

    near = ["Delivery"] if is_told else []
    return table(
        "Channel",
        ["NSQd Host", *CHANNEL, *near, *times.columns],
        [row(host(each), each) for each in stats.nodes],
        row("Total:", stats),
        location,
    )


def _locality(stats: ChannelStats) -> Child:
    counts = stats.figures
    whole = counts.delivery_msg_count
    if not whole:
        return ""
    parts = (
        ("zone", counts.zone_local_msg_count),
        ("region", counts.region_local_msg_count),
        ("global", counts.global_msg_count),
    )
    return ", ".join(f"{name} {100 * count / whole:.2f}%" for name, count in parts if count)


def _clients_table(
    layout: Layout, stats: ChannelStats, clients: Clients, location: Location
) -> Markup:
    if not stats.clients:
        return notice("No clients connected to this channel.")
    columns = ["Client Host", "User-Agent", "Attributes", "NSQd Host", "In-Flight", "Ready Count"]
    columns += ["Finished", "Requeued", "Messages", "Connected"]
    rows: list[Row] = [
        [
            client_name(each),
            each.user_agent,
            join(attributes(each), nearness(each, clients)),
            Cell(tag("a", each.node, href=layout.link("nodes", each.node)), each.node),
            *client_counts(each),
            connected(each, clients),
        ]
        for each in clients.in_order(stats.clients)
    ]
    return table("Client Connections", columns, rows, location=location)


_READER_COLUMNS = ("Reader", "NSQd Host", "Lag", "Position", "Heard Of")
_OVERRUN = "Some of what it was to hold is gone"


def readers_table(layout: Layout, stats: TopicStats) -> Markup:
    """A row for each reader on each node; nothing where there is none."""
    found = [(cursor, node.node) for node in stats.nodes for cursor in node.cursors]
    if not found:
        return join()
    found.sort(key=lambda each: (each[0].name, each[1]))
    rows = [_reader_row(layout, cursor, node) for cursor, node in found]
    return table("Readers of the Log", _READER_COLUMNS, rows)


def _reader_row(layout: Layout, cursor: CursorStats, node: str) -> list[Child]:
    overrun = tag("span", "overrun", class_="label", title=_OVERRUN) if cursor.overrun else join()
    return [
        join(cursor.name, " ", overrun),
        tag("a", node, href=layout.link("nodes", node)),
        formatting.number(cursor.lag),
        tag("span", formatting.number(cursor.seq), title=f"log {cursor.log_id}"),
        f"{formatting.duration(cursor.age * SECOND)} ago",
    ]
