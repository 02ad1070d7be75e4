"""Pages for all topics, one topic, and one channel.

Pure: maps fetched data to template values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nsqcy.cluster.copies import COMPLETE
from nsqcy.cluster.stats import (
    ChannelStats,
    ClientStats,
    CursorStats,
    Names,
    TopicFigures,
    TopicStats,
)
from nsqcy.cluster.summaries import Origins
from nsqcy.nsqadmin.cluster.copies import TopicCopies
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html import attention
from nsqcy.nsqadmin.html.attention import Sign
from nsqcy.nsqadmin.html.formatting import client_name, plural
from nsqcy.nsqadmin.html.layout import Question, View
from nsqcy.nsqadmin.html.location import Location, Value
from nsqcy.nsqadmin.html.paging import Part, part
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.html.tables import (
    CHANNEL,
    DEPTHS,
    Columns,
    Table,
    Times,
    heading,
    rates,
    table,
    unsorted,
)

NO_NSQD = Sign(
    "no nsqd",
    "No nsqd that responds has this topic. Publish to it, or delete it on the Lookup page",
    path=("lookup",),
)

# The column heading for each sort key of topics.
_ORDERS = {
    "topic": "Topic",
    "attention": attention.TITLE,
    "rate_in": "Rate In",
    "backlog": "Backlog",
    "in_flight": "In-Flight",
    "deferred": "Deferred",
    "messages": "Messages",
    "channels": "Channels",
    "connections": "Connections",
}


# All topics


@dataclass(frozen=True)
class StreamRow:
    name: str
    signs: Sequence[Sign]
    counts: Mapping[str, int]

    @property
    def subject(self) -> Subject:
        return Subject(topic=self.name)


@dataclass(frozen=True)
class Streams:
    """All topics: the topics on the page, and alerts. names: of all topics, sorted."""

    names: Sequence[str]
    signs: Mapping[str, Sequence[Sign]]
    shown: Part[str]


class Found(Protocol):
    """All topics. names: sorted. topics: the busiest. lost: names of topics that no nsqd has."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def topics(self) -> Mapping[str, TopicStats]: ...
    @property
    def lost(self) -> Sequence[str]: ...
    @property
    def origins(self) -> Origins: ...


def choose(all_topics: Found, location: Location, plots: Plots) -> Streams:
    """Return the topics whose names contain `q`, sorted by `sort`. Topics that are not among the
    busiest count as empty in the order."""
    names, topics = all_topics.names, all_topics.topics
    signs: dict[str, Sequence[Sign]] = {name: [NO_NSQD] for name in all_topics.lost}
    signs |= signs_by_topic(topics, plots, all_topics.origins)
    wanted = location.params.get("q", "").casefold()
    found = [name for name in names if wanted in name.casefold()] if wanted else list(names)

    def value(name: str) -> Value:
        match location.sorted_by:
            case "topic":
                return name
            case "attention":
                return attention.weight(signs.get(name, ()))
            case "rate_in":
                return plots.latest(Subject(topic=name), "in") or 0.0
            case order:
                return _counts(topics[name])[order] if name in topics else 0

    if location.sorted_by in _orders(plots):
        found = location.arranged(found, value)
    return Streams(names, signs, part(location, found))


def streams(
    chosen: Streams,
    topics: Mapping[str, TopicStats],
    location: Location,
    plots: Plots,
    unseen: int = 0,
) -> View:
    """Return the list of the chosen topics. unseen: number of topics that may need attention, and
    have no alerts because they are not among the busiest."""
    signs, shown = chosen.signs, chosen.shown
    rows = [StreamRow(name, signs.get(name, ()), _counts(topics.get(name))) for name in shown.rows]
    headings = [
        heading(location, _ORDERS[each], is_text=each == "topic") for each in _orders(plots)
    ]
    values = {
        "topics": len(chosen.names),
        "with_signs": len(signs.keys() & set(chosen.names)),
        "is_critical": attention.is_critical(signs.values()),
        "streams": Table("Topics", headings, rows, shown.rows),
        "unseen": unseen,
        "page": shown.page,
        "last": shown.last,
        "location": location,
        "plots": plots,
    }
    return View("streams.html", values)


