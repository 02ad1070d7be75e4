"""Pages for nodes, for topics that only nsqlookupds list, and for the counter.

Pure: maps fetched data to template values.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsqcy.cluster.stats import AnyFigures, ClientStats, TopicStats
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.copies import of_nsqd
from nsqcy.nsqadmin.cluster.nodes import Clients, Node
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html import attention
from nsqcy.nsqadmin.html.formatting import client_name, plural
from nsqcy.nsqadmin.html.layout import Question, View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.html.tables import CHANNEL, CLIENT_COUNTS, DEPTHS, Columns, table, unsorted

# Nodes


def nodes(found: Sequence[Node], lookupds: int, location: Location, plots: Plots) -> View:
    """Return the list of nodes. lookupds: number of nsqlookupds; each should list every node."""

    def rate(metric: str) -> Columns[Node]:
        return [(f"Rate {metric.title()}", lambda row: plots.latest(_subject(row), metric) or 0.0)]

    columns: Columns[Node] = [
        ("Hostname", lambda row: row.producer.hostname),
        ("Broadcast Address", lambda row: row.producer.broadcast_address),
        ("TCP Port", lambda row: row.producer.tcp_port),
        ("HTTP Port", lambda row: row.producer.http_port),
        ("Version", lambda row: row.producer.version),
        ("Region", lambda row: row.producer.topology_region),
        ("Zone", lambda row: row.producer.topology_zone),
        *([("Lookupd Conns.", _sightings)] if lookupds else []),
        *((*rate("in"), *rate("out")) if plots else ()),
        ("Topics", lambda row: len(row.producer.topics)),
    ]
    values = {
        "nodes": table("NSQd Nodes", columns, found, location),
        "lookupds": lookupds,
        "plots": plots,
        "subject": _subject,
    }
    return View("nodes.html", values)


def _sightings(node: Node) -> int:
    return len(node.remote_addresses or ())


def _subject(node: Node) -> Subject:
    return Subject(node=node.name)


class TopicOnNode(NamedTuple):
    """A topic and its tables, for the node page."""

    stats: TopicStats
    topic: object
    channels: object
    clients: Sequence[object]


def node(
    name: str,
    rows: Sequence[TopicStats],
    clients: Clients,
    location: Location,
    plots: Plots,
    drain: NodeAnswer | None = None,
    copies: NodeAnswer | None = None,
) -> View:
    channels = [each for row in rows for each in row.channels.values()]
    counts = (
        plural(len(rows), "Topic"),
        plural(sum(row.figures.message_count for row in rows), "Message"),
        plural(sum(len(each.clients or ()) for each in channels), "Client"),
    )
    values = {
        "name": name,
        "asked": _node_question(name, rows, drain, location.params),
        "chosen": None if "ask" in location.params else _chosen(rows, location.params),
        "counts": counts,
        "copies": None if copies is None else of_nsqd(copies),
        "drain": drain,
        "left": _left(drain) if drain is not None and drain.is_done else "",
        "topics": [_topic_on_node(row, clients) for row in rows],
        "clients": clients,
        "signs_of": attention.of_queue,
        "location": location,
        "plots": plots,
        "subject": Subject(node=name),
    }
    return View("node.html", values)


def _topic_on_node(stats: TopicStats, clients: Clients) -> TopicOnNode:
    topic_columns: Columns[TopicStats] = [
        ("Topic", lambda row: row.name),
        *DEPTHS,
        ("Messages", unsorted),
        ("Channels", unsorted),
    ]
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
        table(f"Topic {stats.name}", topic_columns, [stats]),
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
    text = f"{node} is temporarily hidden from consumers of {name}, and the topic is deleted"
    text += f" there, with {plural(held, 'message')}."
    fields = (("topic", name),)
    return Question(f"Tombstone {name} on {node}?", text, "tombstone", "Tombstone", fields)


# Lookup


def lookup(
    lookupds: Sequence[str],
    inactive: Mapping[str, Sequence[str]],
    path: str,
    asked: Mapping[str, str],
) -> View:
    """Return the view of topics that no nsqd has, with a form to create topics."""
    values = {
        "lookupds": lookupds,
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
    text = "Removes it from all nsqlookupds. No nsqd has it, so no messages are lost."
    fields = (("topic", topic), ("channel", channel))
    return Question(f"Delete {what}?", text, "delete", "Delete", fields)


# The counter


def counter(rows: Sequence[TopicStats]) -> View:
    """Return the message counter. A message counts once per channel of its topic."""
    total = sum(each.figures.message_count for row in rows for each in row.channels.values())
    return View("counter.html", {"total": total})


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
        text = f"{plural(held, 'message')} on {node} will be lost. Messages on other nodes stay."
        return Question(f"Empty {found.name} on {node}?", text, "empty", "Empty Here", fields)
    text = f"It is deleted on {node} with {plural(held, 'message')}. Other nodes keep it."
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
    """Return the number of messages that would be lost."""
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
    return f"{plural(left['messages'], 'message')} left in {plural(left['places'], 'place')}"


def _drain_question(node: str, drain: NodeAnswer) -> Question:
    text = f"{node} refuses publishes from now on and unregisters its topics from all nsqlookupds."
    text += f" It exits when its consumers have emptied it. {_left(drain)}."
    return Question(f"Drain {node}?", text, "drain", "Drain")
