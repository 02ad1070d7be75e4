"""Records of a cluster's nsqds: addresses, versions, statistics and clients.

Pure. nsqcy.nsqadmin.cluster.view fetches them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from urllib3.util import Url

from nsqcy.cluster import discovery
from nsqcy.cluster.discovery import Producer, daemon_url
from nsqcy.cluster.stats import ClientStats, TopicStats
from nsqcy.config.durations import SECOND

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
_NO_VERSION = ((0, 0, 0), (1,))


def version_key(text: str) -> tuple[Any, ...]:
    """Return a version's sort key. A pre-release sorts before its release."""
    found = _VERSION.fullmatch(text)
    if not found:
        return _NO_VERSION
    numbers = tuple(int(found[place]) for place in (1, 2, 3))
    if found[4] is None:
        return numbers, (1,)
    return numbers, (0, *map(_version_part, found[4].split(".")))


def _version_part(text: str) -> tuple[int, int, str]:
    """Return the sort key for a part of a version. Numbers sort before words."""
    return (0, int(text), "") if text.isdecimal() and len(text) < 19 else (1, 0, text)


def latest(versions: Iterable[str]) -> tuple[Any, ...]:
    return max(map(version_key, versions), default=_NO_VERSION)


@dataclass(frozen=True)
class Node:
    """An nsqd. at: its address in the options, if it is configured there."""

    producer: Producer
    at: str = ""
    # producers by lookupd; None if there are no nsqlookupds
    remote_addresses: tuple[str, ...] | None = None
    out_of_date: bool = False

    @property
    def name(self) -> str:
        return self.producer.http_address

    @property
    def url(self) -> Url:
        """The HTTP address for queries. Raises RequestError if the nsqd has no such address."""
        return daemon_url(self.at) if self.at else self.producer.url


@dataclass(frozen=True)
class NodeStats:
    """Statistics from nsqds: one row per topic and nsqd."""

    answers: Sequence[tuple[Node, Sequence[TopicStats]]]

    @property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node, _ in self.answers}

    @property
    def topics(self) -> list[TopicStats]:
        return [row for _, rows in self.answers for row in rows]


def by_http_address(answers: Iterable[Sequence[Producer]]) -> list[Producer]:
    found: dict[str, Producer] = {}
    for producers in answers:
        for each in producers:
            found.setdefault(each.http_address, each)
    return list(found.values())


def known_nodes(answers: Mapping[str, Sequence[Producer]]) -> list[Node]:
    """Return each nsqd once, with all nsqlookupds that list it."""
    first = discovery.union(answers.values())
    newest = latest(each.version for each in first)
    nodes = []
    for producer in sorted(first, key=lambda each: each.hostname):
        sightings = tuple(
            f"{lookupd}/{each.remote_address or 'N/A'}"
            for lookupd, producers in answers.items()
            for each in producers
            if each.address == producer.address
        )
        is_old = version_key(producer.version) < newest
        nodes.append(Node(producer, remote_addresses=sightings, out_of_date=is_old))
    return nodes


def with_topics(node: Node, names: Iterable[str]) -> Node:
    topics = dict.fromkeys(sorted(names), False)
    return replace(node, producer=replace(node.producer, topics=topics))


class Clients:
    """A channel's clients, with the nodes to which they are connected."""

    def __init__(self, nodes: Mapping[str, Node], now: float) -> None:
        """nodes: by name. now: seconds since the epoch."""
        self._nodes = nodes
        self._now = int(now)

    def in_order(self, clients: Iterable[ClientStats]) -> list[ClientStats]:
        """Sort by node, then by proximity."""
        return sorted(clients, key=self._locality)

    def _locality(self, client: ClientStats) -> tuple[Any, ...]:
        region, zone = self.topology(client.node)
        is_in_region = client.topology_region == region
        is_in_zone = is_in_region and client.topology_zone == zone
        where = client.topology_region, client.topology_zone
        return client.node, not is_in_zone, not is_in_region, *where

    def topology(self, node: str) -> tuple[str, str]:
        """Return a node's region and zone."""
        found = self._nodes.get(node)
        if found is None:
            return "", ""
        return found.producer.topology_region, found.producer.topology_zone

    def connected(self, client: ClientStats) -> int:
        """Return the time since the client connected, in ns, rounded to seconds."""
        return (self._now - client.connect_ts) * SECOND
