"""/stats: the workers' shares and the resulting page: key order, null and [], filters, text."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy import __version__
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import stats_page
from nsqcy.nsqd.stats.stats_formats import MEMORY_KEYS, humanize, merge_memory, process_memory
from nsqcy.nsqd.stats.stats_page import SLICE, Health, Walk, Whole
from nsqcy.process.control import Answer
from nsqcy.util.slices import Slices

START = 1_795_173_510
STARTED_NS = START * 1_000_000_000
NOW_NS = (START + 137) * 1_000_000_000 + 302_222_392
LATENCY = {"count": 2, "percentiles": [{"quantile": 1.0, "value": 26897574.0}]}


class Client:
    """A client with keys in an arbitrary order."""

    closed = False

    def __init__(self, **values: Any) -> None:
        self._values = {
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

    def counters(self) -> dict[str, Any]:
        return self._values


class Channel:
    def __init__(
        self, name: str, *clients: Client, ledger: dict[str, Any] | None = None, **values: Any
    ) -> None:
        self.name = name
        self.consumers = clients
        self._ledger = ledger or {}
        self._values = {
            "client_count": len(clients),
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

    def ledger(self) -> dict[str, Any]:
        return self._ledger

    def counters(self) -> dict[str, Any]:
        return self._values


class Topic:
    gone = False

    def __init__(self, name: str, *channels: Channel, **values: Any) -> None:
        self.name = name
        self.channels = {channel.name: channel for channel in channels}
        self._values = {
            "paused": False,
            "message_bytes": 8,
            "message_count": 9,
            "backend_depth": 10,
            "depth": 11,
            "topic_name": name,
            **values,
        }

    def ledger(self) -> dict[str, Any]:
        return {"expired": 12}

    def counters(self) -> dict[str, Any]:
        return self._values


Worker = tuple[Sequence[Topic], Sequence[Client]]

PRODUCER = Client(state=0, remote_address="10.0.0.1:7", pub_counts={"t2": 5, "t1": 4})
CREW: list[Worker] = [
    ([Topic("t2"), Topic("paused#ephemeral", paused=True)], [PRODUCER]),
    (
        [
            Topic(
                "t1",
                Channel("c2", paused=True, global_msg_count=3, e2e_processing_latency=LATENCY),
                Channel("c1", Client()),
                disk_bytes=12,
            )
        ],
        [],
    ),
]


WELL = Health("OK", 0)


def share(worker: Worker, query: Query, health: Health = WELL) -> Answer:
    topics = [topic for topic in worker[0] if query.topic in ("", topic.name)]
    walk = Walk(query, lambda: None, NOW_NS)
    return stats_page.pack(
        walk.topics(topics),
        walk.producers(worker[1]),
        known=bool(topics),
        health=health,
        memory=dict.fromkeys(MEMORY_KEYS, 0) | {"heap_objects": 12},
    )


def gather(crew: Sequence[Worker], query: Query) -> Whole:
    return stats_page.merge([share(worker, query) for worker in crew], len(crew))


def body(crew: Sequence[Worker], **options: Any) -> bytes:
    query = Query(**({"json": True, "include_mem": False} | options))
    return stats_page.page(gather(crew, query), query, started=STARTED_NS, now=NOW_NS)


def merged(crew: Sequence[Worker] = CREW, **options: Any) -> Any:
    return json.loads(body(crew, **options))


def page(crew: Sequence[Worker] = CREW, **options: Any) -> str:
    return body(crew, json=False, **options).decode()


def names(stats: Any) -> dict[str, list[str]]:
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
    stats = merged(include_mem=True)
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


def test_every_value_is_behind_its_key() -> None:
    """Each value is unique, so swapped values would be noticed."""
    strings = ["client_id", "hostname", "remote_address", "user_agent", "topology_zone"]
    strings += ["topology_region", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"]
    numbers = ["state", "ready_count", "in_flight_count", "message_count", "finish_count"]
    numbers += ["requeue_count", "connect_ts", "sample_rate"]
    values = {key: key.upper() for key in strings} | {key: 7 + len(key) for key in numbers}
    for flag in ("deflate", "snappy", "tls", "tls_negotiated_protocol_is_mutual", "authed"):
        client = Client(**values, **{flag: True})
        (shown,) = merged([([], [client])])["producers"]
        expected = client.counters() | {flag: True}
        assert shown == expected

    channel = Channel("c")
    channel.counters().update({key: hash(key) % 10**6 for key in channel.counters() if "_" in key})
    channel.counters().update(channel_name="c", zone_local_msg_count=1, region_local_msg_count=2)
    topic = Topic("t", channel, depth=21, backend_depth=22, message_count=23, message_bytes=24)
    (shown,) = merged([([topic], [])])["topics"]
    (shown_channel,) = shown.pop("channels")
    latency = {"e2e_processing_latency": {"count": 0, "percentiles": None}}
    assert shown == topic.counters() | latency
    assert shown_channel == channel.counters() | latency | {"clients": []}
    keys = list(shown_channel)
    assert keys[5:9] == [
        *("message_count", "zone_local_msg_count", "region_local_msg_count", "requeue_count")
    ]


def test_keys_that_are_left_out_when_empty() -> None:
    values: dict[str, Any] = {"authed": False, "auth_identity": "", "auth_identity_url": ""}
    (plain,) = merged([([], [Client(**values, pub_counts={})])])["producers"]
    assert list(plain) == CLIENT_ORDER
    (authed,) = merged([([], [Client(authed=True, auth_identity="x<")])])["producers"]
    assert list(authed)[15:17] == ["authed", "auth_identity"] and authed["auth_identity"] == "x<"


@pytest.mark.case("HTTP-060")
def test_no_topics() -> None:
    text = body([([], [])], include_mem=True).decode()
    start = f'{{"version":"1.3.0","health":"OK","start_time":{START},"topics":[],"memory":{{'
    assert text.startswith(start)
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
    """nsqcy shows all topics, sorted; NSQ shows an arbitrary one."""
    (producer,) = merged()["producers"]
    assert producer["pub_counts"] == [{"topic": "t1", "count": 4}, {"topic": "t2", "count": 5}]
    (producer,) = merged(topic="t2")["producers"]
    assert producer["pub_counts"] == [{"topic": "t2", "count": 5}]
    assert "pub_counts" not in merged(topic="paused#ephemeral")["producers"][0]
    line = "   [V2 host:7 agent/1       ] state: 0 inflt: 4 "
    assert line in page(topic="paused#ephemeral")


@pytest.mark.case("HTTP-068")
def test_json_escapes() -> None:
    text = body([([], [Client(hostname="hst<&>")])])
    assert b'"hostname":"hst\\u003c\\u0026\\u003e"' in text
    assert json.loads(text)["producers"][0]["hostname"] == "hst<&>"
    assert b'"percentiles":[{"quantile":1,"value":26897574}]' in body(CREW)


def test_what_is_not_utf_8_is_replaced() -> None:
    crew: list[Worker] = [([], [Client(hostname="h\udcff", user_agent="\ud800")])]
    assert merged(crew)["producers"][0]["hostname"] == "h\ufffd"
    assert "[V2 h\ufffd:5000 \ufffd" in page(crew)


def test_memory() -> None:
    memory = process_memory()
    assert list(memory) == list(MEMORY_KEYS) and memory["heap_in_use_bytes"] > 1 << 20
    total = merge_memory([memory, {**memory, "gc_pause_usec_100": 5}])
    assert total["heap_in_use_bytes"] == 2 * memory["heap_in_use_bytes"]
    assert total["gc_pause_usec_100"] == 5
    assert merge_memory([]) == dict.fromkeys(MEMORY_KEYS, 0)
    assert merged(include_mem=True)["memory"]["heap_objects"] == 24


def test_text() -> None:
    # The columns match NSQ's, including trailing blanks.
    lines = page().split("\n")
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
    for text in (page(topic="unknown", include_mem=True), page([([], [])], include_mem=True)):
        lines = text.split("\n")
        assert lines[4] == "Health: OK"
        assert lines[5:7] == ["", "Memory:"]
        assert lines[7].startswith("   heap_objects             \t")
        assert lines[15:] == [
            "   gc_total_runs            \t0",
            *["", "Topics: None", "", "Producers: None", ""],
        ]


def test_text_of_a_unix_client() -> None:
    text = page([([], [Client(remote_address="@", user_agent=""), Client(user_agent="")])])
    assert "   [V2 :                    ] state: 3" in text
    assert "   [V2 host:5000            ] state: 3" in text


@pytest.mark.parametrize(
    "ns, text",
    [(0, "0.0ns"), (1000, "1000.0ns"), (1001, "1.0us"), (26897574, "26.9ms"), (2e9, "2.0s")],
)
def test_humanize(ns: float, text: str) -> None:
    assert humanize(ns) == text


# Shares


NAMES = st.text("ab.-_Z9", min_size=1, max_size=6)
CHANNELS = st.lists(
    st.builds(lambda name, n: Channel(name, *[Client()] * n), NAMES, st.integers(0, 3)),
    max_size=4,
    unique_by=lambda channel: channel.name,
)
TOPICS = st.lists(
    st.builds(lambda name, channels: Topic(name, *channels), NAMES, CHANNELS),
    max_size=12,
    unique_by=lambda topic: topic.name,
)
QUERIES = st.builds(
    Query,
    json=st.booleans(),
    topic=st.just("") | NAMES,
    channel=st.just("") | NAMES,
    include_clients=st.booleans(),
    include_mem=st.just(False),
)


@pytest.mark.slow
@given(TOPICS, st.lists(st.integers(0, 2), min_size=15, max_size=15), QUERIES)
def test_where_topics_live_does_not_show(
    topics: list[Topic], places: list[int], query: Query
) -> None:
    """The page for three workers equals the page for a single worker with all topics."""
    clients = [Client(remote_address=f"1.2.3.4:{port}") for port in range(3)]
    crew: list[Worker] = [([], clients[index : index + 1]) for index in range(3)]
    for topic, place in zip(topics, places, strict=False):
        crew[place] = ([*crew[place][0], topic], crew[place][1])
    options = query._asdict()
    assert body(crew, **options) == body([(topics, clients)], **options)
    if query.json:
        shown = merged(crew, **options)["topics"]
        wanted = {
            topic.name
            for topic in topics
            if query.topic in ("", topic.name) and query.channel in ("", *topic.channels)
        }
        unknown = query.topic and all(topic.name != query.topic for topic in topics)
        assert (shown is None) == bool(unknown)
        assert [topic["topic_name"] for topic in shown or []] == sorted(wanted)


def test_health_is_the_latest_or_that_a_worker_is_missing() -> None:
    query = Query()
    shares = [
        share(CREW[0], query, Health("NOK - disk", 5)),
        share(CREW[1], query, Health("OK", 4)),
    ]
    assert stats_page.merge(shares, 2).health == "NOK - disk"
    missing = stats_page.merge(shares[1:], 3)
    assert missing.health == "NOK - 2 of 3 workers are being restarted"
    assert not missing.complete and [name for name, _ in missing.topics] == [b"t1"]


# Slices


class Clock:
    """Counts the work between two turns."""

    def __init__(self) -> None:
        self.work = 0
        self.slices: list[int] = []

    def give_way(self) -> None:
        self.slices.append(self.work)
        self.work = 0


@pytest.mark.parametrize("include_clients", [True, False])
def test_a_share_is_made_in_slices(include_clients: bool) -> None:
    clock = Clock()

    def counted(thing: Any) -> Any:
        original = thing.counters

        def counters() -> Any:
            clock.work += 1
            return original()

        thing.counters = counters
        return thing

    def channel(name: str, clients: int) -> Channel:
        return counted(Channel(name, *[counted(Client()) for _ in range(clients)]))

    topics = [counted(Topic(f"t{n}", channel("a", 1), channel("b", 0))) for n in range(100)]
    topics.append(counted(Topic("many", channel("c", 1000))))
    clients = [counted(Client()) for _ in range(500)]
    walk = Walk(Query(include_clients=include_clients), clock.give_way, NOW_NS)
    assert len(list(walk.topics(topics))) == 101
    walk.producers(clients)
    total = 1902 if include_clients else 302
    assert sum(clock.slices) + clock.work == total
    assert max(clock.slices) <= SLICE + 3  # a topic's own counters follow its channels' counters
    assert len(clock.slices) == total // SLICE


def test_shares_are_merged_in_slices() -> None:
    topics = [(b"t%d" % number, b"{}") for number in range(2 * stats_page.ENTRIES)]
    share = stats_page.pack(
        topics, b"", known=True, health=WELL, memory=dict.fromkeys(MEMORY_KEYS, 0)
    )
    turns: list[None] = []
    whole = stats_page.merge([share], 1, lambda: turns.append(None))
    assert whole.topics == sorted(topics)
    assert len(turns) == 2  # between the slices, and before sorting


def test_ledgers() -> None:
    ledger = {"received": 3, "dropped": {"emptied": 1}}
    topics = [Topic("t", Channel("c", ledger=ledger))]
    for query in (Query(json=True), Query(ledger=True)):
        ((_, piece),) = Walk(query, lambda: None, NOW_NS).topics(topics)
        assert b"received" not in piece and b"expired" not in piece
    ((_, piece),) = Walk(Query(json=True, ledger=True), lambda: None, NOW_NS).topics(topics)
    assert json.loads(piece)["channels"][0]["ledger"] == ledger
    assert json.loads(piece)["ledger"] == {"expired": 12}


def test_what_goes_between_slices_is_not_shown() -> None:
    topics = [Topic(f"t{number}", Channel("a", Client(), Client())) for number in range(3)]

    def vanish() -> None:
        topics[1].gone = True
        topics[2].channels.clear()

    walk = Walk(Query(json=True), vanish, NOW_NS)
    walk._slices = Slices(vanish, 3)
    pieces = {name: json.loads(piece) for name, piece in walk.topics(topics)}
    assert {name: len(piece["channels"]) for name, piece in pieces.items()} == {b"t0": 1, b"t2": 0}
