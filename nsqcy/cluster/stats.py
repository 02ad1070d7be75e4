"""Statistics of topics and channels, from all nsqds that have them, and their sums.

Reading an answer and summing are pure functions; topic_producers() and node_stats() ask. Clients
are not asked for: channels only count them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar
from urllib.parse import urlencode

from urllib3.util import Url

from nsqcy import gojson
from nsqcy.cluster import answers, discovery
from nsqcy.cluster.discovery import Found, Producer, daemon_url
from nsqcy.cluster.parallel import ask_all
from nsqcy.cluster.web_client import Answer, WebClient, unwanted
from nsqcy.errors import RequestError

ANSWER_MOST = 256 << 20  # bytes
TOGETHER = "*"  # the node of a sum


# --- figures ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TopicFigures:
    """What a topic counts."""

    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth


@dataclass(frozen=True)
class ChannelFigures(TopicFigures):
    """What a channel counts."""

    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0


Figures = TypeVar("Figures", bound=TopicFigures)


def add(one: Figures, other: Figures) -> Figures:
    """Counters are added, and paused is what is paused anywhere."""
    sums = {}
    for each in fields(one):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        sums[each.name] = mine or theirs if each.name == "paused" else mine + theirs
    return replace(one, **sums)


@dataclass(frozen=True)
class ChannelStats:
    """A channel of one node, or of several together: then `nodes` are those."""

    topic: str
    name: str
    node: str
    hostname: str
    figures: ChannelFigures
    nodes: tuple["ChannelStats", ...] = ()


@dataclass(frozen=True)
class TopicStats:
    """A topic of one node, or of several together: then `nodes` are those."""

    name: str
    node: str
    hostname: str
    figures: TopicFigures
    channels: Mapping[str, ChannelStats] = field(default_factory=dict)
    nodes: tuple["TopicStats", ...] = ()


def sum_topics(stats: Iterable[TopicStats]) -> dict[str, TopicStats]:
    """Each topic, by name, and each of its channels, over the nodes that have them. Nodes and
    channels stand in the order of the nodes' hostnames."""
    by_name: dict[str, list[TopicStats]] = {}
    for each in sorted(stats, key=lambda each: each.hostname):
        by_name.setdefault(each.name, []).append(each)
    return {name: _sum_topic(rows) for name, rows in by_name.items()}


def _sum_topic(rows: Sequence[TopicStats]) -> TopicStats:
    channels: dict[str, list[ChannelStats]] = {}
    for row in rows:
        for name, channel in row.channels.items():
            channels.setdefault(name, []).append(channel)
    return TopicStats(
        name=rows[0].name,
        node=TOGETHER,
        hostname="",
        figures=_sum([row.figures for row in rows]),
        channels={name: _sum_channel(each) for name, each in channels.items()},
        nodes=tuple(rows),
    )


def _sum_channel(rows: Sequence[ChannelStats]) -> ChannelStats:
    return ChannelStats(
        topic=rows[0].topic,
        name=rows[0].name,
        node=TOGETHER,
        hostname="",
        figures=_sum([row.figures for row in rows]),
        nodes=tuple(rows),
    )


def _sum(figures: Sequence[Figures]) -> Figures:
    total, *others = figures
    for each in others:
        total = add(total, each)
    return total


# --- answers ------------------------------------------------------------------------------------


def _readers(figures: type[TopicFigures]) -> dict[str, tuple[gojson.Reader, Any]]:
    return {
        each.name: (gojson.flag, False) if each.name == "paused" else (gojson.int64, 0)
        for each in fields(figures)
    }


_CHANNEL: gojson.Fields = {"channel_name": (gojson.text, ""), **_readers(ChannelFigures)}
_TOPIC: gojson.Fields = {
    "topic_name": (gojson.text, ""),
    **_readers(TopicFigures),
    "channels": (gojson.array(gojson.structure(_CHANNEL), gojson.EMPTY), []),
}
_STATS: gojson.Fields = {
    "topics": (gojson.array(gojson.structure(_TOPIC), gojson.EMPTY), []),
}


def parse_stats(
    body: bytes, headers: Mapping[str, str], node: str = "", hostname: str = ""
) -> list[TopicStats]:
    """The topics of an answer of /stats?format=json; raises RequestError. Names of headers are in
    lower case."""
    found = answers.read(body, headers, _STATS)["topics"]
    return [_topic(each, node, hostname) for each in found]


def _topic(values: dict[str, Any], node: str, hostname: str) -> TopicStats:
    name, channels = values.pop("topic_name"), {}
    for each in values.pop("channels"):
        channel = each.pop("channel_name")
        channels[channel] = ChannelStats(name, channel, node, hostname, ChannelFigures(**each))
    return TopicStats(name, node, hostname, TopicFigures(**values), channels)


# --- asking -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeStats:
    """What nsqds said, by their HTTP addresses."""

    answers: Mapping[str, Sequence[TopicStats]]
    errors: Mapping[str, RequestError]

    @property
    def topics(self) -> dict[str, TopicStats]:
        """The sum over all nodes that answered, by topic."""
        return sum_topics(each for topics in self.answers.values() for each in topics)


def node_stats(
    producers: Iterable[Producer], topic: str = "", channel: str = "", *, web: WebClient
) -> NodeStats:
    """The statistics of these nsqds: of one topic or all, and of one channel of it or all."""
    nodes: dict[str, Producer] = {}
    for each in producers:
        nodes.setdefault(each.http_address, each)

    def ask(address: str) -> list[TopicStats]:
        answer = _get(web, _stats_url(nodes[address].url, topic, channel))
        return parse_stats(answer.body, answer.headers, address, nodes[address].hostname)

    outcome = ask_all(list(nodes), ask, web.terms.whole)
    return NodeStats(outcome.values, outcome.errors)


def topic_producers(
    topic: str, *, web: WebClient, lookupds: Sequence[str] = (), nsqds: Sequence[str] = ()
) -> Found:
    """The nsqds that have a topic: those the lookupds know of, or those of these nsqds that do.
    Raises ValueError for an address that cannot be one."""
    if lookupds:
        return discovery.lookup(lookupds, topic, web=web)
    urls = {address: daemon_url(address) for address in nsqds}

    def ask(address: str) -> list[Producer]:
        url = urls[address]
        answer = _get(web, _stats_url(url, topic))
        found = parse_stats(answer.body, answer.headers)
        return [node_info(url, web=web)] if any(each.name == topic for each in found) else []

    outcome = ask_all(nsqds, ask, 2 * web.terms.whole)
    return Found(outcome.values, (), outcome.errors)


def node_info(url: Url, *, web: WebClient) -> Producer:
    """An nsqd as it describes itself; where it does not say, at the address it was asked at."""
    answer = _get(web, url._replace(path="/info"))
    values = answers.read(answer.body, answer.headers, discovery.PRODUCER)
    if not values["broadcast_address"]:
        values |= {"broadcast_address": (url.host or "").strip("[]"), "http_port": url.port or 80}
    return Producer(**values)


def _stats_url(url: Url, topic: str, channel: str = "") -> Url:
    query = {"format": "json", "topic": topic, "channel": channel, "include_clients": "false"}
    given = {name: value for name, value in query.items() if value}
    return url._replace(path="/stats", query=urlencode(given))


def _get(web: WebClient, url: Url) -> Answer:
    answer = web.ask(url, most=ANSWER_MOST)
    if answer.status != 200:
        raise unwanted(answer)
    return answer
