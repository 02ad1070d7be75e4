"""The formats of /stats: topics, channels and clients as JSON and as text.

Pure functions of counters (the dicts of `Topic.counters()` and others). They define the keys, the
key order, and when a key is omitted; callers supply the numbers. A page consists of pieces: a
client's piece is part of its channel's piece, a channel's piece is part of its topic's piece, and
the topics' pieces are joined unchanged.
"""

import gc
import re
import resource
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from nsqcy import NSQ_VERSION, __version__
from nsqcy.cluster.rates import Rates, drain_seconds
from nsqcy.config.durations import format_duration
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.util import procfs
from nsqcy.util.gotext import json_bytes, json_string, rfc3339

Counters = Mapping[str, Any]

MEMORY_KEYS = (
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
    "gc_total_runs",
)
LATENCY = "e2e_processing_latency"


class Head(NamedTuple):
    """The start of a page. Both times are wall clock, in nanoseconds."""

    health: str
    started: int
    now: int
    draining: bool = False


class Form(Protocol):
    """Formats a page. In a client's form, `topic` selects that topic's entry in the client's
    counts."""

    def client(self, counters: Counters, topic: str, now: int) -> str: ...
    def channel(self, counters: Counters, clients: Sequence[str] | None) -> str:
        """`clients` is None if clients are not shown."""

    def topic(self, counters: Counters, channels: Sequence[str]) -> str: ...
    def producers(self, clients: Iterable[str]) -> str:
        """Format some of the producers; `page` joins all pieces."""

    def page(
        self,
        head: Head,
        topics: Sequence[bytes] | None,
        memory: Mapping[str, int] | None,
        producers: Sequence[bytes],
        events: Mapping[str, int] | None = None,
    ) -> bytes:
        """`topics` is None if the requested topic does not exist, and `events` is None if no events
        are published."""


def form(query: Query) -> Form:
    """Return the format that a query requests."""
    return JSON if query.json else TEXT


