"""nsqlookupd's HTTP API: routes, parameters and handlers.

A response of any length is a generator of chunks, which `http.long_answers` produces in slices.
Handles only requests and the registry, not connections.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from nsqcy import NSQ_VERSION
from nsqcy.daemon.topic_params import topic_and_channel, valid_topic
from nsqcy.errors import HttpError
from nsqcy.http import pprof, router
from nsqcy.http.long_answers import (
    SLICE,
    Built,
    Pieces,
    built,
    in_order,
    separated,
)
from nsqcy.http.parser import Reply
from nsqcy.http.request_counts import Requests
from nsqcy.http.router import (
    EMPTY,
    Gate,
    Handler,
    Limits,
    Need,
    Request,
    Route,
    Router,
    ignored,
    required,
    whole,
)
from nsqcy.logging import events
from nsqcy.logging.types import DetailedLines
from nsqcy.metrics import families
from nsqcy.nsqlookupd.registry import Lost, Moment, Node, Peer, Registration, Registry
from nsqcy.util import debug, lazy_imports, procfs
from nsqcy.util.gotext import json_bytes, json_string
from nsqcy.util.slices import Slices, Turns

NAMES = 8  # names in a piece of a long response
TOMBSTONES = (b",false", b",true")

NEVER = -6795364578871345152
"""NSQ's value for a tombstone that was never set: Go's zero time, wrapped."""


def as_json(peer: Peer) -> bytes:
    """Return a peer's JSON, which only an authentication changes."""
    if peer.as_producer is None:
        peer.as_producer = json_bytes(_fields(peer))
    return peer.as_producer


def _fields(peer: Peer) -> dict[str, Any]:
    return {
        "remote_address": peer.remote_address,
        "hostname": peer.hostname,
        "broadcast_address": peer.broadcast_address,
        "tcp_port": peer.tcp_port,
        "http_port": peer.http_port,
        "version": peer.version,
        "topology_zone": peer.topology_zone,
        "topology_region": peer.topology_region,
    } | _AUTHENTICATED[peer.authenticated]


# NSQ has no such key, so it is omitted unless nsqlookupd has users.
_AUTHENTICATED: dict[bool, dict[str, Any]] = {False: {}, True: {"authenticated": True}}


def ping(api: "Api", request: Request) -> str:
    return "OK"


def info(api: "Api", request: Request) -> dict[str, Any]:
    return {"version": NSQ_VERSION}


def lookup(api: "Api", request: Request) -> Built:
    topic = required(whole(request), "topic")
    peers = api.registry.lookup(topic, api.clock())
    if peers is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return built(_lookup(api.registry.channels(topic), peers), api)


def _lookup(channels: list[str], peers: Iterable[Peer]) -> Pieces:
    yield from _names(b'{"channels":[', channels)
    yield b'],"producers":['
    yield from separated(map(as_json, peers))
    yield b"]}"


def _has(request: Request, name: str, value: str) -> bool:
    """Return whether a parameter has a value. NSQ ignores parameters here, including invalid
    ones."""
    return (request.head.params or {}).get(name) == value


def topics(api: "Api", request: Request) -> Built:
    """Return the names of all topics; with `abandoned=true`, of those that no active nsqd has."""
    if _has(request, "abandoned", "true"):
        return built(_abandoned(api.registry.abandoned(api.clock())), api)
    return built(_named(b'{"topics":[', api.registry.topics()), api)


def _abandoned(parts: Iterable[list[str]]) -> Pieces:
    names: list[str] = []
    for part in parts:
        names += part
        yield b""
    yield from _named(b'{"topics":[', names)


def channels(api: "Api", request: Request) -> Built:
    found = api.registry.channels(required(whole(request), "topic"))
    return built(_named(b'{"channels":[', found), api)


def _named(start: bytes, names: list[str]) -> Pieces:
    yield from _names(start, names)
    yield b"]}"


def _names(start: bytes, names: list[str]) -> Pieces:
    ordered = yield from in_order(names)
    yield start
    comma = b""
    # Names need no escapes.
    while some := '","'.join(islice(ordered, NAMES)):
        yield b'%b"%b"' % (comma, some.encode())
        comma = b","


def nodes(api: "Api", request: Request) -> Built:
    """Return the active nsqds; with `topics=false`, without their topics."""
    found = api.registry.nodes(api.clock())
    if _has(request, "topics", "false"):
        found = (Node(each.peer, iter(())) for each in found)
    return built(_nodes(found), api)


def _nodes(nodes: Iterable[Node]) -> Pieces:
    yield b'{"producers":['
    comma = b""
    for node in nodes:
        tombstones, topics = bytearray(), bytearray()
        for found in node.topics:
            if found:
                tombstones += b"".join(TOMBSTONES[is_hidden] for _, is_hidden in found)
                topics += ',"{}"'.format('","'.join([topic for topic, _ in found])).encode()
            yield b""
        head = as_json(node.peer)[:-1]
        yield b'%b%b,"tombstones":[' % (comma, head)
        yield bytes(tombstones[1:])
        yield b'],"topics":['
        yield bytes(topics[1:])
        yield b"]}"
        comma = b","
    yield b"]}"


def lost_nodes(api: "Api", request: Request) -> Built:
    return built(_lost(api.registry.lost(api.clock())), api)


def _lost(lost: Iterable[Lost]) -> Pieces:
    yield b'{"producers":['
    yield from separated(
        json_bytes(_fields(each.peer) | {"last_seen": each.since.wall}) for each in lost
    )
    yield b"]}"


def everything(api: "Api", request: Request) -> Built:
    return built(_everything(api.registry), api)


