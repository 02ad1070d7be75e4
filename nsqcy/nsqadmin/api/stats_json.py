"""JSON of nsqadmin's API: statistics of topics, channels, nodes and clients with NSQ's keys.

Pure. Empty values are `null` and keys are omitted wherever NSQ does so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from nsqcy.cluster.latency import Latency, Percentile
from nsqcy.cluster.stats import TOGETHER, AnyFigures, ChannelStats, ClientStats, TopicStats
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.nodes import Clients, Node

Json = dict[str, Any]
_LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")


class StatsJson:
    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def topic(self, stats: TopicStats) -> Json:
        is_sum = stats.node == TOGETHER
        channels = [self.channel(each) for each in stats.channels.values()]
        return {
            "node": stats.node,
            "hostname": stats.hostname,
            "topic_name": stats.name,
            **_depths(stats.figures),
            "message_count": stats.figures.message_count,
            "delivery_msg_count": 0,
            "nodes": [self.topic(each) for each in stats.nodes] or None,
            "channels": (channels or None) if is_sum else channels,
            "paused": stats.figures.paused,
            "e2e_processing_latency": _latency(stats.latency, stats.node, stats.name),
        }

    def channel(self, stats: ChannelStats) -> Json:
        figures = stats.figures
        deliveries = {"delivery_msg_count": figures.delivery_msg_count} | {
            name: getattr(figures, name) for name in _LOCALITIES
        }
        return {
            "node": stats.node,
            "hostname": stats.hostname,
            "topic_name": stats.topic,
            "channel_name": stats.name,
            **_depths(figures),
            "in_flight_count": figures.in_flight_count,
            "deferred_count": figures.deferred_count,
            "requeue_count": figures.requeue_count,
            "timeout_count": figures.timeout_count,
            "message_count": figures.message_count,
            **{name: count for name, count in deliveries.items() if count},
            "client_count": figures.client_count,
            "nodes": [self.channel(each) for each in stats.nodes] or None,
            "clients": self._clients_of(stats),
            "paused": figures.paused,
            "e2e_processing_latency": _latency(stats.latency, stats.node, stats.topic, stats.name),
        }

    def _clients_of(self, stats: ChannelStats) -> list[Json] | None:
        if stats.clients is None:
            return None
        return [self._client(each) for each in self._clients.in_order(stats.clients)]

    def _client(self, client: ClientStats) -> Json:
        region, zone = self._clients.topology(client.node)
        shown = asdict(client) | {
            "connected": self._clients.connected(client),
            "node_topology_region": region,
            "node_topology_zone": zone,
        }
        return {name: value for name, value in shown.items() if value or name not in _OPTIONAL}


_OPTIONAL = frozenset(
    [
        *("topology_region", "topology_zone", "node_topology_region", "node_topology_zone"),
        *("finish_rate", "saturated"),
    ]
)


def _depths(figures: AnyFigures) -> Json:
    return {
        "depth": figures.depth,
        "memory_depth": figures.memory_depth,
        "backend_depth": figures.backend_depth,
    }


def _latency(latency: Latency | None, node: str, topic: str, channel: str = "") -> Json | None:
    if latency is None:
        return None
    is_sum = node == TOGETHER
    return {
        "count": latency.count,
        "percentiles": latency.percentiles and [_percentile(each) for each in latency.percentiles],
        "topic": topic if is_sum else "",
        "channel": channel if is_sum else "",
        "host": node if is_sum else "",
    }


def _percentile(each: Percentile) -> Json:
    shown = asdict(each)
    if each.value is None:
        del shown["value"]
    return shown


def node(node: Node) -> Json:
    """Return an nsqd as in /api/nodes."""
    producer = node.producer
    topology = {
        "topology_zone": producer.topology_zone,
        "topology_region": producer.topology_region,
    }
    topics = [
        {"topic": name, "tombstoned": tombstoned} for name, tombstoned in _in_order(node).items()
    ]
    return {
        "remote_addresses": node.remote_addresses and list(node.remote_addresses),
        "remote_address": producer.remote_address,
        "hostname": producer.hostname,
        "broadcast_address": producer.broadcast_address,
        "tcp_port": producer.tcp_port,
        "http_port": producer.http_port,
        "version": producer.version,
        **{name: value for name, value in topology.items() if value},
        "topics": topics or None,
        "out_of_date": node.out_of_date,
    }


def _in_order(node: Node) -> Mapping[str, bool]:
    """Return the topics by name, or in the nsqd's own order if it was queried directly."""
    topics = node.producer.topics
    return topics if node.at else dict(sorted(topics.items()))


def node_page(name: str, rows: Iterable[TopicStats], json: StatsJson) -> Json:
    """Return one nsqd with its topics, as in /api/nodes/:node."""
    topics = list(rows)
    clients = sum(len(each.clients or ()) for row in topics for each in row.channels.values())
    return {
        "node": name,
        "topics": [json.topic(row) for row in topics],
        "total_messages": sum(row.figures.message_count for row in topics),
        "total_clients": clients,
    }


def counter(rows: Iterable[TopicStats]) -> Json:
    """Return the message count of each channel on each node, as in /api/counter."""
    return {
        f"{row.name}:{channel.name}:{row.node}": {
            "node": row.node,
            "topic_name": row.name,
            "channel_name": channel.name,
            "message_count": channel.figures.message_count,
        }
        for row in rows
        for channel in row.channels.values()
    }


def node_answers(answers: Iterable[NodeAnswer], message: str) -> Json:
    """Return each nsqd's response or error."""
    return {"nodes": [node_answer(each) for each in answers], "message": message}


def node_answer(answer: NodeAnswer) -> Json:
    if not answer.is_done:
        return {"node": answer.node, "error": answer.reason}
    return {"node": answer.node, **answer.value}
