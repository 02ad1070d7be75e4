"""The pages of nodes, of what nsqlookupds know, and the counter.

Pure: functions of what was gathered. What a user may not do has no button.
"""

from collections.abc import Mapping, Sequence

from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.nsqadmin import node_action_views, signs
from nsqcy.nsqadmin.figures import number, plural
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.gathering import Node
from nsqcy.nsqadmin.here import Here
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.markup import Child, Markup, join, tag
from nsqcy.nsqadmin.plots import Plots
from nsqcy.nsqadmin.saying import Said
from nsqcy.nsqadmin.shapes import Shapes
from nsqcy.nsqadmin.tables import (
    CHANNEL,
    DEPTHS,
    Cell,
    Question,
    Row,
    ask,
    channel_cells,
    crumbs,
    depths,
    notice,
    paused,
    question_box,
    rate_cells,
    rate_columns,
    table,
)
from nsqcy.nsqadmin.topic_views import attributes, client_counts, client_name, connected

# --- nodes --------------------------------------------------------------------------------------


def nodes(
    frame: Frame, found: Sequence[Node], lookupds: int, here: Here, plots: Plots
) -> list[Markup]:
    """lookupds: how many are asked, each of which should know every node."""
    heading = tag("h1", f"NSQd Nodes ({len(found)})")
    if not found:
        return [heading, notice("No NSQd nodes found.")]
    columns = ["Hostname", "Broadcast Address", "TCP Port", "HTTP Port", "Version", "Region"]
    columns += ["Zone", *(["Lookupd Conns."] if lookupds else [])]
    columns += [*rate_columns(plots, "in"), *rate_columns(plots, "out"), "Topics"]
    rows = [_node_row(frame, each, lookupds, plots) for each in found]
    return [heading, table("NSQd Nodes", columns, rows, here=here)]


def _node_row(frame: Frame, node: Node, lookupds: int, plots: Plots) -> Row:
    producer = node.producer
    address, subject = producer.broadcast_address, Subject(node=node.name)
    link = tag("a", address, href=frame.link("nodes", node.name))
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
        Cell(_topic_links(frame, producer.topics), len(producer.topics)),
    ]


def _sightings(addresses: Sequence[str], lookupds: int) -> Cell:
    kind = "label old" if len(addresses) != lookupds else "label"
    summary = tag("summary", tag("span", str(len(addresses)), class_=kind))
    shown = tag("details", summary, [tag("div", each) for each in addresses])
    return Cell(shown, len(addresses))


def _topic_links(frame: Frame, topics: Mapping[str, bool]) -> Markup:
    links = [
        tag(
            "a",
            name,
            href=frame.link("topics", name),
            class_="label old" if tombstoned else "label",
            title="tombstoned" if tombstoned else None,
        )
        for name, tombstoned in sorted(topics.items())
    ]
    return tag("details", tag("summary", number(len(topics))), links)


def node(
    frame: Frame,
    name: str,
    rows: Sequence[TopicStats],
    shapes: Shapes,
    here: Here,
    plots: Plots,
    drain: Said | None = None,
) -> list[Markup]:
    path = here.path
    messages = sum(row.figures.message_count for row in rows)
    channels = [each for row in rows for each in row.channels.values()]
    clients = sum(len(each.clients or ()) for each in channels)
    counts = (plural(len(rows), "Topic"), plural(messages, "Message"), plural(clients, "Client"))
    content = [
        crumbs(tag("a", "Nodes", href=frame.link("nodes")), name),
        tag("h1", name),
        question_box(
            path, _node_question(name, rows, drain, here.params) if frame.is_admin else None
        ),
        node_action_views.box(frame, path, name, rows, here.params),
        tag("p", " · ".join(counts)),
        node_action_views.drain_state(frame, path, drain),
        plots.section(here, Subject(node=name)),
    ]
    if not rows:
        return [*content, notice("No topics exist on this node.")]
    return [*content, *(_topic_section(frame, path, row, shapes) for row in rows)]


