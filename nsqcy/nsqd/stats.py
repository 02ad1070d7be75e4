"""/stats: the shares of all workers made into one object, and that object made into text.

Pure functions.  They know the keys, their order and what is left out when; they do not know where
the numbers come from.
"""

import gc
import resource
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from nsqcy import NSQ_VERSION, __version__
from nsqcy.durations import format_duration
from nsqcy.nsqd.gotext import rfc3339

Stats = dict[str, Any]


class Share(TypedDict):
    """What one worker knows: the topics it owns and the producers connected to it.

    The dicts have the keys of the tables below (`clients` a list of clients, `pub_counts` a mapping
    from topic to count); keys that NSQ does not have are passed on behind NSQ's.
    """

    topics: Sequence[Mapping[str, Any]]
    producers: Sequence[Mapping[str, Any]]


def _keys(names: str) -> tuple[str, ...]:
    return tuple(names.split())


# A key that ends in "?" is left out when its value is zero, false or empty.
TOPIC_KEYS = _keys(
    "topic_name channels depth backend_depth message_count message_bytes paused"
    " e2e_processing_latency"
)
CHANNEL_KEYS = _keys(
    "channel_name depth backend_depth in_flight_count deferred_count message_count"
    " zone_local_msg_count? region_local_msg_count? global_msg_count?"
    " requeue_count timeout_count client_count clients paused e2e_processing_latency"
)
CLIENT_KEYS = _keys(
    "client_id hostname version remote_address state ready_count in_flight_count message_count"
    " zone_local_msg_count? region_local_msg_count? global_msg_count?"
    " finish_count requeue_count connect_ts sample_rate deflate snappy user_agent"
    " authed? auth_identity? auth_identity_url? topology_zone topology_region pub_counts?"
    " tls tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
)
MEMORY_KEYS = _keys(
    "heap_objects heap_idle_bytes heap_in_use_bytes heap_released_bytes"
    " gc_pause_usec_100 gc_pause_usec_99 gc_pause_usec_95 next_gc_bytes gc_total_runs"
)

NO_LATENCY = {"count": 0, "percentiles": None}


def merge(
    shares: Iterable[Share],
    *,
    health: str,
    start_time: int,
    topic: str = "",
    channel: str = "",
    include_clients: bool = True,
    memory: Mapping[str, int] | None = None,
) -> Stats:
    """The object of `/stats?format=json`; `topic` and `channel` keep only those of that name."""
    shares = list(shares)
    topics = [t for share in shares for t in share["topics"]]
    if topic:
        topics = [t for t in topics if t["topic_name"] == topic]
    unknown_topic = bool(topic) and not topics
    merged = [_topic(t, topic, channel, include_clients) for t in topics]
    if channel:
        merged = [t for t in merged if t["channels"]]
    producers = [_client(p, topic) for share in shares for p in share["producers"]]
    if unknown_topic or not include_clients:
        producers = []

    stats: Stats = {"version": NSQ_VERSION, "health": health, "start_time": start_time}
    # Typed clients tell null from []: no topic of that name is null, no topic at all is [].
    stats["topics"] = None if unknown_topic else sorted(merged, key=lambda t: t["topic_name"])
    if memory is not None:
        stats["memory"] = {key: memory[key] for key in MEMORY_KEYS}
    stats["producers"] = producers or None
    return stats


def _topic(raw: Mapping[str, Any], topic: str, channel: str, include_clients: bool) -> Stats:
    channels = [
        _channel(c, topic, include_clients)
        for c in raw["channels"]
        if not channel or c["channel_name"] == channel
    ]
    channels.sort(key=lambda c: c["channel_name"])
    return _ordered({"e2e_processing_latency": NO_LATENCY, **raw, "channels": channels}, TOPIC_KEYS)


def _channel(raw: Mapping[str, Any], topic: str, include_clients: bool) -> Stats:
    values = {
        "e2e_processing_latency": NO_LATENCY,
        "client_count": len(raw["clients"]),
        **raw,
        "clients": [_client(c, topic) for c in raw["clients"]] if include_clients else None,
    }
    return _ordered(values, CHANNEL_KEYS)


