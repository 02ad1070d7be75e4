"""Topic and channel statistics from all nsqds, and their sums.

Parsing and summing are pure functions; topic_producers(), node_stats() and nsqds() send requests.
Clients are queried only on request, because a channel's figures include the number of clients
anyway.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_type_hints
from urllib.parse import urlencode

from urllib3.util import Url

from nsqcy.cluster import answers, discovery, latency, rates
from nsqcy.cluster.budget import Lease
from nsqcy.cluster.discovery import Found, Producer, daemon_url
from nsqcy.cluster.latency import Latency
from nsqcy.cluster.parallel import Outcome, ask_all
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.web_client import Answer, WebClient
from nsqcy.errors import RequestError
from nsqcy.util import gojson

MAX_ANSWER = 128 << 20  # bytes; 10,000 topics with 3 channels and 6 consumers each need half
TOGETHER = "*"  # node name that stands for a sum

Names = tuple[str, str]  # names of a topic and a channel


# --- figures ------------------------------------------------------------------------------------


class TopicFigures(NamedTuple):
    """A topic's figures."""

    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth


class ChannelFigures(NamedTuple):
    """A channel's figures."""

    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    paused: bool = False
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    # Deliveries by consumer proximity.
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    @property
    def delivery_msg_count(self) -> int:
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count


AnyFigures = TopicFigures | ChannelFigures
Figures = TypeVar("Figures", TopicFigures, ChannelFigures)
Item = TypeVar("Item")


def total(figures: Sequence[Figures]) -> Figures:
    """Sum figures. The sum counts as paused if any of its parts is paused."""
    kind = type(figures[0])
    sums: list[Any] = [*map(sum, zip(*figures, strict=True))]
    sums[_PAUSED] = sums[_PAUSED] > 0
    return kind(*sums)


_PAUSED = TopicFigures._fields.index("paused")  # same index as in ChannelFigures


@dataclass(frozen=True)
class ClientStats:
    """A channel's consumer, as reported by its node."""

    node: str = ""
    remote_address: str = ""
    version: str = ""
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    connect_ts: int = 0  # seconds since the epoch
    in_flight_count: int = 0
    ready_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    message_count: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False
    # Only nsqcy's nsqd reports the following fields.
    finish_rate: float | None = None  # messages per second
    saturated: bool = False  # as many messages in flight as its RDY count, while others are waiting


class CursorStats(NamedTuple):
    """A named cursor in a topic's log on one node."""

    name: str = ""
    log_id: str = ""
    seq: int = 0  # the next seq to read
    lag: int = 0  # number of records from `seq` to the end
    age: int = 0  # seconds since the cursor was last set or queried
    overrun: bool = False  # whether any records that the cursor should have retained are missing


class KeyFigures(NamedTuple):
    """Numbers of a channel's keys. blocked_seconds: how long a key has been blocked that is not
    paused, at most."""

    waiting: int = 0
    blocked: int = 0
    blocked_seconds: int = 0
    paused: int = 0


class ChannelStats(NamedTuple):
    """A channel on one node, or summed across `nodes`. `clients` is None if not queried; `latency`
    and `rates` are None if the node does not report them. `saturated`: number of consumers that
    have as many messages in flight as their RDY count while other messages are waiting.
    `backing_off`: number of consumers whose RDY count is 0 while messages are waiting. `keys`: None
    if the channel has no rules for keys."""

    topic: str
    name: str
    node: str
    hostname: str
    figures: ChannelFigures
    nodes: tuple["ChannelStats", ...] = ()
    latency: Latency | None = None
    clients: tuple[ClientStats, ...] | None = None
    dead_letter_topic: str = ""  # in a sum, from the first node
    rates: Rates | None = None
    saturated: int = 0
    backing_off: int = 0
    keys: KeyFigures | None = None

    @property
    def is_keyed(self) -> bool:
        return self.keys is not None


class TopicStats(NamedTuple):
    """A topic on one node, or summed across `nodes`."""

    name: str
    node: str
    hostname: str
    figures: TopicFigures
    channels: Mapping[str, ChannelStats] = MappingProxyType({})
    nodes: tuple["TopicStats", ...] = ()
    latency: Latency | None = None
    cursors: tuple[CursorStats, ...] = ()  # one node only: logs of different nodes are unrelated
    publish_rate: float | None = None  # messages per second; None if a node does not report it


