"""The first page: figures of the whole cluster, alerts, and the last hour.

Pure: maps fetched data to template values.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsqcy.cluster.problems import DISK_ERROR, Severity
from nsqcy.cluster.stats import TopicStats
from nsqcy.cluster.summaries import Origins, Totals
from nsqcy.nsqadmin.cluster.copies import CRITICAL, Risk
from nsqcy.nsqadmin.cluster.health import NodeHealth
from nsqcy.nsqadmin.cluster.nodes import Node
from nsqcy.nsqadmin.history.store import CLUSTER
from nsqcy.nsqadmin.html import attention, node_signs
from nsqcy.nsqadmin.html.attention import Sign
from nsqcy.nsqadmin.html.formatting import number, rate, share, span
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.html.tiles import Tile
from nsqcy.nsqadmin.views.topics import backlog, signs_by_topic

MAX_ITEMS = 20  # maximum number of topics to list; the topics page has the rest
GONE = 3600.0  # how long the page shows a node that is no longer announced, in seconds
_SPARK = 3600  # seconds


class Cluster(NamedTuple):
    """The state of the cluster. has_topics: whether any topic exists. topics: the busiest, summed
    over the nodes. silent: names of nodes that do not answer. health: by node. totals: of all
    topics. unseen: number of other topics that may need attention."""

    has_topics: bool
    topics: Mapping[str, TopicStats]
    nodes: Sequence[Node]
    silent: Sequence[str]
    health: Mapping[str, NodeHealth]
    totals: Totals
    origins: Origins
    unseen: int = 0
    risks: Sequence[Risk] = ()  # risks of topics with copies


class Item(NamedTuple):
    """Something that needs attention: a node, a topic, or topics with copies. The path is empty if
    it has no page."""

    kind: str
    name: str
    path: tuple[str, ...]
    signs: Sequence[Sign]


def overview(cluster: Cluster, location: Location, plots: Plots) -> View:
    gone = _gone(cluster, plots)
    signs = signs_by_topic(cluster.topics, plots, cluster.origins)
    values = {
        "tiles": _tiles(cluster, plots, len(cluster.silent) + len(gone)),
        "items": _items(cluster, gone, signs),
        "is_known": bool(cluster.nodes or cluster.silent or gone),
        "more": max(0, len(signs) - MAX_ITEMS),
        "unseen": cluster.unseen,
        "has_topics": cluster.has_topics,
        "address": next((each.name for each in cluster.nodes), ""),
        "location": location,
        "plots": plots,
        "subject": CLUSTER,
    }
    return View("overview.html", values)


def _gone(cluster: Cluster, plots: Plots) -> dict[str, float]:
    """Return the nodes that nsqadmin has recently sampled but no longer finds, with the
    seconds since the latest sample."""
    if plots.history is None:
        return {}
    known = {each.name for each in cluster.nodes} | {*cluster.silent}
    seen = plots.history.nodes(plots.now)
    return {node: ago for node, ago in seen.items() if node not in known and ago < GONE}


# Figures


def _tiles(cluster: Cluster, plots: Plots, down: int) -> list[Tile]:
    totals = cluster.totals
    dead = cluster.origins.keys() & cluster.topics.keys()
    waiting = sum(backlog(cluster.topics[name]) for name in dead)
    up = len(cluster.nodes)
    rates = [
        _rate("Messages in", "in", plots, "rate_in"),
        _rate("Messages out", "out", plots),
    ]
    problem = f"{down} down" if down else ""
    return [
        Tile("Nodes", f"{up} up", ("nodes",), detail=problem, is_bad=bool(problem) or not up),
        *(rates if plots else ()),
        _count("Backlog", totals.backlog, "depth", plots, "backlog"),
        _count("In flight", totals.of_channels.in_flight_count, "in_flight", plots),
        Tile("Dead letters", number(waiting), ("topics",), "attention", is_bad=waiting > 0),
        *_disk(cluster.health),
    ]


def _rate(title: str, metric: str, plots: Plots, sort: str = "") -> Tile:
    value = plots.latest(CLUSTER, metric)
    spark = plots.spark(CLUSTER, metric, _SPARK)
    return Tile(title, "–" if value is None else rate(value), ("topics",), sort, spark=spark)


def _count(title: str, value: int, metric: str, plots: Plots, sort: str = "") -> Tile:
    spark = plots.spark(CLUSTER, metric, _SPARK)
    return Tile(title, number(value), ("topics",), sort or metric, spark=spark)


def _disk(health: Mapping[str, NodeHealth]) -> list[Tile]:
    if not health:
        return []
    fullest = max(health.values(), key=lambda each: each.disk_used)
    used = fullest.disk_used
    where = ("nodes", fullest.node)
    is_bad = used >= node_signs.FULL
    is_error = 1 - used < DISK_ERROR
    name = fullest.node
    return [Tile("Fullest disk", share(used), where, detail=name, is_bad=is_bad, is_error=is_error)]


# Attention


def _items(
    cluster: Cluster, gone: Mapping[str, float], signs: Mapping[str, Sequence[Sign]]
) -> list[Item]:
    nodes = [(name, [node_signs.SILENT]) for name in cluster.silent]
    nodes += [(name, node_signs.of_health(each)) for name, each in cluster.health.items()]
    items = [Item("nsqd", name, ("nodes", name), found) for name, found in nodes if found]
    items += [Item("nsqd", name, (), [node_signs.gone(span(ago))]) for name, ago in gone.items()]
    items += [Item("copies", each.text, ("copies",), [_of_risk(each)]) for each in cluster.risks]
    topics = sorted(signs, key=lambda name: -attention.weight(signs[name]))[:MAX_ITEMS]
    items.sort(key=lambda each: -attention.weight(each.signs))
    return items + [Item("topic", name, ("topics", name), signs[name]) for name in topics]


def _of_risk(risk: Risk) -> Sign:
    severity = Severity.ERROR if risk.severity == CRITICAL else Severity.WARNING
    return Sign(risk.severity, risk.text, severity)