def _orders(plots: Plots) -> list[str]:
    return [each for each in _ORDERS if plots or each != "rate_in"]


def backlog(stats: TopicStats) -> int:
    """Return the number of messages waiting in a topic and in all its channels."""
    return stats.figures.depth + sum(each.figures.depth for each in stats.channels.values())


def signs_by_topic(
    topics: Mapping[str, TopicStats], plots: Plots, origins: Origins
) -> dict[str, list[Sign]]:
    """Return the alerts by topic, excluding topics that have none. origins: the dead-letter
    topics."""
    found = {
        name: attention.of_topic(stats, plots, origins.get(name, ()))
        for name, stats in topics.items()
    }
    return {name: each for name, each in found.items() if each}


def _counts(stats: TopicStats | None) -> dict[str, int]:
    channels = [each.figures for each in stats.channels.values()] if stats else []
    counts = stats.figures if stats else TopicFigures()
    return {
        "backlog": backlog(stats) if stats else 0,
        "in_flight": sum(each.in_flight_count for each in channels),
        "deferred": sum(each.deferred_count for each in channels),
        "messages": counts.message_count,
        "channels": len(channels),
        "connections": sum(each.client_count for each in channels),
    }


# A topic


def topic(
    stats: TopicStats,
    location: Location,
    plots: Plots,
    copies: Mapping[str, TopicCopies] | None = None,
    draft: Mapping[str, str] | None = None,
    origins: Sequence[Names] = (),
) -> View:
    """copies: by node; nodes without copies are missing. draft: fields of a rejected publish
    form. origins: the channels whose dead letters the topic receives."""
    copies = copies or {}
    channels = list(stats.channels.values())
    signs = {each.name: signs_of_channel(stats, each, plots, origins) for each in channels}
    node_times = Times(each.latency for each in stats.nodes)
    channel_times = Times(each.latency for each in channels)
    node_columns: Columns[TopicStats] = [
        ("NSQd Host", lambda row: row.node),
        *([("Copies", lambda row: _responding(copies.get(row.node)))] if copies else []),
        *DEPTHS,
        ("Messages", lambda row: row.figures.message_count),
        ("Channels", lambda row: len(row.channels)),
        *node_times.columns,
    ]
    channel_columns: Columns[ChannelStats] = [
        ("Channel", lambda row: row.name),
        (attention.TITLE, lambda row: attention.weight(signs[row.name])),
        *rates(plots, channel_subject, "out"),
        *CHANNEL,
        *channel_times.columns,
    ]
    values = {
        "stats": stats,
        "signs": attention.of_topic(stats, plots, origins),
        "origins": origins,
        "channel_signs": signs,
        "draft": draft or {},
        "asked": _topic_question(stats, location.params),
        "nodes": table("Topic Message Queue", node_columns, stats.nodes, location),
        "node_times": node_times,
        "copies": copies,
        "complete": COMPLETE,
        "channels": table("Channel Message Queues", channel_columns, channels, location),
        "channel_times": channel_times,
        "channel_subject": channel_subject,
        "readers": readers(stats),
        "location": location,
        "plots": plots,
        "subject": Subject(topic=stats.name),
    }
    return View("topic.html", values)


def _responding(found: TopicCopies | None) -> int:
    return -1 if found is None or found.responding is None else found.responding


def channel_subject(stats: ChannelStats) -> Subject:
    return Subject(topic=stats.topic, channel=stats.name)


def signs_of_channel(
    topic: TopicStats, channel: ChannelStats, plots: Plots, origins: Sequence[Names]
) -> list[Sign]:
    """Return a channel's alerts. Dead letters need no consumers; `origins` shows whether the topic
    has dead letters."""
    if origins:
        return attention.of_topic(topic, plots, origins)
    return attention.of_channel(channel, plots)