def sum_topics(stats: Iterable[TopicStats]) -> dict[str, TopicStats]:
    """Sum each topic (by name) and each of its channels across their nodes. Nodes are sorted by
    hostname; topics and channels are in order of first appearance."""
    by_name: dict[str, list[TopicStats]] = {}
    for each in sorted(stats, key=lambda each: each.hostname):
        by_name.setdefault(each.name, []).append(each)
    return {name: _sum_topic(rows) for name, rows in by_name.items()}


def _sum_topic(rows: Sequence[TopicStats]) -> TopicStats:
    if len(rows) == 1:  # usual in a cluster with many topics
        return _alone(rows[0])
    published = [row.publish_rate for row in rows]
    channels: dict[str, list[ChannelStats]] = {}
    for row in rows:
        for name, channel in row.channels.items():
            channels.setdefault(name, []).append(channel)
    return TopicStats(
        name=rows[0].name,
        node=TOGETHER,
        hostname="",
        figures=total([row.figures for row in rows]),
        channels={name: _sum_channel(each) for name, each in channels.items()},
        nodes=tuple(rows),
        latency=latency.merge(row.latency for row in rows),
        publish_rate=None if None in published else sum(filter(None, published)),
    )


def _alone(row: TopicStats) -> TopicStats:
    """Return the sum of one row, as the general code would."""
    channels = {name: _sum_channel((channel,)) for name, channel in row.channels.items()}
    times = latency.merge_one(row.latency)
    rate = row.publish_rate
    return TopicStats(row.name, TOGETHER, "", row.figures, channels, (row,), times, (), rate)


def _sum_channel(rows: Sequence[ChannelStats]) -> ChannelStats:
    if len(rows) == 1:
        row = rows[0]
        return ChannelStats(
            row.topic,
            row.name,
            TOGETHER,
            "",
            row.figures,
            (row,),
            latency.merge_one(row.latency),
            row.clients or None,
            row.dead_letter_topic,
            row.rates,
            row.saturated,
            row.backing_off,
            row.keys,
        )
    return ChannelStats(
        topic=rows[0].topic,
        name=rows[0].name,
        node=TOGETHER,
        hostname="",
        figures=total([row.figures for row in rows]),
        nodes=tuple(rows),
        latency=latency.merge(row.latency for row in rows),
        clients=tuple(each for row in rows for each in row.clients or ()) or None,
        dead_letter_topic=next(filter(None, (row.dead_letter_topic for row in rows)), ""),
        rates=rates.total(row.rates for row in rows),
        saturated=sum(row.saturated for row in rows),
        backing_off=sum(row.backing_off for row in rows),
        keys=_sum_keys([row.keys for row in rows if row.keys is not None]),
    )


def _sum_keys(found: Sequence[KeyFigures]) -> KeyFigures | None:
    if not found:
        return None
    return KeyFigures(
        sum(each.waiting for each in found),
        sum(each.blocked for each in found),
        max(each.blocked_seconds for each in found),
        sum(each.paused for each in found),
    )


# --- answers ------------------------------------------------------------------------------------


_READERS: dict[Any, gojson.Reader] = {
    bool: gojson.flag,
    int: gojson.int64,
    str: answers.line,
    float | None: gojson.number,
}


def readers_of(values: Any) -> gojson.Fields:
    """Return readers for these fields and types."""
    defaults = (
        {each.name: each.default for each in fields(values)}
        if is_dataclass(values)
        else (values._field_defaults)
    )
    return {name: (_READERS[kind], defaults[name]) for name, kind in get_type_hints(values).items()}


_LATENCY = {"e2e_processing_latency": (latency.of_node, None)}
CLIENT_FIELDS = readers_of(ClientStats)
_CLIENTS = gojson.array(gojson.structure(CLIENT_FIELDS), gojson.EMPTY)
_POLICY = gojson.structure({"dead_letter_topic": (answers.name_or_none, "")})
_KEYS = gojson.structure(readers_of(KeyFigures))
_CURSORS = gojson.array(gojson.structure(readers_of(CursorStats)), gojson.EMPTY)
# JSON keys that only nsqcy's nsqd reports, in the order of Rates.
_RATES: gojson.Fields = dict.fromkeys(
    ("receive_rate", "finish_rate", "requeue_rate", "timeout_rate", "falling_behind"),
    (gojson.number, None),
)