def encode(text: str) -> bytes:
    """Replace bytes that were not valid UTF-8, as Go does in JSON."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


_SURROGATE = re.compile("[\ud800-\udfff]")


def pub_counts(counters: Counters, topic: str) -> list[tuple[str, int]]:
    """Return the number of messages that a client has published to each topic, or only to this
    topic."""
    counts = counters.get("pub_counts")
    if not counts:
        return []
    if topic:
        return [(topic, counts[topic])] if topic in counts else []
    return sorted(counts.items())


# JSON


_BOOL = ("false", "true")
_NO_LATENCY = '{"count":0,"percentiles":null}'

_TOPIC = (
    '{"topic_name":"%s","channels":[%s],"depth":%d,"backend_depth":%d,"message_count":%d'
    ',"message_bytes":%d,"paused":%s,"e2e_processing_latency":%s%s%s}'
)
_topic_numbers = itemgetter("depth", "backend_depth", "message_count", "message_bytes")
_TOPIC_KEYS = frozenset(
    [
        *("topic_name", "depth", "backend_depth", "message_count", "message_bytes", "paused"),
        *(LATENCY, "publish_rate"),
    ]
)

_CHANNEL = (
    '{"channel_name":"%s","depth":%d,"backend_depth":%d,"in_flight_count":%d,"deferred_count":%d'
    ',"message_count":%d%s,"requeue_count":%d,"timeout_count":%d,"client_count":%d,"clients":%s'
    ',"paused":%s,"e2e_processing_latency":%s%s%s}'
)
_channel_numbers = itemgetter(
    *("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count")
)
_LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_CHANNEL_KEYS = frozenset(
    [
        *("channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count"),
        *("message_count", "requeue_count", "timeout_count", "client_count", "paused", LATENCY),
        *_LOCALITIES,
        *("rates", "saturated_client_count", "backing_off_client_count"),
    ]
)

_CLIENT = (
    '{"client_id":%s,"hostname":%s,"version":"%s","remote_address":%s,"state":%d,"ready_count":%d'
    ',"in_flight_count":%d,"message_count":%d,"finish_count":%d,"requeue_count":%d,"connect_ts":%d'
    ',"sample_rate":%d,"deflate":%s,"snappy":%s,"user_agent":%s%s,"topology_zone":%s'
    ',"topology_region":%s%s,"tls":%s,"tls_cipher_suite":"%s","tls_version":"%s"'
    ',"tls_negotiated_protocol":%s,"tls_negotiated_protocol_is_mutual":%s%s%s}'
)
_client_numbers = itemgetter(
    *("state", "ready_count", "in_flight_count", "message_count", "finish_count"),
    *("requeue_count", "connect_ts", "sample_rate"),
)
_CLIENT_KEYS = frozenset(
    [
        *("client_id", "hostname", "version", "remote_address", "state", "ready_count"),
        *("in_flight_count", "message_count", "finish_count", "requeue_count", "connect_ts"),
        *("sample_rate", "deflate", "snappy", "user_agent", "authed", "auth_identity"),
        *("auth_identity_url", "topology_zone", "topology_region", "pub_counts", "tls"),
        *("tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
        *("tls_negotiated_protocol_is_mutual", "finish_rate", "saturated"),
    ]
)


class JsonForm:
    """`/stats?format=json`. NSQ's keys come first; the keys that NSQ does not have follow."""

    def client(self, counters: Counters, topic: str, now: int) -> str:
        return _CLIENT % (
            json_string(counters["client_id"]),
            json_string(counters["hostname"]),
            counters["version"],
            json_string(counters["remote_address"]),
            *_client_numbers(counters),
            _BOOL[counters["deflate"]],
            _BOOL[counters["snappy"]],
            json_string(counters["user_agent"]),
            _authorization(counters),
            json_string(counters["topology_zone"]),
            json_string(counters["topology_region"]),
            _json_counts(pub_counts(counters, topic)),
            _BOOL[counters["tls"]],
            counters["tls_cipher_suite"],
            counters["tls_version"],
            json_string(counters["tls_negotiated_protocol"]),
            _BOOL[counters["tls_negotiated_protocol_is_mutual"]],
            _client_rates(counters),
            _others(counters, _CLIENT_KEYS),
        )

    def channel(self, counters: Counters, clients: Sequence[str] | None) -> str:
        return _CHANNEL % (
            counters["channel_name"],
            *_channel_numbers(counters),
            _localities(counters),
            counters["requeue_count"],
            counters["timeout_count"],
            counters["client_count"],
            "null" if clients is None else f"[{','.join(clients)}]",
            _BOOL[counters["paused"]],
            _json_latency(counters),
            _channel_rates(counters),
            _others(counters, _CHANNEL_KEYS),
        )

    def topic(self, counters: Counters, channels: Sequence[str]) -> str:
        return _TOPIC % (
            counters["topic_name"],
            ",".join(channels),
            *_topic_numbers(counters),
            _BOOL[counters["paused"]],
            _json_latency(counters),
            _topic_rate(counters),
            _others(counters, _TOPIC_KEYS),
        )

    def producers(self, clients: Iterable[str]) -> str:
        return ",".join(clients)

    def page(
        self,
        head: Head,
        topics: Sequence[bytes] | None,
        memory: Mapping[str, int] | None,
        producers: Sequence[bytes],
        events: Mapping[str, int] | None = None,
    ) -> bytes:
        start = {
            "version": NSQ_VERSION,
            "health": head.health,
            "start_time": head.started // 1_000_000_000,
        }
        if head.draining:
            start["draining"] = True
        # Typed clients distinguish null from []: null if the requested topic does not exist, [] if
        # there are no topics.
        parts = [json_bytes(start)[:-1], b',"topics":']
        parts += [b"null"] if topics is None else [b"[", b",".join(topics), b"]"]
        if memory is not None:
            parts += [b',"memory":', json_bytes({key: memory[key] for key in MEMORY_KEYS})]
        parts += [b',"producers":']
        parts += [b"[", b",".join(producers), b"]"] if producers else [b"null"]
        if events is not None:
            parts += [b',"events":', json_bytes(dict(events))]
        return b"".join([*parts, b"}"])


