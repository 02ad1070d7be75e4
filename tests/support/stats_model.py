"""Model of a worker's share of /stats: slow and obvious, from counters as Python objects.

Compares with server/stats.pyx. `Sampled` does the same for the rates.
"""

import re
from typing import Any, NamedTuple

from nsqcy.broker.core import Topic
from nsqcy.channels.core import Channel, Consumer
from nsqcy.cluster import rates
from nsqcy.cluster.rates import Counts
from nsqcy.config.durations import format_duration
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.server.core import Sampling, humanize
from nsqcy.util.gotext import json_bytes, utf8
from support.worker_core import SECOND, Core

LOCALITIES = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
OMITTED_WHEN_EMPTY = (*LOCALITIES, "authed", "auth_identity", "auth_identity_url", "pub_counts")
OURS = ("durability", "cursors", "policy")


class Pieces(NamedTuple):
    topics: bytes
    producers: bytes


class Sampled:
    """The counters at each sample, and the rates since then."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._samples: dict[int, list[tuple[int, Any]]] = {}

    def sample(self) -> Sampling:
        for topic in self._core.shard.topics.values():
            self._add(topic, topic.message_count)
            for channel in topic.channels.values():
                self._add(channel, counts(channel))
                for consumer in channel.consumers:
                    self._add(consumer, consumer.finish_count)
        sampling = Sampling(self._core.shard)
        assert not sampling.go_on(1 << 20)
        return sampling

    def _add(self, thing: Any, counted: Any) -> None:
        samples = self._samples.setdefault(id(thing), [])
        samples[:] = [*samples[-1:], (self._core.scheduler.now, counted)]

    def since(self, thing: Any) -> tuple[float, Any] | None:
        """Return the seconds since the oldest sample that is old enough, and its counters."""
        for at, counted in self._samples.get(id(thing), []):
            if self._core.scheduler.now - at >= SECOND:
                return (self._core.scheduler.now - at) / 1e9, counted
        return None

    def of_counter(self, thing: Any, count: int) -> str:
        found = self.since(thing)
        return raw(None if found is None else rates.per_second(found[1], count, found[0]))

    def of_channel(self, channel: Channel) -> dict[str, Any]:
        found = self.since(channel)
        now = None if found is None else rates.between(found[1], counts(channel), found[0])
        depth = channel.counters()["depth"]
        names = ["receive_rate", "finish_rate", "requeue_rate", "timeout_rate", "falling_behind"]
        return {
            **dict(zip(names, map(raw, now or [None] * 5), strict=True)),
            "drain_seconds": raw(None if now is None else rates.drain_seconds(depth, now.growth)),
            "saturated_client_count": depth and sum(map(is_saturated, channel.consumers)),
            "backing_off_client_count": depth and sum(not c.ready_count for c in channel.consumers),
        }


def counts(channel: Channel) -> Counts:
    shown = channel.counters()
    backlog = shown["depth"] + shown["in_flight_count"]
    received, finished = channel.message_count, channel.finish_count
    return Counts(received, finished, channel.requeue_count, channel.timeout_count, backlog)


def is_saturated(consumer: Consumer) -> bool:
    return 0 < consumer.ready_count <= consumer.in_flight


def raw(number: float | None) -> str:
    """Return a number that `joined` writes as it is: rates have six digits."""
    return "@null@" if number is None else f"@{number:.6g}@"


def pieces(core: Core, query: Query, sampled: Sampled) -> Pieces:
    topics = [
        topic
        for topic in sorted(core.shard.topics.values(), key=lambda topic: topic.name)
        if query.topic in ("", topic.name) and query.channel in ("", *topic.channels)
    ]
    producers = core.manager.producers() if query.include_clients else []
    if query.json:
        return Pieces(
            joined([json_topic(topic, query, sampled) for topic in topics]),
            joined([json_client(client, query) for client in producers]),
        )
    return Pieces(
        b"".join(utf8(text_topic(topic, query, core) + "\n\n") for topic in topics),
        b"".join(utf8(f"   {text_client(client, query, core)}\n") for client in producers),
    )


def joined(values: list[dict[str, Any]]) -> bytes:
    return b"".join(re.sub(rb'"@([^"@]*)@"', rb"\1", json_bytes(value)) + b"," for value in values)


def channels_of(topic: Topic, query: Query) -> list[Channel]:
    found = sorted(topic.channels.values(), key=lambda channel: channel.name)
    return [channel for channel in found if query.channel in ("", channel.name)]


def present(counters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in counters.items() if value or key not in OMITTED_WHEN_EMPTY}


def with_ours(shown: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Put `added` before the keys that only some objects have."""
    usual = {key: value for key, value in shown.items() if key not in OURS}
    return usual | added | {key: value for key, value in shown.items() if key in OURS}