def _page(channel: gojson.Fields) -> gojson.Fields:
    """Return the format of a statistics page that has these additional channel fields."""
    channels = gojson.alike(
        {
            **readers_of(ChannelFigures),
            "saturated_client_count": (gojson.int64, 0),
            "backing_off_client_count": (gojson.int64, 0),
            "channel_name": (answers.line, ""),
            **_LATENCY,
            "policy": (_POLICY, None),
            "keys": (_KEYS, None),
            **_RATES,
            **channel,
        }
    )
    topics = gojson.alike(
        {
            **readers_of(TopicFigures),
            "topic_name": (answers.line, ""),
            **_LATENCY,
            "channels": (gojson.array(channels, gojson.EMPTY), []),
            "cursors": (_CURSORS, []),
            "publish_rate": (gojson.number, None),
        }
    )
    return {"topics": (gojson.array(topics, gojson.EMPTY), [])}


_WITHOUT_CLIENTS = _page({})
_WITH_CLIENTS = _page({"clients": (_CLIENTS, None)})


def parse_stats(
    body: bytes,
    headers: Mapping[str, str],
    node: str = "",
    hostname: str = "",
    *,
    clients: bool = False,
) -> list[TopicStats]:
    """Return the topics in a response to /stats?format=json. Names in `headers` are lower case.
    Without `clients`, clients in the response are ignored. Raises RequestError."""
    found = answers.read(body, headers, page_fields(clients=clients), gojson.decode_large)["topics"]
    return [topic_of(each, node, hostname) for each in found]


def page_fields(*, clients: bool) -> gojson.Fields:
    """Return the format of a statistics page."""
    return _WITH_CLIENTS if clients else _WITHOUT_CLIENTS


def topic_of(values: tuple[Any, ...], node: str, hostname: str) -> TopicStats:
    """Return a topic as read with page_fields()."""
    *figures, name, times, rows, cursors, published = values
    channels = {}
    for row in rows:
        channel = _channel(row, name, node, hostname)
        channels[channel.name] = channel
    counts = TopicFigures._make(figures)
    readers = tuple(CursorStats(**each) for each in cursors)
    return TopicStats(name, node, hostname, counts, channels, (), times, readers, published)


def _channel(values: tuple[Any, ...], topic: str, node: str, hostname: str) -> ChannelStats:
    counts = ChannelFigures._make(values[:_COUNTS])
    saturated, backing_off, name, times, policy, keys, *found = values[_COUNTS:]
    speeds, clients = found[: len(_RATES)], next(iter(found[len(_RATES) :]), None)
    if clients is not None:
        clients = tuple(client_of(each, node) for each in clients)
    dead = policy["dead_letter_topic"] if policy else ""
    known = None if None in speeds else Rates._make(speeds)
    return ChannelStats(
        topic,
        name,
        node,
        hostname,
        counts,
        (),
        times,
        clients,
        dead,
        known,
        saturated,
        backing_off,
        None if keys is None else KeyFigures(**keys),
    )


_COUNTS = len(ChannelFigures._fields)


def client_of(values: dict[str, Any], node: str) -> ClientStats:
    """Return a client as read with CLIENT_FIELDS. node: HTTP address of its nsqd."""
    return ClientStats(**(values | {"node": node}))


# --- queries ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeStats:
    """Responses by HTTP address of the nsqd."""

    answers: Mapping[str, Sequence[TopicStats]]
    errors: Mapping[str, RequestError]

    @property
    def topics(self) -> dict[str, TopicStats]:
        """Return the topics, summed across all nodes that answered."""
        return sum_topics(each for topics in self.answers.values() for each in topics)