def _localities(counters: Counters) -> str:
    shown = [f',"{key}":{counters[key]}' for key in _LOCALITIES if counters.get(key)]
    return "".join(shown)


def _authorization(counters: Counters) -> str:
    text = ',"authed":true' if counters.get("authed") else ""
    for key in ("auth_identity", "auth_identity_url"):
        if counters.get(key):
            text += f',"{key}":{json_string(counters[key])}'
    return text


def _json_counts(counts: list[tuple[str, int]]) -> str:
    if not counts:
        return ""
    entries = ",".join(f'{{"topic":"{topic}","count":{count}}}' for topic, count in counts)
    return f',"pub_counts":[{entries}]'


def _json_latency(counters: Counters) -> str:
    latency = counters.get(LATENCY)
    if not latency or latency["percentiles"] is None:
        return _NO_LATENCY
    entries = ",".join(
        f'{{"quantile":{_number(each["quantile"])},"value":{_number(each["value"])}}}'
        for each in latency["percentiles"]
    )
    return f'{{"count":{latency["count"]},"percentiles":[{entries}]}}'


def _number(value: float) -> str:
    return str(int(value) if value == int(value) else value)


_CHANNEL_RATES = (
    ',"receive_rate":%.6g,"finish_rate":%.6g,"requeue_rate":%.6g,"timeout_rate":%.6g'
    ',"falling_behind":%.6g,"drain_seconds":%s,"saturated_client_count":%d'
    ',"backing_off_client_count":%d'
)
_UNKNOWN_RATES = _CHANNEL_RATES.replace("%.6g", "null").replace("%s", "null")


def _channel_rates(counters: Counters) -> str:
    if "rates" not in counters:
        return ""
    rates: Rates | None = counters["rates"]
    clients = counters["saturated_client_count"], counters["backing_off_client_count"]
    if rates is None:
        return _UNKNOWN_RATES % clients
    drain = _rate(drain_seconds(counters["depth"], rates.growth))
    return _CHANNEL_RATES % (*rates, drain, *clients)


def _client_rates(counters: Counters) -> str:
    if "saturated" not in counters:
        return ""
    finish_rate, saturated = _rate(counters["finish_rate"]), _BOOL[counters["saturated"]]
    return f',"finish_rate":{finish_rate},"saturated":{saturated}'


def _topic_rate(counters: Counters) -> str:
    if "publish_rate" not in counters:
        return ""
    return f',"publish_rate":{_rate(counters["publish_rate"])}'


def _rate(value: float | None) -> str:
    return "null" if value is None else f"{value:.6g}"


def _others(counters: Counters, known: frozenset[str]) -> str:
    if counters.keys() <= known:
        return ""
    others = {key: value for key, value in counters.items() if key not in known}
    return "," + json_bytes(others).decode()[1:-1]


# Text


