"""/stats, the page built from the workers' shares: key order, null and [], filters, text."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy import __version__
from nsqcy.base.core import Percentiles
from nsqcy.broker.core import Topic
from nsqcy.cluster.stats import parse_stats, sum_topics
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import page_buffer, stats_page
from nsqcy.nsqd.stats.page_buffer import SharedBuffer, Writer
from nsqcy.nsqd.stats.stats_formats import MEMORY_KEYS, merge_memory, process_memory
from nsqcy.nsqd.stats.stats_page import Health, Whole
from nsqcy.process.control import Answer
from nsqcy.server.core import BytesTransport, PieceMerge, StatsShare, humanize
from support import stats_model
from support.stats_model import Pieces, Sampled
from support.worker_core import EPOCH, MILLISECOND, SECOND, Client, Core

START = EPOCH // SECOND
UPTIME = 137 * SECOND + 302_222_392
WELL = Health("OK", 0)
PLAIN = {"x-nsq-content-type": "nsq; version=1.0"}


def keys_of(core: Core, query: Query) -> list[bytes]:
    return [key for key in core.shard.topics if query.topic in ("", key.decode())]


def share(
    core: Core, query: Query, shared: SharedBuffer, health: Health = WELL, worker: int = 0
) -> Answer:
    keys = keys_of(core, query)
    writer = Writer(shared.fd, stats_page.region(worker))
    written = stats_page.write_share(core.manager, keys, query, writer, core.wall, lambda: None)
    memory = dict.fromkeys(MEMORY_KEYS, 0) | {"heap_objects": 12}
    return stats_page.answer(written, known=bool(keys), health=health, memory=memory)


def gather(cores: Sequence[Core], query: Query) -> Whole:
    shared = SharedBuffer()
    answers = {
        worker: share(core, query, shared, worker=worker) for worker, core in enumerate(cores)
    }
    return stats_page.combine(shared, answers, len(cores))


def body(cores: Sequence[Core], **options: Any) -> bytes:
    query = Query(**({"json": True, "include_mem": False} | options))
    whole = gather(cores, query)
    plan = stats_page.page_plan(whole, query, started=EPOCH - UPTIME, now=EPOCH)
    return bytes(page_buffer.read(whole.shared.fd, plan, lambda: None))


def merged(cores: Sequence[Core], **options: Any) -> Any:
    return json.loads(body(cores, **options))


def page(cores: Sequence[Core], **options: Any) -> str:
    return body(cores, json=False, **options).decode()


def names(stats: Any) -> dict[str, list[str]]:
    return {t["topic_name"]: [c["channel_name"] for c in t["channels"]] for t in stats["topics"]}


def written(core: Core, query: Query, size: int = 1 << 30) -> Pieces:
    """Return a share that was written in slices of this size."""
    found = StatsShare(core.manager, sorted(keys_of(core, query)), query, core.wall)
    data = b""
    while found.go_on(size):
        data += found.take(bytes)
    data += found.take(bytes)
    end, rest = found.sizes()
    assert end + rest == len(data)
    return Pieces(data[:end], data[end:])


def crew() -> list[Core]:
    """Two workers: t2 and a producer on the first, t1 on the second."""
    one, two = Core(None), Core(None)
    one.create("t2")
    one.create("paused#ephemeral").pause(True)
    producer = one.client(hostname="host", user_agent="agent/1")
    for topic, count in (("t2", 5), ("t1", 4)):
        for _ in range(count):
            producer.publish(topic, b"x")
    one.shard.delete_topic(b"t1")
    two.create("t1").channel("c2")
    two.topic("t1").pause_channel("c2", True)  # type: ignore[union-attr]
    two.client(hostname="host", user_agent="agent/1").subscribe("t1", "c1")
    for core in (one, two):
        core.settle()
    return [one, two]


TOPIC_ORDER = [
    *["topic_name", "channels", "depth", "backend_depth", "message_count", "message_bytes"],
    *["paused", "e2e_processing_latency", "publish_rate"],
]
CHANNEL_ORDER = [
    *["channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count"],
    *["message_count", "requeue_count", "timeout_count", "client_count", "clients", "paused"],
    *["e2e_processing_latency", "receive_rate", "finish_rate", "requeue_rate", "timeout_rate"],
    *["falling_behind", "drain_seconds", "saturated_client_count", "backing_off_client_count"],
]
CLIENT_ORDER = [
    *["client_id", "hostname", "version", "remote_address", "state", "ready_count"],
    *["in_flight_count", "message_count", "finish_count", "requeue_count", "connect_ts"],
    *["sample_rate", "deflate", "snappy", "user_agent", "topology_zone", "topology_region"],
    *["tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"],
    "tls_negotiated_protocol_is_mutual",
]


def test_key_order() -> None:
    stats = merged(crew(), include_mem=True)
    assert list(stats) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert list(stats["memory"]) == list(MEMORY_KEYS)
    assert names(stats) == {"paused#ephemeral": [], "t1": ["c1", "c2"], "t2": []}
    t1, t2 = stats["topics"][1:]
    assert list(t1) == list(t2) == TOPIC_ORDER
    assert t2["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    c1, c2 = t1["channels"]
    assert list(c1) == list(c2) == CHANNEL_ORDER
    assert c1["client_count"] == 1 and c2["clients"] == []
    assert list(c1["clients"][0]) == [*CLIENT_ORDER, "finish_rate", "saturated"]
    (producer,) = stats["producers"]
    assert list(producer) == [*CLIENT_ORDER[:17], "pub_counts", *CLIENT_ORDER[17:]]


def test_keys_that_are_left_out_when_empty() -> None:
    core = Core(None)
    core.client().publish("t", b"x")
    consumer = core.client().subscribe("t", "c", ready=1)
    core.settle()
    assert len(consumer.messages()) == 1
    (channel,) = merged([core])["topics"][0]["channels"]
    assert list(channel) == [*CHANNEL_ORDER[:6], "global_msg_count", *CHANNEL_ORDER[6:]]


@pytest.mark.case("HTTP-060")
def test_no_topics() -> None:
    text = body([Core(None)], include_mem=True).decode()
    start = f'{{"version":"1.3.0","health":"OK","start_time":{START - 138},"topics":[],"memory":{{'
    assert text.startswith(start)
    assert text.endswith(',"gc_total_runs":0},"producers":null}')


@pytest.mark.case("HTTP-061", "HTTP-062", "HTTP-063", "HTTP-064")
def test_null_and_empty() -> None:
    cores = crew()
    stats = merged(cores, topic="unknown")
    assert stats["topics"] is None and stats["producers"] is None
    assert merged(cores, topic="t1", channel="nope")["topics"] == []
    assert names(merged(cores, channel="c2")) == {"t1": ["c2"]}
    assert names(merged(cores, topic="t2")) == {"t2": []}
    stats = merged(cores, include_clients=False)
    assert stats["producers"] is None
    assert [c["clients"] for c in stats["topics"][1]["channels"]] == [None, None]
    assert stats["topics"][1]["channels"][0]["client_count"] == 1
    assert "memory" not in stats


@pytest.mark.case("HTTP-066", "HTTP-067")
def test_pub_counts() -> None:
    """nsqcy shows all topics, sorted; NSQ shows an arbitrary one."""
    cores = crew()
    (producer,) = merged(cores)["producers"]
    assert producer["pub_counts"] == [{"topic": "t1", "count": 4}, {"topic": "t2", "count": 5}]
    (producer,) = merged(cores, topic="t2")["producers"]
    assert producer["pub_counts"] == [{"topic": "t2", "count": 5}]
    assert "pub_counts" not in merged(cores, topic="paused#ephemeral")["producers"][0]
    line = "   [V2 host:1 agent/1       ] state: 0 inflt: 0 "
    assert line in page(cores, topic="paused#ephemeral")


def producer_named(**texts: str) -> Core:
    core = Core(None)
    client = core.client()
    client.publish("t", b"x")
    for key, text in texts.items():
        setattr(client.session, key, text)
    return core


@pytest.mark.case("HTTP-068")
def test_json_escapes() -> None:
    text = body([producer_named(hostname="hst<&>")])
    assert b'"hostname":"hst\\u003c\\u0026\\u003e"' in text
    assert json.loads(text)["producers"][0]["hostname"] == "hst<&>"


def test_whole_percentiles_are_integers() -> None:
    core = Core(None, percentiles=Percentiles((1.0, 0.5), 600 * SECOND))
    consumer = core.client().subscribe("t", "c", ready=1)
    core.client().publish("t", b"x")
    core.settle()
    (message,) = consumer.messages()
    core.advance(MILLISECOND)
    consumer.finish(message.id)
    found = b'"percentiles":[{"quantile":1,"value":1000000},{"quantile":0.5,"value":1000000}]'
    assert body([core]).count(found) == 2
    assert page([core]).count("e2e%: 1000.0us, 1000.0us\n") == 2


def test_what_is_not_utf_8_is_replaced() -> None:
    cores = [producer_named(hostname="h\udcff", user_agent="\ud800")]
    assert merged(cores)["producers"][0]["hostname"] == "h\ufffd"
    assert "[V2 h\ufffd:1 \ufffd" in page(cores)


def test_memory() -> None:
    memory = process_memory()
    assert list(memory) == list(MEMORY_KEYS) and memory["heap_in_use_bytes"] > 1 << 20
    total = merge_memory([memory, {**memory, "gc_pause_usec_100": 5}])
    assert total["heap_in_use_bytes"] == 2 * memory["heap_in_use_bytes"]
    assert total["gc_pause_usec_100"] == 5
    assert merge_memory([]) == dict.fromkeys(MEMORY_KEYS, 0)
    assert merged(crew(), include_mem=True)["memory"]["heap_objects"] == 24


def test_text() -> None:
    # The columns match NSQ's, including trailing blanks.
    lines = page(crew()).split("\n")
    assert lines[0] == f"nsqd v1.3.0 (built w/nsqcy-{__version__})"
    assert lines[1].startswith("start_time 2023-11-1")
    assert lines[2:] == [
        "uptime 2m17.302222392s",
        "",
        "Health: OK",
        "",
        "Topics:",
        "*P [paused#ephemeral] depth: 0     be-depth: 0     msgs: 0        e2e%: ",
        "",
        "   [t1             ] depth: 0     be-depth: 0     msgs: 0        e2e%: ",
        "      [c1                       ] depth: 0     be-depth: 0     inflt: 0    def: 0   "
        " re-q: 0     timeout: 0     msgs: 0        e2e%: ",
        "        [V2 host:1 agent/1       ] state: 3 inflt: 0    rdy: 0    fin: 0       "
        " re-q: 0        msgs: 0        connected: 0s",
        "   *P [c2                       ] depth: 0     be-depth: 0     inflt: 0    def: 0   "
        " re-q: 0     timeout: 0     msgs: 0        e2e%: ",
        "",
        "   [t2             ] depth: 5     be-depth: 0     msgs: 5        e2e%: ",
        "",
        "Producers:",
        "   [V2 host:1 agent/1       ] msgs: 9        topics: t1=4,t2=5 connected: 0s",
        "",
    ]


def test_text_of_nothing_and_of_memory() -> None:
    for text in (
        page(crew(), topic="unknown", include_mem=True),
        page([Core(None)], include_mem=True),
    ):
        lines = text.split("\n")
        assert lines[4] == "Health: OK"
        assert lines[5:7] == ["", "Memory:"]
        assert lines[7].startswith("   heap_objects             \t")
        assert lines[15:] == [
            "   gc_total_runs            \t0",
            *["", "Topics: None", "", "Producers: None", ""],
        ]


@pytest.mark.parametrize(
    "ns, text",
    [(0, "0.0ns"), (1000, "1000.0ns"), (1001, "1.0us"), (26897574, "26.9ms"), (2e9, "2.0s")],
)
def test_humanize(ns: float, text: str) -> None:
    assert humanize(ns) == text


# Shares equal those of the model


NAMES = st.text("ab.-_Z9", min_size=1, max_size=6)
TEXTS = st.text(max_size=5) | st.sampled_from(['"', "\\", "a<b>&c", "\x7f", "\u2028", "\ud800", ""])
QUERIES = st.builds(
    Query,
    json=st.booleans(),
    topic=st.just("") | NAMES,
    channel=st.just("") | NAMES,
    include_clients=st.booleans(),
    ledger=st.booleans(),
    sparse=st.booleans(),
    busiest=st.just(-1),
    names=st.booleans(),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("channel", "publish", "publish", "publish", "defer", "subscribe", "ready"),
                *("finish", "finish", "requeue", "pause", "pause channel", "wait", "sample"),
                *("cursor", "texts"),
            ]
        ),
        st.integers(0, 3),
        st.integers(0, 50),
    ),
    max_size=60,
)
POLICIES = Policies(TopicPolicy(), [("b*", {"max_depth": 9})], [("*/a*", {"max_attempts": 7})])


class World:
    """A worker in which a list of steps has happened."""

    def __init__(self, names: list[str], texts: list[str], quantiles: tuple[float, ...]) -> None:
        self.core = Core(None, percentiles=Percentiles(quantiles, 60 * SECOND), policies=POLICIES)
        self.sampled = Sampled(self.core)
        self.names = names
        self.texts = texts
        self.consumers: list[Client] = []
        self.producers = [self.core.client() for _ in range(3)]

    def do(self, step: str, which: int, number: int) -> None:
        core, name = self.core, self.names[which % len(self.names)]
        other = self.names[number % len(self.names)]
        consumer = self.consumers[which % len(self.consumers)] if self.consumers else None
        match step:
            case "channel":
                core.create(name).channel(other)
            case "publish":
                for _ in range(number):
                    self.producers[which % 3].publish(name, b"x" * which)
            case "defer":
                self.producers[which % 3].publish(name, b"x", delay=10_000)
            case "subscribe":
                self.consumers.append(core.client().subscribe(name, other))
            case "ready" if consumer:
                consumer.ready(number // 2)
            case "finish" | "requeue" if consumer:
                core.settle()
                for message in consumer.messages()[:number]:
                    (consumer.finish if step == "finish" else consumer.requeue)(message.id)
            case "pause":
                core.create(name).pause(number % 2 == 0)
            case "pause channel":
                core.create(name).channel(other)
                core.create(name).pause_channel(other, number % 2 == 0)
            case "wait":
                core.advance(number * 100 * MILLISECOND)
            case "sample":
                self.sampled.sample()
            case "texts":
                client = (self.consumers + self.producers)[number % (3 + len(self.consumers))]
                keys = ["client_id", "hostname", "user_agent", "topology_zone", "topology_region"]
                setattr(client.session, keys[number % 5], self.texts[which])
        core.settle()


@pytest.mark.slow
@given(
    st.lists(NAMES, min_size=1, max_size=4, unique=True),
    st.lists(TEXTS, min_size=4, max_size=4),
    st.sampled_from([(), (1.0, 0.99), (0.5, 1e-7)]),
    STEPS,
    st.lists(QUERIES, min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_a_share_is_as_in_the_model(
    names: list[str],
    texts: list[str],
    quantiles: tuple[float, ...],
    steps: list[tuple[str, int, int]],
    queries: list[Query],
    size: int,
) -> None:
    world = World(names, texts, quantiles)
    for step in steps:
        world.do(*step)
    for query in [*queries, Query(json=True), Query(json=True, sparse=True), Query()]:
        ledger = query.ledger and query.json
        expected = stats_model.pieces(world.core, query._replace(ledger=ledger), world.sampled)
        assert written(world.core, query) == expected
        assert written(world.core, query, size) == expected


def test_programs_read_the_same_from_a_sparse_page() -> None:
    core = crew()[1]
    core.client().publish("t1", b"x")
    core.create("idle").channel("c")
    Sampled(core).sample()
    core.advance(2 * SECOND)
    pages = [body([core], sparse=sparse) for sparse in (False, True)]
    assert b'{"topic_name":"idle","channels":[{"channel_name":"c","clients":[],"rec' in pages[1]
    full, thin = (sum_topics(parse_stats(page, PLAIN, clients=True)) for page in pages)
    assert len(full) == 2
    for topic, other in zip(full.values(), thin.values(), strict=True):
        assert topic._replace(nodes=(), channels={}) == other._replace(nodes=(), channels={})
        for channel, sparse in zip(topic.channels.values(), other.channels.values(), strict=True):
            assert channel._replace(nodes=()) == sparse._replace(nodes=())


def test_large_numbers() -> None:
    core = Core(None)
    client = core.client().subscribe("t", "c", ready=2500)
    client.session.sample_rate = 2**32 - 1
    (shown,) = merged([core])["topics"][0]["channels"][0]["clients"]
    assert (shown["sample_rate"], shown["ready_count"]) == (2**32 - 1, 2500)


def test_tls_codecs_and_authorization() -> None:
    core = Core(None)
    consumer = BytesTransport(core.manager)
    state, _, _ = consumer.client.pack()
    tls = {"cipher_suite": "TLS_A", "version": "tls1.3", "common_name": ""}
    known = {"authed": True, "auth_identity": "a<", "auth_identity_url": "b", "tls": tls}
    known |= {"snappy": True, "deflate": True, "lenient": False, "transfers": False}
    consumer.client.adopt_hello(state | known)
    consumer.feed(b"  V2SUB t c\n")
    core.settle()
    query = Query(json=True)
    assert written(core, query) == stats_model.pieces(core, query, Sampled(core))
    (client,) = merged([core])["topics"][0]["channels"][0]["clients"]
    assert list(client)[15:18] == ["authed", "auth_identity", "auth_identity_url"]
    assert client["auth_identity"] == "a<" and client["tls_version"] == "tls1.3"
    assert client["tls_negotiated_protocol_is_mutual"] and client["deflate"]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(NAMES, st.lists(NAMES, max_size=3)), max_size=12, unique_by=lambda it: it[0]
    ),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    QUERIES,
)
def test_where_topics_live_does_not_show(
    topics: list[tuple[str, list[str]]], places: list[int], query: Query
) -> None:
    """The page for three workers equals the page for a single worker with all topics."""
    cores, alone = [Core(None) for _ in range(3)], Core(None)
    for (name, channels), place in zip(topics, places, strict=False):
        for core in (cores[place], alone):
            for channel in channels:
                core.create(name).channel(channel)
            core.create(name)
    options = query._asdict() | {"include_mem": False}
    assert body(cores, **options) == body([alone], **options)
    if query.json:
        shown = merged(cores, **options)["topics"]
        wanted = {
            name
            for name, channels in topics
            if query.topic in ("", name) and query.channel in ("", *channels)
        }
        unknown = query.topic and all(name != query.topic for name, _ in topics)
        assert (shown is None) == bool(unknown)
        assert [topic["topic_name"] for topic in shown or []] == sorted(wanted)


def test_health_is_the_latest_or_that_a_worker_is_missing() -> None:
    query, (one, two), shared = Query(json=True), crew(), SharedBuffer()
    answers = {
        0: share(one, query, shared, Health("NOK - disk", 5)),
        1: share(two, query, shared, Health("OK", 4), worker=1),
    }
    assert stats_page.combine(shared, answers, 2).health == "NOK - disk"
    missing = stats_page.combine(shared, {1: answers[1]}, 3)
    assert missing.health == "NOK - workers being restarted: 2 of 3"
    assert not missing.complete
    (piece,) = missing.json_topics()
    assert json.loads(piece)["topic_name"] == "t1"


# Slices


def test_a_share_is_made_in_slices() -> None:
    core = Core(None)
    for number in range(10):
        core.create(f"t{number}").channel("c")
    for _ in range(100):
        core.client().subscribe("t5", "c")
    for _ in range(50):
        core.client().publish("t0", b"x")
    for query in (Query(json=True), Query()):
        share = StatsShare(core.manager, sorted(core.shard.topics), query, core.wall)
        slices = []
        while share.go_on(10):
            slices.append(share.take(bytes))
        assert len(slices) >= (100 + 50 + 10 + 10) / 10
        assert max(piece.count(b"V2") for piece in slices) == 10


def test_names_are_sorted_and_merged_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_page, "SLICE", 8)
    monkeypatch.setattr(stats_page, "MERGED", 8)
    core, shared, turns = Core(None), SharedBuffer(), [0]
    for number in range(40):
        core.create(f"t{number}")

    def give_way() -> None:
        turns[0] += 1

    query = Query(json=True)
    writer = Writer(shared.fd, stats_page.region(0))
    written = stats_page.write_share(
        core.manager, list(core.shard.topics), query, writer, 0, give_way
    )
    assert turns[0] >= 80 // 8
    answer = stats_page.answer(
        written, known=True, health=WELL, memory=dict.fromkeys(MEMORY_KEYS, 0)
    )
    whole = stats_page.combine(shared, {0: answer}, 1)
    turns[0] = 0
    stats_page.page_plan(whole, query, started=0, now=0, give_way=give_way)
    assert turns[0] == 40 // 8


ENTRIES = st.lists(
    st.tuples(st.binary(min_size=1, max_size=3), st.integers(1, 9)), unique_by=lambda it: it[0]
)


@given(st.lists(ENTRIES, max_size=3), st.integers(1, 4), st.integers(0, 1))
def test_merging_pieces(lists: list[list[tuple[bytes, int]]], size: int, cut: int) -> None:
    indexes, offsets, expected = [], [], []
    for number, entries in enumerate(lists):
        at = 1000 * number
        offsets.append(at)
        index = b""
        for name, length in sorted(entries):
            index += stats_page._ENTRY.pack(length, len(name)) + name
            expected.append((name, number, list(range(at, at + length))))
            at += length
        indexes.append(index)
    merging = PieceMerge(indexes, offsets)
    while merging.go_on(size):
        pass
    plan = memoryview(merging.result(cut)).cast("Q").tolist()
    places = [at + i for at, n in zip(plan[::2], plan[1::2], strict=True) for i in range(n)]
    wanted = [place for *_, its in sorted(expected) for place in its]
    assert places == (wanted[:-cut] if cut and wanted else wanted)


def test_what_goes_between_slices_is_not_shown() -> None:
    core = Core(None)
    for name in ("t0", "t1", "t2"):
        core.create(name).channel("a")
        core.create(name).channel("b")
    share = StatsShare(core.manager, [b"t0", b"t1", b"t2"], Query(json=True), 0)
    assert share.go_on(1)
    core.shard.delete_topic(b"t1")
    found: Topic | None = core.topic("t2")
    assert found is not None
    found.delete_channel("b")
    core.topic("t0").delete_channel("a")  # type: ignore[union-attr]
    core.settle()
    assert not share.go_on(1000)
    topics = json.loads(b"[" + share.take(bytes)[:-1] + b"]")
    shown = {topic["topic_name"]: len(topic["channels"]) for topic in topics}
    assert shown == {"t0": 1, "t2": 1}
