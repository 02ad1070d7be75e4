"""The pages of one topic and of one channel.

Pure: functions of what was gathered. What a user may not do has no button.
"""

from collections.abc import Mapping

from nsqcy.cluster.stats import ChannelStats, ClientStats, TopicStats
from nsqcy.nsqadmin import figures, signs
from nsqcy.nsqadmin.figures import plural
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.here import Here
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.markup import Child, Markup, join, tag
from nsqcy.nsqadmin.plots import Plots
from nsqcy.nsqadmin.reader_views import readers_table
from nsqcy.nsqadmin.shapes import Shapes
from nsqcy.nsqadmin.subject_views import further
from nsqcy.nsqadmin.tables import (
    CHANNEL,
    DEPTHS,
    Cell,
    Question,
    Row,
    Times,
    ask,
    channel_cells,
    count,
    crumbs,
    depths,
    form,
    notice,
    paused,
    question_box,
    rate_cells,
    rate_columns,
    table,
    with_spark,
)

# --- a topic ------------------------------------------------------------------------------------


def topic(frame: Frame, stats: TopicStats, here: Here, plots: Plots) -> list[Markup]:
    path = here.path
    return [
        crumbs(tag("a", "Streams", href=frame.home), stats.name),
        tag("h1", stats.name, " ", signs.labels(signs.of_topic(stats, plots))),
        question_box(path, _topic_question(stats, here.params)),
        _topic_actions(frame, path, stats),
        further(frame, stats.name),
        _topic_table(frame, stats, here),
        _channels_table(frame, stats, here, plots),
        plots.section(here, Subject(topic=stats.name)),
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


def _topic_table(frame: Frame, stats: TopicStats, here: Here) -> Markup:
    times = Times(row.latency for row in stats.nodes)

    def row(first: Child | Cell, each: TopicStats) -> Row:
        counts = [count(each.figures.message_count), count(len(each.channels))]
        return [first, *depths(each.figures), *counts, *times.cells(each.latency)]

    def host(each: TopicStats) -> Cell:
        bury = join()
        if frame.is_admin:
            bury = ask(here.path, "✘", "tombstone", f"Tombstone {each.node}", node=each.node)
        link = node_link(frame, each.node, each.hostname)
        return Cell([bury, " ", link, " ", paused(each.figures)], each.node)

    return table(
        "Topic Message Queue",
        ["NSQd Host", *DEPTHS, "Messages", "Channels", *times.columns],
        [row(host(each), each) for each in stats.nodes],
        row("Total:", stats),
        here,
    )


def _channels_table(frame: Frame, stats: TopicStats, here: Here, plots: Plots) -> Markup:
    if not stats.channels:
        return notice("No channels exist for this topic. Messages queue until there is one.")
    channels = list(stats.channels.values())
    times = Times(each.latency for each in channels)

    def name(each: ChannelStats) -> Cell:
        return Cell(
            tag("a", each.name, href=frame.link("topics", stats.name, each.name)), each.name
        )

    def row(each: ChannelStats) -> Row:
        figures = with_spark(channel_cells(each.figures), plots, _subject(each))
        return [
            *(name(each), signs.cell(signs.of_channel(each, plots))),
            *rate_cells(plots, _subject(each), "out"),
            *(*figures, *times.cells(each.latency)),
        ]

    columns = ["Channel", signs.TITLE, *rate_columns(plots, "out"), *CHANNEL, *times.columns]
    return table("Channel Message Queues", columns, map(row, channels), here=here)


def _subject(stats: ChannelStats) -> Subject:
    return Subject(topic=stats.topic, channel=stats.name)


def node_link(frame: Frame, node: str, hostname: str) -> Markup:
    """By the name of the host, if it is another than that of the address."""
    host, _, port = node.rpartition(":")
    link = frame.link("nodes", node)
    if hostname and hostname.lower() != host.lower():
        return join(f"{hostname}:{port} (", tag("a", node, href=link), ")")
    return tag("a", node, href=link)


# --- a channel ----------------------------------------------------------------------------------


def channel(
    frame: Frame, stats: ChannelStats, shapes: Shapes, here: Here, plots: Plots
) -> list[Markup]:
    path = here.path
    return [
        crumbs(
            tag("a", "Streams", href=frame.home),
            tag("a", stats.topic, href=frame.link("topics", stats.topic)),
            stats.name,
        ),
        tag("h1", stats.name, " ", signs.labels(signs.of_channel(stats, plots))),
        question_box(path, _channel_question(stats, here.params)),
        _channel_actions(frame, path, stats),
        further(frame, stats.topic, stats.name),
        _channel_table(frame, stats, here),
        plots.section(here, _subject(stats)),
        _clients_table(frame, stats, shapes, here),
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


def _channel_table(frame: Frame, stats: ChannelStats, here: Here) -> Markup:
    times = Times(row.latency for row in stats.nodes)
    is_told = stats.figures.delivery_msg_count > 0

    def row(first: Child | Cell, each: ChannelStats) -> Row:
        near = [_locality(each)] if is_told else []
        return [first, *channel_cells(each.figures), *near, *times.cells(each.latency)]

    def host(each: ChannelStats) -> Cell:
        link = node_link(frame, each.node, each.hostname)
        return Cell([link, " ", signs.labels(signs.of_queue(each))], each.node)

    near = ["Delivery"] if is_told else []
    return table(
        "Channel",
        ["NSQd Host", *CHANNEL, *near, *times.columns],
        [row(host(each), each) for each in stats.nodes],
        row("Total:", stats),
        here,
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


def _clients_table(frame: Frame, stats: ChannelStats, shapes: Shapes, here: Here) -> Markup:
    if not stats.clients:
        return notice("No clients connected to this channel.")
    columns = ["Client Host", "User-Agent", "Attributes", "NSQd Host", "In-Flight", "Ready Count"]
    columns += ["Finished", "Requeued", "Messages", "Connected"]
    rows: list[Row] = [
        [
            client_name(each),
            each.user_agent,
            join(attributes(each), nearness(each, shapes)),
            Cell(tag("a", each.node, href=frame.link("nodes", each.node)), each.node),
            *client_counts(each),
            connected(each, shapes),
        ]
        for each in shapes.in_order(stats.clients)
    ]
    return table("Client Connections", columns, rows, here=here)


def connected(client: ClientStats, shapes: Shapes) -> Cell:
    since = shapes.connected(client)
    return Cell(figures.duration(since), since)


def client_name(client: ClientStats) -> Cell:
    port = client.remote_address.rpartition(":")[2]
    name = f"{client.hostname}:{port}"
    host = client.hostname.lower()
    if client.client_id.lower() not in ("", host, host.partition(".")[0]):
        name += f" ({client.client_id})"
    return Cell(tag("span", name, title=client.remote_address), name)


def client_counts(client: ClientStats) -> list[Cell]:
    counts = (
        client.in_flight_count,
        client.ready_count,
        client.finish_count,
        client.requeue_count,
        client.message_count,
    )
    return [*map(count, counts)]


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
