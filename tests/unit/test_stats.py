"""/stats: merging the workers' shares, key order, null and [], filters, and the text page."""

import json
from typing import Any

import pytest

from nsqcy import __version__
from nsqcy.nsqd.gotext import json_bytes
from nsqcy.nsqd.stats import (
    MEMORY_KEYS,
    Share,
    Stats,
    humanize,
    merge,
    merge_memory,
    process_memory,
    render_text,
)

START = 1_795_173_510
NOW_NS = (START + 137) * 1_000_000_000 + 302_222_392
LATENCY = {"count": 2, "percentiles": [{"quantile": 1.0, "value": 26897574.0}]}


def client(**values: Any) -> dict[str, Any]:
    """Keys in an order of no importance."""
    return {
        "tls_negotiated_protocol_is_mutual": False,
        "tls_negotiated_protocol": "",
        "tls_version": "",
        "tls_cipher_suite": "",
        "tls": False,
        "topology_region": "",
        "topology_zone": "",
        "user_agent": "agent/1",
        "snappy": False,
        "deflate": False,
        "sample_rate": 0,
        "connect_ts": START,
        "requeue_count": 1,
        "finish_count": 2,
        "message_count": 3,
        "in_flight_count": 4,
        "ready_count": 5,
        "state": 3,
        "remote_address": "127.0.0.1:5000",
        "version": "V2",
        "hostname": "host",
        "client_id": "id",
        **values,
    }


def channel(name: str, *clients: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "clients": list(clients),
        "channel_name": name,
        "paused": False,
        "timeout_count": 1,
        "requeue_count": 2,
        "message_count": 3,
        "deferred_count": 4,
        "in_flight_count": 5,
        "backend_depth": 6,
        "depth": 7,
        **values,
    }


def topic(name: str, *channels: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "paused": False,
        "message_bytes": 8,
        "message_count": 9,
        "backend_depth": 10,
        "depth": 11,
        "channels": list(channels),
        "topic_name": name,
        **values,
    }


PRODUCER = client(state=0, remote_address="10.0.0.1:7", pub_counts={"t2": 5, "t1": 4})
SHARES: list[Share] = [
    {
        "topics": [topic("t2"), topic("paused#ephemeral", paused=True)],
        "producers": [PRODUCER],
    },
    {
        "topics": [
            topic(
                "t1",
                channel("c2", paused=True, global_msg_count=3, e2e_processing_latency=LATENCY),
                channel("c1", client()),
                disk_bytes=12,
            )
        ],
        "producers": [],
    },
]


def merged(**options: Any) -> Stats:
    return merge(SHARES, health="OK", start_time=START, **options)


def names(stats: Stats) -> dict[str, list[str]]:
    return {t["topic_name"]: [c["channel_name"] for c in t["channels"]] for t in stats["topics"]}


TOPIC_ORDER = [
    *["topic_name", "channels", "depth", "backend_depth", "message_count", "message_bytes"],
    *["paused", "e2e_processing_latency"],
]
CHANNEL_ORDER = [
    *["channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count"],
    *["message_count", "requeue_count", "timeout_count", "client_count", "clients", "paused"],
    "e2e_processing_latency",
]
CLIENT_ORDER = [
    *["client_id", "hostname", "version", "remote_address", "state", "ready_count"],
    *["in_flight_count", "message_count", "finish_count", "requeue_count", "connect_ts"],
    *["sample_rate", "deflate", "snappy", "user_agent", "topology_zone", "topology_region"],
    *["tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"],
    "tls_negotiated_protocol_is_mutual",
]