def node_stats(
    producers: Iterable[Producer],
    topic: str = "",
    channel: str = "",
    *,
    web: WebClient,
    clients: bool = False,
) -> NodeStats:
    """Query these nsqds' statistics, for one or all topics and one or all channels."""
    nodes: dict[str, Producer] = {}
    for each in producers:
        nodes.setdefault(each.http_address, each)

    def ask(address: str) -> list[TopicStats]:
        node = nodes[address]
        return of_nsqd(node.url, node, topic, channel, web=web, clients=clients)

    outcome = ask_all(list(nodes), ask, web.terms.whole)
    return NodeStats(outcome.values, outcome.errors)


def of_nsqd(
    url: Url,
    node: Producer,
    topic: str = "",
    channel: str = "",
    *,
    web: WebClient,
    clients: bool = False,
) -> list[TopicStats]:
    """Query the statistics of the nsqd at this URL. Raises RequestError."""
    answer = answer_of(url, topic, channel, web=web, clients=clients)
    name, hostname = node.http_address, node.hostname
    rows = parse_stats(answer.body, answer.headers, name, hostname, clients=clients)
    return Leased(rows, answer.lease)


class Leased(list[Item]):
    """Rows of a response, which count towards the budget as long as they are in use."""

    def __init__(self, rows: Iterable[Item], lease: Lease | None) -> None:
        super().__init__(rows)
        self._lease = lease


def answer_of(
    url: Url, topic: str = "", channel: str = "", *, web: WebClient, clients: bool = False
) -> Answer:
    """Return the raw response for parse_stats(). Raises RequestError."""
    return web.fetch(stats_url(url, topic, channel, clients=clients), maximum=MAX_ANSWER)


def nsqds(
    addresses: Iterable[str],
    topic: str = "",
    channel: str = "",
    *,
    web: WebClient,
    clients: bool = False,
) -> Outcome[str, tuple[Producer, list[TopicStats]]]:
    """Query the nsqds at these addresses, and their statistics as node_stats() does. Uses the given
    addresses, not the announced ones."""
    urls = {address: daemon_url(address) for address in addresses}

    def ask(address: str) -> tuple[Producer, list[TopicStats]]:
        url = urls[address]
        node = node_info(url, web=web)
        return node, of_nsqd(url, node, topic, channel, web=web, clients=clients)

    return ask_all(list(urls), ask, 2 * web.terms.whole)


def topic_producers(
    topic: str, *, web: WebClient, lookupds: Sequence[str] = (), nsqds: Sequence[str] = ()
) -> Found:
    """Return the nsqds that have a topic: those that the nsqlookupds list, or else those among the
    given nsqds. Raises ValueError for an invalid address."""
    if lookupds:
        return discovery.lookup(lookupds, topic, web=web)
    urls = {address: daemon_url(address) for address in nsqds}

    def ask(address: str) -> list[Producer]:
        url = urls[address]
        answer = answer_of(url, topic, web=web)
        found = parse_stats(answer.body, answer.headers)
        return [node_info(url, web=web)] if any(each.name == topic for each in found) else []

    outcome = ask_all(nsqds, ask, 2 * web.terms.whole)
    return Found(outcome.values, {}, outcome.errors)


def node_info(url: Url, *, web: WebClient) -> Producer:
    """Return an nsqd as it describes itself; a missing address defaults to the queried address."""
    answer = web.fetch(url._replace(path="/info"), maximum=MAX_ANSWER)
    values = answers.read(answer.body, answer.headers, discovery.PRODUCER)
    if not values["broadcast_address"]:
        values |= {"broadcast_address": (url.host or "").strip("[]"), "http_port": url.port or 80}
    # Only an nsqlookupd can tell whether an nsqd has authenticated.
    found = Producer(**values | {"authenticated": False})
    if not discovery.is_addressed(found):
        raise RequestError("the response cannot be read: not an address", 200)
    return found


def stats_url(url: Url, topic: str, channel: str = "", *, clients: bool = False) -> Url:
    """Return the URL of these statistics, on the server of a URL."""
    query = {"format": "json", "topic": topic, "channel": channel}
    if not clients:
        query["include_clients"] = "false"
    if not topic:
        query["sparse"] = "true"  # nsqcy's nsqd omits what the readers assume anyway
    given = {name: value for name, value in query.items() if value}
    return url._replace(path="/stats", query=urlencode(given))