def _everything(registry: Registry) -> Pieces:
    keys = yield from in_order(map(":".join, registry.registrations()))
    yield b"{"
    comma = b""
    for key in keys:
        producers = registry.producers(Registration(*key.split(":")))
        if producers:
            yield b"%b%b:[" % (comma, json_string(key).encode())
            comma = b","
            yield from separated(
                json_bytes(_entry(each.peer, each.tombstoned)) for each in producers
            )
            yield b"]"
    yield b"}"


def _entry(peer: Peer, tombstoned: Moment | None) -> dict[str, Any]:
    return {
        "broadcast_address": peer.broadcast_address,
        "hostname": peer.hostname,
        "http_port": peer.http_port,
        "id": peer.remote_address,
        "last_update": peer.seen.wall,
        "tcp_port": peer.tcp_port,
        "tombstoned": tombstoned is not None,
        "tombstoned_at": NEVER if tombstoned is None else tombstoned.wall,
        "topology_region": peer.topology_region,
        "topology_zone": peer.topology_zone,
        "version": peer.version,
    }


def create_topic(api: "Api", request: Request) -> None:
    topic = valid_topic(whole(request), "INVALID_ARG_TOPIC")
    api.log.info(f"DB: adding topic({topic})")
    api.registry.create_topic(topic)


def delete_topic(api: "Api", request: Request) -> Built:
    return built(_delete_topic(api, required(whole(request), "topic")), api, EMPTY)


def _delete_topic(api: "Api", name: str) -> Pieces:
    for _, topic, channel in api.registry.delete_topic(name):
        if channel:
            api.log.info(f"DB: removing channel({channel}) from topic({topic})")
        else:
            api.log.info(f"DB: removing topic({topic})")
        yield b""


def create_channel(api: "Api", request: Request) -> None:
    topic, channel = topic_and_channel(request)
    api.log.info(f"DB: adding channel({channel}) in topic({topic})")
    api.log.info(f"DB: adding topic({topic})")
    api.registry.create_channel(topic, channel)


def delete_channel(api: "Api", request: Request) -> None:
    topic, channel = topic_and_channel(request)
    if not api.registry.delete_channel(topic, channel):
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    api.log.info(f"DB: removing channel({channel}) from topic({topic})")


def tombstone(api: "Api", request: Request) -> None:
    params = whole(request)
    topic, node = required(params, "topic"), required(params, "node")
    events.tombstone_set(api.log, node=node[:200], topic=topic[:200])
    api.registry.tombstone(topic, node, api.clock())


def metrics(api: "Api", request: Request) -> Reply:
    writer = lazy_imports.module("nsqcy.http.metrics_page")
    slices = Slices(api.give_way, SLICE)
    for counts in api.registry.counts(api.clock()):  # noqa: B007
        slices.step()
    shown = {
        families.NODES: counts.nodes,
        families.TOPICS_KNOWN: counts.topics,
        families.CHANNELS_KNOWN: counts.channels,
        families.PRODUCERS: counts.producers,
        families.TOMBSTONES: counts.tombstones,
    }
    reply: Reply = writer.page(
        request.head.header("Accept"),
        {family: [([], count)] for family, count in shown.items()},
        families.HTTP_OF_NSQLOOKUPD,
        api.requests,
        api.connections(),
    )
    return reply


def _get(path: str, handler: Handler) -> Route:
    return Route("GET", path, handler, body=ignored, inline=True, need=Need.NOTHING)


def _post(path: str, handler: Handler) -> Route:
    return Route("POST", path, handler, body=ignored, inline=True, need=Need.ADMIN)


# Lookups need no credentials: NSQ's clients send none.
ROUTES = (
    Route("GET", "/ping", ping, plain=True, inline=True, need=Need.NOTHING),
    Route("GET", "/info", info, inline=True, need=Need.NOTHING),
    Route("GET", "/debug", everything, inline=True, need=Need.KNOWN),
    Route("GET", "/metrics", metrics, plain=True, logged=False, need=Need.KNOWN),
    Route("GET", "/topics", topics, inline=True, need=Need.NOTHING),
    Route("GET", "/nodes", nodes, inline=True, need=Need.NOTHING),
    Route("GET", "/nodes/lost", lost_nodes, inline=True, need=Need.NOTHING),
    _get("/lookup", lookup),
    _get("/channels", channels),
    _post("/topic/create", create_topic),
    _post("/topic/delete", delete_topic),
    _post("/channel/create", create_channel),
    _post("/channel/delete", delete_channel),
    _post("/topic/tombstone", tombstone),
    *pprof.routes("/debug/pprof", lambda api: api),
)


class Api(router.Api):
    """Application context for the handlers, and the process that /debug/pprof inspects.

    requests: counters of this API. connections: returns the number of connections by kind.
    """

    router = Router(ROUTES)
    reads_headers = frozenset((b"accept", b"authorization"))

    def __init__(
        self,
        registry: Registry,
        clock: Callable[[], Moment],
        limits: Limits,
        log: DetailedLines,
        requests: Requests,
        connections: Callable[[], Mapping[str, int]],
        gate: Gate | None = None,
    ) -> None:
        super().__init__(limits, log, gate)
        self.give_way = Turns().wait
        self.registry = registry
        self.clock = clock
        self.requests = requests
        self.connections = connections
        self._profiler = debug.Profiler()

    def command_line(self) -> str:
        return procfs.command_line()

    def inspect(self, what: str) -> str:
        return debug.tell(what)

    def profile(self, seconds: int) -> str:
        return self._profiler.profile(seconds)