def _node_question(
    node: str, rows: Sequence[TopicStats], drain: Said | None, params: Mapping[str, str]
) -> Question | None:
    name = params.get("topic", "")
    row = next((each for each in rows if each.name == name), None)
    if params.get("ask") != "tombstone" or row is None:
        return node_action_views.question(node, rows, drain, params)
    held = row.figures.depth + sum(each.figures.depth for each in row.channels.values())
    text = f"{node} is hidden from the consumers of {name} for a while, and the topic is deleted"
    text += f" there, with {plural(held, 'message')}."
    fields = (("topic", name),)
    return Question(f"Tombstone {name} on {node}?", text, "tombstone", "Tombstone", fields)


def _topic_section(frame: Frame, path: str, row: TopicStats, shapes: Shapes) -> Markup:
    title = tag("a", row.name, href=frame.link("topics", row.name))
    bury = join()
    if frame.is_admin:
        bury = ask(path, "✘", "tombstone", f"Tombstone {row.name} here", topic=row.name)
    manage = node_action_views.manage(frame, path, row.name)
    counts = [number(row.figures.message_count), number(len(row.channels))]
    channels: Markup = notice("No channels exist for this topic.")
    if row.channels:
        channels = table(
            f"Channels of {row.name}",
            ["Channel", *CHANNEL],
            [_channel_row(frame, path, each) for each in row.channels.values()],
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
        [_clients(each, shapes) for each in row.channels.values() if each.clients],
    )


def _channel_row(frame: Frame, path: str, stats: ChannelStats) -> Row:
    link = tag("a", stats.name, href=frame.link("topics", stats.topic, stats.name))
    manage = node_action_views.manage(frame, path, stats.topic, stats.name)
    seen = signs.labels(signs.of_queue(stats))
    return [join(link, " ", manage, " ", seen), *channel_cells(stats.figures)]


def _clients(stats: ChannelStats, shapes: Shapes) -> Markup:
    columns = ["Client Host", "User-Agent", "Attributes", "In-Flight", "Ready Count", "Finished"]
    columns += ["Requeued", "Messages", "Connected"]
    rows: list[Row] = [
        [
            client_name(each),
            each.user_agent,
            attributes(each),
            *client_counts(each),
            connected(each, shapes),
        ]
        for each in shapes.in_order(stats.clients or ())
    ]
    return table(f"Clients of {stats.topic}/{stats.name}", columns, rows)


# --- what nsqlookupds know ----------------------------------------------------------------------


def lookup(
    frame: Frame,
    lookupds: Sequence[str],
    inactive: Mapping[str, Sequence[str]],
    params: Mapping[str, str],
) -> list[Markup]:
    """The topics that no nsqd has, and a form that makes such ones."""
    heading = tag("h1", "Lookup")
    if not lookupds:
        return [heading, notice("nsqadmin is configured without nsqlookupds.")]
    path = frame.link("lookup")
    return [
        heading,
        question_box(path, _lookup_question(inactive, params)),
        tag("h2", "nsqlookupd Hosts"),
        tag("ul", [tag("li", each) for each in lookupds]),
        tag("h2", "Inactive Topics"),
        _inactive(frame, path, inactive),
        _creation(path) if frame.is_admin else join(),
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


def _inactive(frame: Frame, path: str, inactive: Mapping[str, Sequence[str]]) -> Markup:
    if not inactive:
        return notice("No inactive Topics")

    def remove(topic: str, channel: str = "") -> Markup:
        what = f"{topic}/{channel}" if channel else topic
        fields = {"topic": topic} | ({"channel": channel} if channel else {})
        return ask(path, "✘", "delete", f"Delete {what}", **fields) if frame.is_admin else join()

    topics = [
        tag(
            "li",
            *(remove(topic), " ", tag("a", topic, href=frame.link("topics", topic))),
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
