"""Pages for nodes, for topics that only nsqlookupds list, and for the counter.

Pure: maps fetched data to template values.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from nsqcy.cluster.problems import Severity
from nsqcy.cluster.stats import AnyFigures, ChannelStats, ClientStats, TopicStats
from nsqcy.cluster.summaries import Totals
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.copies import of_nsqd
from nsqcy.nsqadmin.cluster.health import NodeHealth
from nsqcy.nsqadmin.cluster.nodes import Clients, Node
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html import attention, node_signs, tiles
from nsqcy.nsqadmin.html.attention import Sign
from nsqcy.nsqadmin.html.formatting import client_name, plural
from nsqcy.nsqadmin.html.layout import Question, View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.paging import part
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.html.tables import (
    CHANNEL,
    CLIENT_COUNTS,
    Columns,
    Table,
    rates,
    table,
    unsorted,
)
from nsqcy.nsqadmin.views.topics import backlog

MAX_TOPICS = 100  # maximum number of topics to list for each node; the node's page has the rest

# Nodes


def nodes(
    found: Sequence[Node],
    lookupds: int,
    location: Location,
    plots: Plots,
    health: Mapping[str, NodeHealth] | None = None,
) -> View:
    """Return the list of nodes. lookupds: number of nsqlookupds; each should list every node.
    health: by node."""
    health = health or {}
    has_region = any(each.producer.topology_region for each in found)
    has_zone = any(each.producer.topology_zone for each in found)

    def of_health(value: Callable[[NodeHealth], float]) -> Callable[[Node], float]:
        return lambda row: value(health[row.name]) if row.name in health else -1.0

    columns: Columns[Node] = [
        ("Hostname", lambda row: row.producer.hostname),
        ("Address", lambda row: row.name),
        *rates(plots, _subject, "in", "out"),
        *(_health_columns(of_health) if health else ()),
        ("Topics", lambda row: len(row.producer.topics)),
        *([("Lookupd Conns.", _sightings)] if lookupds else []),
        ("Version", lambda row: row.producer.version),
        *([("Region", lambda row: row.producer.topology_region)] if has_region else []),
        *([("Zone", lambda row: row.producer.topology_zone)] if has_zone else []),
        ("TCP Port", lambda row: row.producer.tcp_port),
    ]
    values = {
        "nodes": table("NSQd Nodes", columns, found, location),
        "lookupds": lookupds,
        "has_region": has_region,
        "has_zone": has_zone,
        "health": health,
        "signs": {name: node_signs.of_health(each) for name, each in health.items()},
        "max_topics": MAX_TOPICS,
        "first_topics": partial(heapq.nsmallest, MAX_TOPICS),
        "plots": plots,
        "subject": _subject,
    }
    return View("nodes.html", values)


def _health_columns(
    of_health: Callable[[Callable[[NodeHealth], float]], Callable[[Node], float]],
) -> Columns[Node]:
    return [
        ("CPU", of_health(lambda each: each.cpu)),
        ("Memory", of_health(lambda each: each.resident)),
        ("Disk Used", of_health(lambda each: each.disk_used)),
        ("Uptime", of_health(lambda each: each.uptime)),
    ]


def _sightings(node: Node) -> int:
    return len(node.remote_addresses or ())


def _subject(node: Node) -> Subject:
    return Subject(node=node.name)


class TopicOnNode(NamedTuple):
    """A topic and the tables of its channels and clients, for the node page."""

    stats: TopicStats
    channels: Table[ChannelStats]
    clients: Sequence[Table[ClientStats]]

    @property
    def name(self) -> str:
        return self.stats.name

    @property
    def backlog(self) -> int:
        return backlog(self.stats)

    @property
    def signs(self) -> list[Sign]:
        """The alerts for the channels on this node, which the row hides until it is opened."""
        return [
            sign._replace(text=f"{sign.text}: {each.name}")
            for each in self.stats.channels.values()
            for sign in attention.of_queue(each)
        ]

    def total(self, count: str) -> int:
        """Return the sum of a figure over the channels."""
        figures = [each.figures for each in self.stats.channels.values()]
        return sum(getattr(each, count) for each in figures)


def node(
    name: str,
    rows: Sequence[TopicStats],
    clients: Clients,
    location: Location,
    plots: Plots,
    drain: NodeAnswer | None = None,
    copies: NodeAnswer | None = None,
    health: NodeHealth | None = None,
) -> View:
    channels = [each for row in rows for each in row.channels.values()]
    counts = (
        plural(len(rows), "Topic"),
        plural(sum(row.figures.message_count for row in rows), "Message"),
        plural(sum(len(each.clients or ()) for each in channels), "Client"),
    )
    listed = table(
        "Topics", _TOPIC_COLUMNS, [_topic_on_node(row, clients) for row in rows], location
    )
    shown = part(location, listed.rows)
    values = {
        "name": name,
        "asked": _node_question(name, rows, drain, location.params),
        "chosen": None if "ask" in location.params else _chosen(rows, location.params),
        "counts": counts,
        "copies": None if copies is None else of_nsqd(copies),
        "drain": drain,
        "left": _left(drain) if drain is not None and drain.is_done else "",
        "tiles": tiles.of_health(health) if health else (),
        "workers": tiles.workers(health) if health else None,
        "signs": _signs(health) if health else (),
        "topics": replace(listed, rows=shown.rows, names=[each.name for each in shown.rows]),
        "page": shown.page,
        "last": shown.last,
        "clients": clients,
        "signs_of": attention.of_queue,
        "location": location,
        "plots": plots,
        "subject": Subject(node=name),
    }
    return View("node.html", values)


def _signs(health: NodeHealth) -> list[Sign]:
    """Return the alerts, except for draining, which has its own section."""
    return [each for each in node_signs.of_health(health) if each != node_signs.DRAINING]


_TOPIC_COLUMNS: Columns[TopicOnNode] = [
    ("Topic", lambda row: row.name),
    ("Backlog", lambda row: row.backlog),
    ("Memory + Disk", lambda row: row.stats.figures.backend_depth + row.total("backend_depth")),
    ("In-Flight", lambda row: row.total("in_flight_count")),
    ("Deferred", lambda row: row.total("deferred_count")),
    ("Messages", lambda row: row.stats.figures.message_count),
    ("Channels", lambda row: len(row.stats.channels)),
    ("Connections", lambda row: row.total("client_count")),
]


def _topic_on_node(stats: TopicStats, clients: Clients) -> TopicOnNode:
    client_columns: Columns[ClientStats] = [
        ("Client Host", client_name),
        ("User-Agent", unsorted),
        ("Attributes", unsorted),
        *CLIENT_COUNTS,
        ("Connected", clients.connected),
    ]
    channels = list(stats.channels.values())
    return TopicOnNode(
        stats,
        table(f"Channels of {stats.name}", [("Channel", unsorted), *CHANNEL], channels),
        [
            table(
                f"Clients of {each.topic}/{each.name}",
                client_columns,
                clients.in_order(each.clients),
            )
            for each in channels
            if each.clients
        ],
    )


def _node_question(
    node: str, rows: Sequence[TopicStats], drain: NodeAnswer | None, params: Mapping[str, str]
) -> Question | None:
    name = params.get("topic", "")
    row = next((each for each in rows if each.name == name), None)
    if params.get("ask") != "tombstone" or row is None:
        return _action_question(node, rows, drain, params)
    held = row.figures.depth + sum(each.figures.depth for each in row.channels.values())
    text = f"{node} will be temporarily hidden from consumers of {name}, and the topic will be"
    text += f" deleted there, with {plural(held, 'message')}."
    fields = (("topic", name),)
    return Question(f"Tombstone {name} on {node}?", text, "tombstone", "Tombstone", fields)


# Lookup


def lookup(
    lookupds: Sequence[str],
    failed: Mapping[str, str],
    inactive: Mapping[str, Sequence[str]],
    path: str,
    asked: Mapping[str, str],
) -> View:
    """Return the view of topics that no nsqd has, with a form to create topics. failed: the reason,
    by address, of nsqlookupds that do not answer."""
    values = {
        "lookupds": lookupds,
        "failed": {
            address: Sign(f"does not answer: {reason}", "", Severity.ERROR)
            for address, reason in failed.items()
        },
        "inactive": inactive,
        "path": path,
        "asked": _lookup_question(inactive, asked),
    }
    return View("lookup.html", values)


def _lookup_question(
    inactive: Mapping[str, Sequence[str]], params: Mapping[str, str]
) -> Question | None:
    topic, channel = params.get("topic", ""), params.get("channel", "")
    if params.get("ask") != "delete" or topic not in inactive:
        return None
    what = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    kind = "channel" if channel else "topic"
    text = f"Removes the {kind} from all nsqlookupds. No nsqd has it, so no messages are lost."
    fields = (("topic", topic), ("channel", channel))
    return Question(f"Delete {what}?", text, "delete", "Delete", fields)


# The counter


def counter(totals: Totals) -> View:
    """Return the message counter. A message counts once per channel of its topic."""
    return View("counter.html", {"total": totals.of_channels.message_count})


# Actions on one node


def _action_question(
    node: str, rows: Sequence[TopicStats], drain: NodeAnswer | None, params: Mapping[str, str]
) -> Question | None:
    """Return the confirmation question for a destructive action on one node."""
    action = params.get("ask")
    if action == "drain" and drain is not None and drain.is_done:
        return _drain_question(node, drain)
    found = _chosen(rows, params)
    if found is None or action not in ("empty", "delete"):
        return None
    held, fields = _held(rows, found.topic, found.channel, action), tuple(found.fields.items())
    if action == "empty":
        text = f"{plural(held, 'message')} on {node} will be lost. Other nodes are not affected."
        return Question(f"Empty {found.name} on {node}?", text, "empty", "Empty Here", fields)
    text = f"{plural(held, 'message')} on {node} will be lost. Other nodes are not affected."
    return Question(f"Delete {found.name} on {node}?", text, "delete", "Delete Here", fields)


class Chosen(NamedTuple):
    """The topic or channel that the user has chosen on a node."""

    topic: str
    channel: str
    figures: AnyFigures

    @property
    def name(self) -> str:
        return f"channel {self.topic}/{self.channel}" if self.channel else f"topic {self.topic}"

    @property
    def fields(self) -> dict[str, str]:
        return {"topic": self.topic} | ({"channel": self.channel} if self.channel else {})


def _chosen(rows: Sequence[TopicStats], params: Mapping[str, str]) -> Chosen | None:
    topic, channel = params.get("topic", ""), params.get("channel", "")
    row = next((each for each in rows if each.name == topic), None)
    if row is None:
        return None
    if not channel:
        return Chosen(topic, "", row.figures)
    found = row.channels.get(channel)
    return None if found is None else Chosen(topic, channel, found.figures)


def _held(rows: Sequence[TopicStats], topic: str, channel: str, action: str) -> int:
    """Return the number of messages that an action would lose."""
    row = next(each for each in rows if each.name == topic)
    channels = [row.channels[channel]] if channel else list(row.channels.values())
    if not channel and action == "empty":
        return row.figures.depth
    figures = [each.figures for each in channels]
    held = sum(each.depth + each.in_flight_count + each.deferred_count for each in figures)
    return held if channel else held + row.figures.depth


# Draining


def _left(drain: NodeAnswer) -> str:
    left = drain.value.get("left")
    if left is None:
        return "Number of remaining messages unknown"
    return f"{plural(left['messages'], 'message')} left in {plural(left['places'], 'queue')}"


def _drain_question(node: str, drain: NodeAnswer) -> Question:
    text = f"{node} refuses publishes from now on and unregisters its topics from all nsqlookupds."
    text += f" The nsqd exits when consumers have emptied it. {_left(drain)}."
    return Question(f"Drain {node}?", text, "drain", "Drain")