def _client(raw: Mapping[str, Any], topic: str) -> Stats:
    counts = raw.get("pub_counts") or {}
    pub_counts = [
        {"topic": name, "count": count}
        for name, count in sorted(counts.items())
        if not topic or name == topic
    ]
    return _ordered({**raw, "pub_counts": pub_counts}, CLIENT_KEYS)


def _ordered(values: Mapping[str, Any], keys: Sequence[str]) -> Stats:
    result = {}
    for key in keys:
        if key[-1] != "?":
            result[key] = values[key]
        elif values.get(key[:-1]):
            result[key[:-1]] = values[key[:-1]]
    known = {key.rstrip("?") for key in keys}
    result.update((key, value) for key, value in values.items() if key not in known)
    return result


def process_memory() -> dict[str, int]:
    """This process' part of the memory object.  What only Go's heap has is 0."""
    memory = dict.fromkeys(MEMORY_KEYS, 0)
    with open("/proc/self/statm") as statm:
        memory["heap_in_use_bytes"] = int(statm.read().split()[1]) * resource.getpagesize()
    memory["gc_total_runs"] = sum(generation["collections"] for generation in gc.get_stats())
    return memory


def merge_memory(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums over the processes; of pauses the longest."""
    columns = list(parts)
    return {
        key: (max if key.startswith("gc_pause") else sum)([part[key] for part in columns] or [0])
        for key in MEMORY_KEYS
    }


# Text


def render_text(stats: Stats, *, now_ns: int, started_ns: int) -> str:
    """The page of `/stats` without `format=json`; both times are wall clock."""
    lines = [
        f"nsqd v{stats['version']} (built w/nsqcy-{__version__})",
        f"start_time {rfc3339(stats['start_time'])}",
        f"uptime {format_duration(now_ns - started_ns)}",
        "",
        f"Health: {stats['health']}",
    ]
    if "memory" in stats:
        lines += ["", "Memory:"]
        lines += [f"   {key:<25}\t{value}" for key, value in stats["memory"].items()]
    topics = stats["topics"] or []
    lines += ["", "Topics:" if topics else "Topics: None"]
    now = now_ns // 1_000_000_000
    for number, topic in enumerate(topics):
        if number:
            lines.append("")
        lines.append(_topic_line(topic))
        for channel in topic["channels"]:
            lines.append(_channel_line(channel))
            lines += [" " * 8 + _client_line(c, now) for c in channel["clients"] or []]
    producers = stats["producers"] or []
    lines += ["", "Producers:" if producers else "Producers: None"]
    lines += [" " * 3 + _client_line(p, now) for p in producers]
    return "\n".join(lines) + "\n"


def _topic_line(topic: Stats) -> str:
    return (
        f"{'*P' if topic['paused'] else '  '} [{topic['topic_name']:<15}]"
        f" depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5}"
        f" msgs: {topic['message_count']:<8} e2e%: {_latency(topic)}"
    )


def _channel_line(channel: Stats) -> str:
    return (
        f"   {'*P' if channel['paused'] else '  '} [{channel['channel_name']:<25}]"
        f" depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5}"
        f" inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4}"
        f" re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5}"
        f" msgs: {channel['message_count']:<8} e2e%: {_latency(channel)}"
    )


def _client_line(client: Stats, now: int) -> str:
    _, colon, port = client["remote_address"].rpartition(":")
    # A unix socket has neither host nor port.
    name = f"{client['hostname']}:{port} {client['user_agent']}" if colon else ": "
    connected = format_duration((now - client["connect_ts"]) * 1_000_000_000)
    counts = client.get("pub_counts")
    if counts:
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in counts)
        total = sum(entry["count"] for entry in counts)
        return f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {name:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4}"
        f" rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8}"
        f" re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8}"
        f" connected: {connected}"
    )


def _latency(item: Stats) -> str:
    percentiles = item["e2e_processing_latency"]["percentiles"] or []
    return ", ".join(humanize(entry["value"]) for entry in percentiles)


def humanize(ns: float) -> str:
    """Nanoseconds with one decimal in the largest unit they exceed one of: `26.9ms`, `0.0ns`."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns > size:
            return f"{ns / size:.1f}{unit}"
    return f"{ns:.1f}ns"