class TextForm:
    """`/stats` as text."""

    def client(self, counters: Counters, topic: str, now: int) -> str:
        _, colon, port = counters["remote_address"].rpartition(":")
        # A unix socket has neither host nor port.
        name = f"{counters['hostname']}:{port} {counters['user_agent']}" if colon else ": "
        seconds = now // 1_000_000_000 - counters["connect_ts"]
        connected = format_duration(seconds * 1_000_000_000)
        counts = pub_counts(counters, topic)
        if counts:
            topics = ",".join(f"{topic}={count}" for topic, count in counts)
            total = sum(count for _, count in counts)
            return f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
        return (
            f"[V2 {name:<21}] state: {counters['state']} inflt: {counters['in_flight_count']:<4}"
            f" rdy: {counters['ready_count']:<4} fin: {counters['finish_count']:<8}"
            f" re-q: {counters['requeue_count']:<8} msgs: {counters['message_count']:<8}"
            f" connected: {connected}"
        )

    def channel(self, counters: Counters, clients: Sequence[str] | None) -> str:
        line = (
            f"   {'*P' if counters['paused'] else '  '} [{counters['channel_name']:<25}]"
            f" depth: {counters['depth']:<5} be-depth: {counters['backend_depth']:<5}"
            f" inflt: {counters['in_flight_count']:<4} def: {counters['deferred_count']:<4}"
            f" re-q: {counters['requeue_count']:<5} timeout: {counters['timeout_count']:<5}"
            f" msgs: {counters['message_count']:<8} e2e%: {_text_latency(counters)}"
        )
        return "\n        ".join([line, *(clients or ())])

    def topic(self, counters: Counters, channels: Sequence[str]) -> str:
        line = (
            f"{'*P' if counters['paused'] else '  '} [{counters['topic_name']:<15}]"
            f" depth: {counters['depth']:<5} be-depth: {counters['backend_depth']:<5}"
            f" msgs: {counters['message_count']:<8} e2e%: {_text_latency(counters)}"
        )
        return "\n".join([line, *channels])

    def producers(self, clients: Iterable[str]) -> str:
        return "\n".join("   " + client for client in clients)

    def page(
        self,
        head: Head,
        topics: Sequence[bytes] | None,
        memory: Mapping[str, int] | None,
        producers: Sequence[bytes],
        events: Mapping[str, int] | None = None,
    ) -> bytes:
        lines = [
            f"nsqd v{NSQ_VERSION} (built w/nsqcy-{__version__})",
            f"start_time {rfc3339(head.started // 1_000_000_000)}",
            f"uptime {format_duration(head.now - head.started)}",
            "",
            f"Health: {head.health}",
        ]
        if head.draining:
            lines += ["Draining: publishes are refused"]
        if memory is not None:
            lines += ["", "Memory:"]
            lines += [f"   {key:<25}\t{memory[key]}" for key in MEMORY_KEYS]
        if events is not None:
            lines += ["", "Events: {published} published, {dropped} dropped".format_map(events)]
        parts = [encode("\n".join(lines)), b"\n\nTopics:" + (b"\n" if topics else b" None")]
        parts += [b"\n\n".join(topics or ())]
        parts += [b"\n\nProducers:" + (b"\n" if producers else b" None")]
        parts += [b"\n".join(producers), b"\n"]
        return b"".join(parts)


def _text_latency(counters: Counters) -> str:
    latency = counters.get(LATENCY)
    percentiles = latency["percentiles"] if latency else None
    return ", ".join(humanize(entry["value"]) for entry in percentiles or ())


def humanize(ns: float) -> str:
    """Format nanoseconds with one decimal place, in the largest unit that gives a value over 1:
    `26.9ms`, `0.0ns`."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns > size:
            return f"{ns / size:.1f}{unit}"
    return f"{ns:.1f}ns"


JSON = JsonForm()
TEXT = TextForm()


# Memory


def process_memory() -> dict[str, int]:
    """Return this process's share of the memory object. Figures that exist only for Go's heap are
    0."""
    memory = dict.fromkeys(MEMORY_KEYS, 0)
    pages = procfs.read("/proc/self/statm").split()
    if pages:
        memory["heap_in_use_bytes"] = int(pages[1]) * resource.getpagesize()
    memory["gc_total_runs"] = sum(generation["collections"] for generation in gc.get_stats())
    return memory


def merge_events(parts: Iterable[Mapping[str, int] | None]) -> dict[str, int] | None:
    """Return the sums over the workers; None if no events are published."""
    counts = [part for part in parts if part is not None]
    if not counts:
        return None
    return {key: sum(part[key] for part in counts) for key in ("published", "dropped")}


def merge_memory(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums over the processes, and the maximum of the GC pauses."""
    columns = list(parts)
    return {
        key: (max if key.startswith("gc_pause") else sum)([part[key] for part in columns] or [0])
        for key in MEMORY_KEYS
    }