def _topic_question(stats: TopicStats, params: Mapping[str, str]) -> Question | None:
    name, nodes = stats.name, plural(len(stats.nodes), "node")
    held = sum(each.figures.depth for each in stats.channels.values()) + stats.figures.depth
    match params.get("ask"):
        case "empty":
            text = f"{plural(stats.figures.depth, 'message')} of the topic on {nodes} will be lost."
            text += " Messages in its channels are not affected."
            return Question(f"Empty topic {name}?", text, "empty", "Empty Queue")
        case "delete":
            channels = plural(len(stats.channels), "channel")
            text = f"The topic, {channels} and {plural(held, 'message')} on {nodes} will be lost."
            return Question(f"Delete topic {name}?", text, "delete", "Delete Topic", typed=name)
        case "tombstone":
            node = params.get("node", "")
            found = next((row for row in stats.nodes if row.node == node), None)
            if found is None:
                return None
            text = f"{node} will be temporarily hidden from consumers of {name}, and the topic will"
            text += f" be deleted there, with {plural(found.figures.depth, 'message')} of its own"
            text += " and all messages in its channels."
            fields = (("node", node),)
            return Question(f"Tombstone {node}?", text, "tombstone", "Tombstone", fields)
    return None


_READERS = ("Reader", "NSQd Host", "Lag", "Position", "Last Seen")


def readers(stats: TopicStats) -> Table[tuple[CursorStats, str]]:
    """Return the table of named cursors in the topic's log: one row per cursor and node."""
    rows = [(cursor, node.node) for node in stats.nodes for cursor in node.cursors]
    rows.sort(key=lambda each: (each[0].name, each[1]))
    return table("Log Readers", [(title, unsorted) for title in _READERS], rows)


# A channel


def channel(
    topic: TopicStats,
    stats: ChannelStats,
    clients: Clients,
    location: Location,
    plots: Plots,
    origins: Sequence[Names] = (),
) -> View:
    """origins: the channels whose dead letters the topic receives."""
    times = Times(each.latency for each in stats.nodes)
    has_localities = stats.figures.delivery_msg_count > 0
    node_columns: Columns[ChannelStats] = [
        ("NSQd Host", lambda row: row.node),
        *CHANNEL,
        *([("Delivery", localities)] if has_localities else []),
        *times.columns,
    ]
    client_columns: Columns[ClientStats] = [
        ("Client Host", client_name),
        ("Finish Rate", lambda row: row.finish_rate or 0.0),
        ("In-Flight / RDY", lambda row: row.in_flight_count),
        ("Attributes", unsorted),
        ("NSQd Host", lambda row: row.node),
        ("Finished", lambda row: row.finish_count),
        ("Requeued", lambda row: row.requeue_count),
        ("Messages", lambda row: row.message_count),
        ("Connected", clients.connected),
        ("User-Agent", lambda row: row.user_agent),
    ]
    values = {
        "stats": stats,
        "signs": signs_of_channel(topic, stats, plots, origins),
        "origins": origins,
        "node_signs": {}
        if origins
        else {each.node: attention.of_queue(each) for each in stats.nodes},
        "asked": _channel_question(stats, location.params),
        "nodes": table("Channel", node_columns, stats.nodes, location),
        "times": times,
        "localities": localities if has_localities else None,
        "connections": table(
            "Client Connections", client_columns, slowest_first(stats.clients or ()), location
        ),
        "clients": clients,
        "location": location,
        "plots": plots,
        "subject": channel_subject(stats),
    }
    return View("channel.html", values)


def slowest_first(clients: Iterable[ClientStats]) -> list[ClientStats]:
    """Sort consumers: saturated ones first, then by finish rate."""
    return sorted(clients, key=lambda each: (not each.saturated, each.finish_rate or 0.0))


def _channel_question(stats: ChannelStats, params: Mapping[str, str]) -> Question | None:
    counts = stats.figures
    name, nodes = f"{stats.topic}/{stats.name}", plural(len(stats.nodes), "node")
    held = counts.depth + counts.in_flight_count + counts.deferred_count
    lost = f"{plural(held, 'message')} on {nodes} will be lost"
    match params.get("ask"):
        case "empty":
            text = f"{lost}, including those in flight and deferred."
            return Question(f"Empty channel {name}?", text, "empty", "Empty Queue")
        case "delete":
            text = f"The channel and {lost}. {plural(counts.client_count, 'consumer')} will be"
            text += " disconnected."
            verb, typed = "Delete Channel", stats.name
            return Question(f"Delete channel {name}?", text, "delete", verb, typed=typed)
    return None


def localities(stats: ChannelStats) -> str:
    """Return the shares of deliveries by consumer proximity."""
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
