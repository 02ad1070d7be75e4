"""The pages of nodes, of topics known to nsqlookupds only, and the counter.

Pure: functions of what was fetched. What a user may not do has no button.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from nsqcy.cluster.stats import AnyFigures, ChannelStats, TopicStats
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.nodes import Clients, Node
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html import attention
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
from nsqcy.nsqadmin.html.layout import Layout
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots, rate_cells, rate_columns
from nsqcy.nsqadmin.html.tables import (
    CHANNEL,
    DEPTHS,
    attributes,
    channel_cells,
    client_counts,
    client_name,
    connected,
    depths,
    paused,
    table,
)

# --- nodes --------------------------------------------------------------------------------------


def nodes(
    layout: Layout, found: Sequence[Node], lookupds: int, location: Location, plots: Plots
) -> list[Markup]:
    """lookupds: how many there are, each of which should know every node."""
    heading = tag("h1", f"NSQd Nodes ({len(found)})")
    if not found:
        return [heading, notice("No NSQd nodes found.")]
    columns = ["Hostname", "Broadcast Address", "TCP Port", "HTTP Port", "Version", "Region"]
    columns += ["Zone", *(["Lookupd Conns."] if lookupds else [])]
    columns += [*rate_columns(plots, "in"), *rate_columns(plots, "out"), "Topics"]
    rows = [_node_row(layout, each, lookupds, plots) for each in found]
    return [heading, table("NSQd Nodes", columns, rows, location=location)]


def _node_row(layout: Layout, node: Node, lookupds: int, plots: Plots) -> Row:
    producer = node.producer
    address, subject = producer.broadcast_address, Subject(node=node.name)
    link = tag("a", address, href=layout.link("nodes", node.name))
    version: Child = producer.version
    if node.out_of_date:
        version = tag("span", version, class_="label old", title="there is a newer one")
    seen = [_sightings(node.remote_addresses or (), lookupds)] if lookupds else []
    return [
        producer.hostname,
        Cell(link, address),
        Cell(str(producer.tcp_port), producer.tcp_port),
        Cell(str(producer.http_port), producer.http_port),
        Cell(version, producer.version),
        producer.topology_region,
        producer.topology_zone,
        *seen,
        *rate_cells(plots, subject, "in"),
        *rate_cells(plots, subject, "out"),
        Cell(_topic_links(layout, producer.topics), len(producer.topics)),
    ]


def _sightings(addresses: Sequence[str], lookupds: int) -> Cell:
    kind = "label old" if len(addresses) != lookupds else "label"
    summary = tag("summary", tag("span", str(len(addresses)), class_=kind))
    shown = tag("details", summary, [tag("div", each) for each in addresses])
    return Cell(shown, len(addresses))


def _topic_links(layout: Layout, topics: Mapping[str, bool]) -> Markup:
    links = [
        tag(
            "a",
            name,
            href=layout.link("topics", name),
            class_="label old" if tombstoned else "label",
            title="tombstoned" if tombstoned else None,
        )
        for name, tombstoned in sorted(topics.items())
    ]
    return tag("details", tag("summary", number(len(topics))), links)


def node(
    layout: Layout,
    name: str,
    rows: Sequence[TopicStats],
    clients: Clients,
    location: Location,
    plots: Plots,
    drain: NodeAnswer | None = None,
) -> list[Markup]:
    path = location.path
    messages = sum(row.figures.message_count for row in rows)
    channels = [each for row in rows for each in row.channels.values()]
    consumers = sum(len(each.clients or ()) for each in channels)
    counts = (
        *(plural(len(rows), "Topic"), plural(messages, "Message")),
        plural(consumers, "Client"),
    )
    content = [
        crumbs(tag("a", "Nodes", href=layout.link("nodes")), name),
        tag("h1", name),
        question_box(
            path, _node_question(name, rows, drain, location.params) if layout.is_admin else None
        ),
        _action_box(layout, path, name, rows, location.params),
        tag("p", " · ".join(counts)),
        _drain_state(layout, path, drain),
        plots.section(location, Subject(node=name)),
    ]
    if not rows:
        return [*content, notice("No topics exist on this node.")]
    return [*content, *(_topic_section(layout, path, row, clients) for row in rows)]


def _node_question(
    node: str, rows: Sequence[TopicStats], drain: NodeAnswer | None, params: Mapping[str, str]
) -> Question | None:
    name = params.get("topic", "")
    row = next((each for each in rows if each.name == name), None)
    if params.get("ask") != "tombstone" or row is None:
        return _action_question(node, rows, drain, params)
    held = row.figures.depth + sum(each.figures.depth for each in row.channels.values())
    text = f"{node} is hidden from the consumers of {name} for a while, and the topic is deleted"
    text += f" there, with {plural(held, 'message')}."
    fields = (("topic", name),)
    return Question(f"Tombstone {name} on {node}?", text, "tombstone", "Tombstone", fields)


def _topic_section(layout: Layout, path: str, row: TopicStats, clients: Clients) -> Markup:
    title = tag("a", row.name, href=layout.link("topics", row.name))
    bury = join()
    if layout.is_admin:
        bury = ask(path, "✘", "tombstone", f"Tombstone {row.name} here", topic=row.name)
    manage = _action_link(layout, path, row.name)
    counts = [number(row.figures.message_count), number(len(row.channels))]
    channels: Markup = notice("No channels exist for this topic.")
    if row.channels:
        channels = table(
            f"Channels of {row.name}",
            ["Channel", *CHANNEL],
            [_channel_row(layout, path, each) for each in row.channels.values()],
        )
    return tag(
        "section",
        tag("h2", bury, " ", title, " ", manage, " ", paused(row.figures)),
        table(
            f"Topic {row.name}",
            ["Topic", *DEPTHS, "Messages", "Channels"],
            [[row.name, *depths(row.figures), *counts]],
        ),
        channels,
        [_clients(each, clients) for each in row.channels.values() if each.clients],
    )


def _channel_row(layout: Layout, path: str, stats: ChannelStats) -> Row:
    link = tag("a", stats.name, href=layout.link("topics", stats.topic, stats.name))
    manage = _action_link(layout, path, stats.topic, stats.name)
    seen = attention.labels(attention.of_queue(stats))
    return [join(link, " ", manage, " ", seen), *channel_cells(stats.figures)]


def _clients(stats: ChannelStats, clients: Clients) -> Markup:
    columns = ["Client Host", "User-Agent", "Attributes", "In-Flight", "Ready Count", "Finished"]
    columns += ["Requeued", "Messages", "Connected"]
    rows: list[Row] = [
        [
            client_name(each),
            each.user_agent,
            attributes(each),
            *client_counts(each),
            connected(each, clients),
        ]
        for each in clients.in_order(stats.clients or ())
    ]
    return table(f"Clients of {stats.topic}/{stats.name}", columns, rows)


# --- what nsqlookupds know ----------------------------------------------------------------------


def lookup(
    layout: Layout,
    lookupds: Sequence[str],
    inactive: Mapping[str, Sequence[str]],
    params: Mapping[str, str],
) -> list[Markup]:
    """The topics that no nsqd has, and a form that makes such ones."""
    heading = tag("h1", "Lookup")
    if not lookupds:
        return [heading, notice("nsqadmin is configured without nsqlookupds.")]
    path = layout.link("lookup")
    return [
        heading,
        question_box(path, _lookup_question(inactive, params)),
        tag("h2", "nsqlookupd Hosts"),
        tag("ul", [tag("li", each) for each in lookupds]),
        tag("h2", "Inactive Topics"),
        _inactive(layout, path, inactive),
        _creation(path) if layout.is_admin else join(),
    ]


def _lookup_question(
    inactive: Mapping[str, Sequence[str]], params: Mapping[str, str]
) -> Question | None:
    topic, channel = params.get("topic", ""), params.get("channel", "")
    if params.get("ask") != "delete" or topic not in inactive:
        return None
    what = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    text = "nsqlookupds forget it. No nsqd has it, so that no message is lost."
    fields = (("topic", topic), ("channel", channel))
    return Question(f"Delete {what}?", text, "delete", "Delete", fields)


def _inactive(layout: Layout, path: str, inactive: Mapping[str, Sequence[str]]) -> Markup:
    if not inactive:
        return notice("No inactive Topics")

    def remove(topic: str, channel: str = "") -> Markup:
        what = f"{topic}/{channel}" if channel else topic
        fields = {"topic": topic} | ({"channel": channel} if channel else {})
        return ask(path, "✘", "delete", f"Delete {what}", **fields) if layout.is_admin else join()

    topics = [
        tag(
            "li",
            *(remove(topic), " ", tag("a", topic, href=layout.link("topics", topic))),
            tag("ul", [tag("li", remove(topic, each), " ", each) for each in channels])
            if channels
            else None,
        )
        for topic, channels in inactive.items()
    ]
    return tag("ul", topics, class_="tree")


def _creation(path: str) -> Markup:
    fields = [
        tag("label", text, " ", tag("input", name=name, maxlength=74, autocomplete="off"))
        for name, text in (("topic", "Topic Name"), ("channel", "Channel Name"))
    ]
    button = tag("button", "Create", name="action", value="create")
    title = tag("h2", "Create Topic/Channel")
    return join(title, tag("form", fields, button, method="post", action=path, class_="create"))


# --- the counter --------------------------------------------------------------------------------


def counter(rows: Sequence[TopicStats]) -> list[Markup]:
    """A message on a topic with several channels counts for each of them."""
    total = sum(each.figures.message_count for row in rows for each in row.channels.values())
    return [
        tag("h1", "Messages Processed"),
        tag("p", number(total), class_="counter", data_total=total),
    ]


def _action_link(layout: Layout, path: str, topic: str, channel: str = "") -> Markup:
    """A link to the box."""
    if not layout.is_admin:
        return join()
    names = {"topic": topic} | ({"channel": channel} if channel else {})
    title = f"Actions on {_queue_name(topic, channel)} here"
    return tag("a", "⋯", href=f"{path}?{urlencode(names)}#actions", class_="button", title=title)


def _action_box(
    layout: Layout, path: str, node: str, rows: Sequence[TopicStats], params: Mapping[str, str]
) -> Markup:
    """What can be done to the topic or channel that was chosen."""
    found = _chosen(rows, params)
    if not layout.is_admin or found is None or "ask" in params:
        return join()
    topic, channel, figures = found
    names = {"topic": topic} | ({"channel": channel} if channel else {})
    pause = ("unpause", "UnPause Here") if figures.paused else ("pause", "Pause Here")
    buttons = [
        form(path, *pause, list(names.items())),
        ask(path, "Empty Here", "empty", **names),
        ask(path, "Delete Here", "delete", **names),
        tag("a", "Close", class_="button", href=path),
    ]
    title = tag("h2", f"{_queue_name(topic, channel)} on {node} only")
    return tag(
        "section", title, tag("div", buttons, class_="actions"), id="actions", class_="notice"
    )


def _action_question(
    node: str, rows: Sequence[TopicStats], drain: NodeAnswer | None, params: Mapping[str, str]
) -> Question | None:
    """The question before something is destroyed on one node."""
    action = params.get("ask")
    if action == "drain" and drain is not None and drain.is_done:
        return _drain_question(node, drain)
    found = _chosen(rows, params)
    if found is None or action not in ("empty", "delete"):
        return None
    topic, channel, _ = found
    name, held = _queue_name(topic, channel), _held(rows, topic, channel, action)
    fields = (("topic", topic), *([("channel", channel)] if channel else []))
    if action == "empty":
        text = f"{plural(held, 'message')} on {node} will be lost; those on other nodes stay."
        return Question(f"Empty {name} on {node}?", text, "empty", "Empty Here", fields)
    text = f"It is deleted on {node} with {plural(held, 'message')}; on other nodes it stays."
    return Question(f"Delete {name} on {node}?", text, "delete", "Delete Here", fields)


def _chosen(
    rows: Sequence[TopicStats], params: Mapping[str, str]
) -> tuple[str, str, AnyFigures] | None:
    topic, channel = params.get("topic", ""), params.get("channel", "")
    row = next((each for each in rows if each.name == topic), None)
    if row is None:
        return None
    if not channel:
        return topic, "", row.figures
    found = row.channels.get(channel)
    return None if found is None else (topic, channel, found.figures)


def _held(rows: Sequence[TopicStats], topic: str, channel: str, action: str) -> int:
    """Messages that would be lost."""
    row = next(each for each in rows if each.name == topic)
    channels = [row.channels[channel]] if channel else list(row.channels.values())
    if not channel and action == "empty":
        return row.figures.depth
    figures = [each.figures for each in channels]
    held = sum(each.depth + each.in_flight_count + each.deferred_count for each in figures)
    return held if channel else held + row.figures.depth


def _queue_name(topic: str, channel: str) -> str:
    return f"channel {topic}/{channel}" if channel else f"topic {topic}"


# --- draining -----------------------------------------------------------------------------------


def _drain_state(layout: Layout, path: str, drain: NodeAnswer | None) -> Markup:
    """Whether the node drains, and the button for it; nothing of a node that cannot."""
    if drain is None or drain.is_missing:
        return join()
    if not drain.is_done:
        return tag("p", f"Whether it drains is not known: {drain.message}")
    if not drain.value.get("draining"):
        asks = ask(path, "Drain …", "drain", "Take no more publishes, and exit when empty")
        return tag("div", asks, class_="actions") if layout.is_admin else join()
    text = tag("p", tag("span", "draining", class_="label old"), f" {_left(drain)}.")
    if "seconds_left" in drain.value:
        text = join(text, tag("p", f"It exits in {drain.value['seconds_left']} s in any case."))
    stop = form(path, "undrain", "Stop Draining") if layout.is_admin else None
    return tag("section", text, tag("div", stop, class_="actions"))


def _left(drain: NodeAnswer) -> str:
    left = drain.value.get("left")
    if left is None:
        return "How much is left is not known"
    return f"{plural(left['messages'], 'message')} left in {plural(left['places'], 'place')}"


def _drain_question(node: str, drain: NodeAnswer) -> Question:
    text = (
        f"{node} refuses publishes from now on, nsqlookupds are told that nothing is there, and it"
    )
    text += f" exits when its consumers have emptied it. {_left(drain)}."
    return Question(f"Drain {node}?", text, "drain", "Drain")