def test_key_order() -> None:
    stats = merged(memory=process_memory())
    assert list(stats) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert list(stats["memory"]) == list(MEMORY_KEYS)
    assert names(stats) == {"paused#ephemeral": [], "t1": ["c1", "c2"], "t2": []}
    t1, t2 = stats["topics"][1:]
    assert list(t2) == TOPIC_ORDER
    assert list(t1) == [*TOPIC_ORDER, "disk_bytes"]
    assert t2["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    c1, c2 = t1["channels"]
    assert list(c1) == CHANNEL_ORDER and c1["client_count"] == 1
    with_counter = [*CHANNEL_ORDER[:6], "global_msg_count", *CHANNEL_ORDER[6:]]
    assert list(c2) == with_counter and c2["clients"] == []
    assert list(c1["clients"][0]) == CLIENT_ORDER
    (producer,) = stats["producers"]
    assert list(producer) == [*CLIENT_ORDER[:17], "pub_counts", *CLIENT_ORDER[17:]]


def test_keys_that_are_left_out_when_empty() -> None:
    values: dict[str, Any] = {"authed": False, "auth_identity": "", "auth_identity_url": ""}
    share: Share = {"topics": [], "producers": [client(**values, pub_counts={})]}
    (plain,) = merge([share], health="OK", start_time=1)["producers"]
    assert list(plain) == CLIENT_ORDER
    share = {"topics": [], "producers": [client(authed=True, auth_identity="x")]}
    (authed,) = merge([share], health="OK", start_time=1)["producers"]
    assert list(authed)[15:17] == ["authed", "auth_identity"]


@pytest.mark.case("HTTP-060")
def test_no_topics() -> None:
    memory = dict.fromkeys(MEMORY_KEYS, 0)
    text = json_bytes(merge([], health="OK", start_time=7, memory=memory)).decode()
    assert text.startswith('{"version":"1.3.0","health":"OK","start_time":7,"topics":[],"memory":{')
    assert text.endswith(',"gc_total_runs":0},"producers":null}')


@pytest.mark.case("HTTP-061", "HTTP-062", "HTTP-063", "HTTP-064")
def test_null_and_empty() -> None:
    stats = merged(topic="unknown")
    assert stats["topics"] is None and stats["producers"] is None
    assert merged(topic="t1", channel="nope")["topics"] == []
    assert names(merged(channel="c2")) == {"t1": ["c2"]}
    assert names(merged(topic="t2")) == {"t2": []}
    stats = merged(include_clients=False)
    assert stats["producers"] is None
    assert [c["clients"] for c in stats["topics"][1]["channels"]] == [None, None]
    assert stats["topics"][1]["channels"][0]["client_count"] == 1
    assert "memory" not in stats


@pytest.mark.case("HTTP-066", "HTTP-067")
def test_pub_counts() -> None:
    """All of them, sorted; NSQ shows an arbitrary one."""
    (producer,) = merged()["producers"]
    assert producer["pub_counts"] == [{"topic": "t1", "count": 4}, {"topic": "t2", "count": 5}]
    (producer,) = merged(topic="t2")["producers"]
    assert producer["pub_counts"] == [{"topic": "t2", "count": 5}]
    stats = merged(topic="paused#ephemeral")
    assert "pub_counts" not in stats["producers"][0]
    assert "   [V2 host:7 agent/1       ] state: 0 inflt: 4 " in page(stats)


@pytest.mark.case("HTTP-068")
def test_json_escapes() -> None:
    share: Share = {"topics": [], "producers": [client(hostname="hst<&>")]}
    text = json_bytes(merge([share], health="OK", start_time=1))
    assert b'"hostname":"hst\\u003c\\u0026\\u003e"' in text
    assert json.loads(text)["producers"][0]["hostname"] == "hst<&>"
    assert b'"percentiles":[{"quantile":1,"value":26897574}]' in json_bytes(merged())


def test_memory() -> None:
    memory = process_memory()
    assert list(memory) == list(MEMORY_KEYS) and memory["heap_in_use_bytes"] > 1 << 20
    total = merge_memory([memory, {**memory, "gc_pause_usec_100": 5}])
    assert total["heap_in_use_bytes"] == 2 * memory["heap_in_use_bytes"]
    assert total["gc_pause_usec_100"] == 5
    assert merge_memory([]) == dict.fromkeys(MEMORY_KEYS, 0)


def page(stats: Stats) -> str:
    return render_text(stats, now_ns=NOW_NS, started_ns=START * 1_000_000_000)


def test_text() -> None:
    # The columns are those of NSQ; trailing blanks count.
    lines = page(merged()).split("\n")
    assert lines[0] == f"nsqd v1.3.0 (built w/nsqcy-{__version__})"
    assert lines[1].startswith("start_time 2026-11-2")
    assert lines[2:] == [
        "uptime 2m17.302222392s",
        "",
        "Health: OK",
        "",
        "Topics:",
        "*P [paused#ephemeral] depth: 11    be-depth: 10    msgs: 9        e2e%: ",
        "",
        "   [t1             ] depth: 11    be-depth: 10    msgs: 9        e2e%: ",
        "      [c1                       ] depth: 7     be-depth: 6     inflt: 5    def: 4   "
        " re-q: 2     timeout: 1     msgs: 3        e2e%: ",
        "        [V2 host:5000 agent/1    ] state: 3 inflt: 4    rdy: 5    fin: 2       "
        " re-q: 1        msgs: 3        connected: 2m17s",
        "   *P [c2                       ] depth: 7     be-depth: 6     inflt: 5    def: 4   "
        " re-q: 2     timeout: 1     msgs: 3        e2e%: 26.9ms",
        "",
        "   [t2             ] depth: 11    be-depth: 10    msgs: 9        e2e%: ",
        "",
        "Producers:",
        "   [V2 host:7 agent/1       ] msgs: 9        topics: t1=4,t2=5 connected: 2m17s",
        "",
    ]


def test_text_of_nothing_and_of_memory() -> None:
    memory = {**dict.fromkeys(MEMORY_KEYS, 0), "heap_objects": 12}
    for stats in (
        merged(topic="unknown", memory=memory),
        merge([], health="NOK - x", start_time=1, memory=memory),
    ):
        lines = page(stats).split("\n")
        assert lines[4] == f"Health: {stats['health']}"
        assert lines[5:8] == ["", "Memory:", "   heap_objects             \t12"]
        assert lines[15:] == [
            "   gc_total_runs            \t0",
            *["", "Topics: None", "", "Producers: None", ""],
        ]


def test_text_of_a_unix_client() -> None:
    share: Share = {
        "topics": [],
        "producers": [client(remote_address="@", user_agent=""), client(user_agent="")],
    }
    text = page(merge([share], health="OK", start_time=1))
    assert "   [V2 :                    ] state: 3" in text
    assert "   [V2 host:5000            ] state: 3" in text


@pytest.mark.parametrize(
    "ns, text",
    [(0, "0.0ns"), (1000, "1000.0ns"), (1001, "1.0us"), (26897574, "26.9ms"), (2e9, "2.0s")],
)
def test_humanize(ns: float, text: str) -> None:
    assert humanize(ns) == text