def thinned(shown: dict[str, Any], query: Query) -> dict[str, Any]:
    kept = ("channels", "clients") if query.include_clients else ("channels",)
    empty = (0, False, None, "@null@", {"count": 0, "percentiles": None})
    return {
        key: value
        for key, value in shown.items()
        if key in kept or not query.sparse or value not in empty
    }


def json_topic(topic: Topic, query: Query, sampled: Sampled) -> dict[str, Any]:
    channels = [json_channel(each, query, sampled) for each in channels_of(topic, query)]
    name, *others = topic.counters().items()
    shown = dict([name, ("channels", channels), *others])
    shown = with_ours(shown, {"publish_rate": sampled.of_counter(topic, topic.message_count)})
    return thinned(shown, query) | ({"ledger": topic.ledger()} if query.ledger else {})


def json_channel(channel: Channel, query: Query, sampled: Sampled) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    depth = channel.counters()["depth"]
    for key, value in present(channel.counters()).items():
        if key == "paused":
            shown["clients"] = None
            if query.include_clients:
                shown["clients"] = [
                    json_client(client, query)
                    | {
                        "finish_rate": sampled.of_counter(client, client.finish_count),
                        "saturated": depth > 0 and is_saturated(client),
                    }
                    for client in channel.consumers
                ]
        shown[key] = value
    shown = with_ours(shown, sampled.of_channel(channel))
    return thinned(shown, query) | ({"ledger": channel.ledger()} if query.ledger else {})


def pub_counts(counters: dict[str, Any], query: Query) -> list[tuple[str, int]]:
    return [
        (topic, count)
        for topic, count in sorted(counters["pub_counts"].items())
        if query.topic in ("", topic)
    ]


def json_client(client: Consumer, query: Query) -> dict[str, Any]:
    shown = client.counters()
    shown["pub_counts"] = [
        {"topic": topic, "count": count} for topic, count in pub_counts(shown, query)
    ]
    return present(shown)


def latency(counters: dict[str, Any]) -> str:
    percentiles = counters["e2e_processing_latency"]["percentiles"] or ()
    return ", ".join(humanize(each["value"]) for each in percentiles)


def text_topic(topic: Topic, query: Query, core: Core) -> str:
    shown = topic.counters()
    line = (
        f"{'*P' if shown['paused'] else '  '} [{shown['topic_name']:<15}]"
        f" depth: {shown['depth']:<5} be-depth: {shown['backend_depth']:<5}"
        f" msgs: {shown['message_count']:<8} e2e%: {latency(shown)}"
    )
    return "\n".join(
        [line, *(text_channel(each, query, core) for each in channels_of(topic, query))]
    )


def text_channel(channel: Channel, query: Query, core: Core) -> str:
    shown = channel.counters()
    line = (
        f"   {'*P' if shown['paused'] else '  '} [{shown['channel_name']:<25}]"
        f" depth: {shown['depth']:<5} be-depth: {shown['backend_depth']:<5}"
        f" inflt: {shown['in_flight_count']:<4} def: {shown['deferred_count']:<4}"
        f" re-q: {shown['requeue_count']:<5} timeout: {shown['timeout_count']:<5}"
        f" msgs: {shown['message_count']:<8} e2e%: {latency(shown)}"
    )
    clients = channel.consumers if query.include_clients else ()
    return "\n        ".join([line, *(text_client(each, query, core) for each in clients)])


def text_client(client: Consumer, query: Query, core: Core) -> str:
    shown = client.counters()
    _, colon, port = shown["remote_address"].rpartition(":")
    name = f"{shown['hostname']}:{port} {shown['user_agent']}" if colon else ": "
    connected = format_duration((core.wall // SECOND - shown["connect_ts"]) * SECOND)
    counted = pub_counts(shown, query)
    if counted:
        topics = ",".join(f"{topic}={count}" for topic, count in counted)
        total = sum(count for _, count in counted)
        return f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {name:<21}] state: {shown['state']} inflt: {shown['in_flight_count']:<4}"
        f" rdy: {shown['ready_count']:<4} fin: {shown['finish_count']:<8}"
        f" re-q: {shown['requeue_count']:<8} msgs: {shown['message_count']:<8}"
        f" connected: {connected}"
    )
