"""The pages of topics and channels: streams, one topic, one channel.

Pure: functions of what was gathered. What a user may not do has no button.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from nsqcy.cluster.stats import ChannelStats, ClientStats, TopicStats
from nsqcy.nsqadmin import figures
from nsqcy.nsqadmin.figures import number, plural
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.markup import Child, Markup, join, tag
from nsqcy.nsqadmin.reader_views import readers_table
from nsqcy.nsqadmin.shapes import Shapes
from nsqcy.nsqadmin.subject_views import further
from nsqcy.nsqadmin.tables import (
    CHANNEL,
    DEPTHS,
    Question,
    Times,
    ask,
    channel_cells,
    crumbs,
    depths,
    form,
    notice,
    paused,
    question_box,
    table,
)

# --- streams ------------------------------------------------------------------------------------

# What topics can be sorted by, and the heading of its column.
_ORDERS = {
    "topic": "Topic",
    "depth": "Depth",
    "in_flight": "In-Flight",
    "deferred": "Deferred",
    "messages": "Messages",
    "channels": "Channels",
    "connections": "Connections",
}


def streams(
    frame: Frame, names: Sequence[str], topics: Mapping[str, TopicStats], params: Mapping[str, str]
) -> list[Markup]:
    """All topics: those that have `q` in their names, by `sort`."""
    wanted, order = params.get("q", ""), params.get("sort", "topic")
    rows = [(name, _figures(topics.get(name))) for name in names if wanted in name]
    if order in _ORDERS and order != "topic":
        rows.sort(key=lambda row: -row[1][order])
    heading = tag("h1", "Topics", " ", tag("span", number(len(names)), class_="count"))
    if not names:
        return [heading, notice("No Topics Found")]
    return [
        heading,
        _search(frame, wanted, order),
        table("Topics", _headings(frame, wanted, order), [_stream(frame, *row) for row in rows]),
    ]


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


def _stream(frame: Frame, name: str, counts: Mapping[str, int]) -> list[Child]:
    link = tag("a", name, href=frame.link("topics", name))
    return [link, *(number(counts[each]) for each in _ORDERS if each != "topic")]


def _search(frame: Frame, wanted: str, order: str) -> Markup:
    field = tag("input", type="search", name="q", value=wanted, aria_label="Part of a name")
    sort = tag("input", type="hidden", name="sort", value=order)
    return tag("form", field, sort, tag("button", "Search"), class_="search", action=frame.home)


def _headings(frame: Frame, wanted: str, order: str) -> list[Child]:
    """Each sorts by its column."""
    return [
        tag(
            "a",
            text,
            href=f"{frame.home}?{urlencode({'q': wanted, 'sort': name})}",
            aria_current="true" if name == order else None,
        )
        for name, text in _ORDERS.items()
    ]


# --- a topic ------------------------------------------------------------------------------------


def topic(frame: Frame, stats: TopicStats, params: Mapping[str, str]) -> list[Markup]:
    path = frame.link("topics", stats.name)
    return [
        crumbs(tag("a", "Streams", href=frame.home), stats.name),
        tag("h1", stats.name, " ", paused(stats.figures)),
        question_box(path, _topic_question(stats, params)),
        _topic_actions(frame, path, stats),
        further(frame, stats.name),
        _topic_table(frame, path, stats),
        _channels_table(frame, stats),
        readers_table(frame, stats),
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


def _topic_actions(frame: Frame, path: str, stats: TopicStats) -> Markup:
    if not frame.is_admin:
        return join()
    pause = ("unpause", "UnPause Topic") if stats.figures.paused else ("pause", "Pause Topic")
    buttons = [
        form(path, *pause),
        ask(path, "Empty Queue", "empty"),
        ask(path, "Delete Topic", "delete"),
    ]
    return tag("div", buttons, class_="actions")


def _topic_table(frame: Frame, path: str, stats: TopicStats) -> Markup:
    times = Times(row.latency for row in stats.nodes)

    def row(first: Child, each: TopicStats) -> list[Child]:
        counts = [number(each.figures.message_count), number(len(each.channels))]
        return [first, *depths(each.figures), *counts, *times.cells(each.latency)]

    def host(each: TopicStats) -> Markup:
        bury = join()
        if frame.is_admin:
            bury = ask(path, "✘", "tombstone", f"Tombstone {each.node}", node=each.node)
        return join(
            bury, " ", node_link(frame, each.node, each.hostname), " ", paused(each.figures)
        )

    return table(
        "Topic Message Queue",
        ["NSQd Host", *DEPTHS, "Messages", "Channels", *times.columns],
        [row(host(each), each) for each in stats.nodes],
        row("Total:", stats),
    )


def _channels_table(frame: Frame, stats: TopicStats) -> Markup:
    if not stats.channels:
        return notice("No channels exist for this topic. Messages queue until there is one.")
    channels = list(stats.channels.values())
    times = Times(each.latency for each in channels)

    def name(each: ChannelStats) -> Markup:
        link = tag("a", each.name, href=frame.link("topics", stats.name, each.name))
        return join(link, " ", paused(each.figures))

    rows = [
        [name(each), *channel_cells(each.figures), *times.cells(each.latency)] for each in channels
    ]
    return table("Channel Message Queues", ["Channel", *CHANNEL, *times.columns], rows)


def node_link(frame: Frame, node: str, hostname: str) -> Markup:
    """By the name of the host, if it is another than that of the address."""
    host, _, port = node.rpartition(":")
    link = frame.link("nodes", node)
    if hostname and hostname.lower() != host.lower():
        return join(f"{hostname}:{port} (", tag("a", node, href=link), ")")
    return tag("a", node, href=link)


# --- a channel ----------------------------------------------------------------------------------


def channel(
    frame: Frame, stats: ChannelStats, shapes: Shapes, params: Mapping[str, str]
) -> list[Markup]:
    path = frame.link("topics", stats.topic, stats.name)
    return [
        crumbs(
            tag("a", "Streams", href=frame.home),
            tag("a", stats.topic, href=frame.link("topics", stats.topic)),
            stats.name,
        ),
        tag("h1", stats.name, " ", paused(stats.figures)),
        question_box(path, _channel_question(stats, params)),
        _channel_actions(frame, path, stats),
        further(frame, stats.topic, stats.name),
        _channel_table(frame, stats),
        _clients_table(frame, stats, shapes),
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


def _channel_actions(frame: Frame, path: str, stats: ChannelStats) -> Markup:
    if not frame.is_admin:
        return join()
    pause = ("unpause", "UnPause Channel") if stats.figures.paused else ("pause", "Pause Channel")
    buttons = [
        form(path, *pause),
        ask(path, "Empty Queue", "empty"),
        ask(path, "Delete Channel", "delete"),
    ]
    return tag("div", buttons, class_="actions")


def _channel_table(frame: Frame, stats: ChannelStats) -> Markup:
    times = Times(row.latency for row in stats.nodes)
    is_told = stats.figures.delivery_msg_count > 0

    def row(first: Child, each: ChannelStats) -> list[Child]:
        near = [_locality(each)] if is_told else []
        return [first, *channel_cells(each.figures), *near, *times.cells(each.latency)]

    def host(each: ChannelStats) -> Markup:
        return join(node_link(frame, each.node, each.hostname), " ", paused(each.figures))

    near = ["Delivery"] if is_told else []
    return table(
        "Channel",
        ["NSQd Host", *CHANNEL, *near, *times.columns],
        [row(host(each), each) for each in stats.nodes],
        row("Total:", stats),
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


def _clients_table(frame: Frame, stats: ChannelStats, shapes: Shapes) -> Markup:
    if not stats.clients:
        return notice("No clients connected to this channel.")
    columns = ["Client Host", "User-Agent", "Attributes", "NSQd Host", "In-Flight", "Ready Count"]
    columns += ["Finished", "Requeued", "Messages", "Connected"]
    rows = [
        [
            client_name(each),
            each.user_agent,
            join(attributes(each), nearness(each, shapes)),
            tag("a", each.node, href=frame.link("nodes", each.node)),
            *client_counts(each),
            figures.duration(shapes.connected(each)),
        ]
        for each in shapes.in_order(stats.clients)
    ]
    return table("Client Connections", columns, rows)


def client_name(client: ClientStats) -> Markup:
    port = client.remote_address.rpartition(":")[2]
    name = f"{client.hostname}:{port}"
    host = client.hostname.lower()
    if client.client_id.lower() not in ("", host, host.partition(".")[0]):
        name += f" ({client.client_id})"
    return tag("span", name, title=client.remote_address)


def client_counts(client: ClientStats) -> list[Child]:
    return [
        number(client.in_flight_count),
        number(client.ready_count),
        number(client.finish_count),
        number(client.requeue_count),
        number(client.message_count),
    ]


def attributes(client: ClientStats) -> Markup:
    """What is special about a connection."""
    labels: list[Markup] = []
    if client.sample_rate:
        labels.append(_label(f"Sampled {client.sample_rate}%"))
    if client.tls:
        labels.append(_label("TLS", f"{client.tls_version} {client.tls_cipher_suite}"))
    if client.deflate:
        labels.append(_label("Deflate"))
    if client.snappy:
        labels.append(_label("Snappy"))
    if client.authed:
        labels.append(_identity(client))
    return join(labels)


def _identity(client: ClientStats) -> Markup:
    label = _label("Authed", client.auth_identity)
    if client.auth_identity_url.startswith(("http://", "https://")):
        return tag("a", label, href=client.auth_identity_url)
    return label


def nearness(client: ClientStats, shapes: Shapes) -> Markup:
    """Where a client is, and whether its node is there too."""
    region, zone = shapes.topology(client.node)
    labels = [_label(each) for each in (client.topology_region, client.topology_zone) if each]
    if zone and zone == client.topology_zone:
        labels.append(_label("zoneLocal"))
    elif region and region == client.topology_region:
        labels.append(_label("regionLocal"))
    return join(labels)


def _label(text: str, title: str = "") -> Markup:
    return tag("span", text, class_="label", title=title or None)
