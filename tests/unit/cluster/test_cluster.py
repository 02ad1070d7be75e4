"""Queries to daemons and the parsing of answers, without opening sockets."""

import json
import threading
from typing import Any

import pytest

from nsqcy.cluster.discovery import (
    Found,
    Producer,
    bearer,
    daemon_url,
    lookup_url,
    lookupd_url,
    parse_lookup,
    parse_nodes,
    parse_topics,
    union,
)
from nsqcy.cluster.http_clients import LookupdClient, NsqdHTTPClient
from nsqcy.cluster.latency import Latency, Percentile, merge, of_node
from nsqcy.cluster.parallel import GRACE, ask_all
from nsqcy.cluster.stats import (
    ChannelFigures,
    TopicFigures,
    parse_stats,
    sum_topics,
    total,
)
from nsqcy.errors import InvalidName, NsqError, RequestError

PLAIN = {"x-nsq-content-type": "nsq; version=1.0"}
FULL = {
    "remote_address": "10.0.0.1:5",
    "hostname": "h",
    "broadcast_address": "b",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
    "topology_zone": "z",
    "topology_region": "r",
}

# -- the addresses to query


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("h:4161", "http://h:4161/lookup?topic=t"),
        ("localhost:4161", "http://localhost:4161/lookup?topic=t"),
        ("127.0.0.1:4161", "http://127.0.0.1:4161/lookup?topic=t"),
        ("[::1]:4161", "http://[::1]:4161/lookup?topic=t"),
        ("h:4161/", "http://h:4161/lookup?topic=t"),
        ("http://h:4161", "http://h:4161/lookup?topic=t"),
        ("http://h:4161/", "http://h:4161/lookup?topic=t"),
        ("https://h", "https://h/lookup?topic=t"),
        ("h:4161/a/b", "http://h:4161/a/b?topic=t"),
        ("http://h:1/a?x=1&y=", "http://h:1/a?x=1&y=&topic=t"),
        ("http://h:1?x=a%20b", "http://h:1/lookup?x=a+b&topic=t"),
        ("http://h:1/?topic=other&x=1", "http://h:1/lookup?x=1&topic=t"),
        ("http://me:word@h:1/#there", "http://me:word@h:1/lookup?topic=t"),
    ],
)
def test_lookup_url(address: str, url: str) -> None:
    assert lookup_url(address, "t") == url


def test_lookup_url_escapes_the_topic() -> None:
    assert lookup_url("h:1", "a&b#ephemeral") == "http://h:1/lookup?topic=a%26b%23ephemeral"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("h", "has no port"),
        ("127.0.0.1", "has no port"),
        ("[::1]", "has no port"),
        ("h:0", "has no port"),
        ("h/lookup", "has no port"),
        ("", "neither host:port nor an HTTP URL"),
        (":4161", "neither host:port nor an HTTP URL"),
        ("http://", "neither host:port nor an HTTP URL"),
        ("ftp://h:1", "neither host:port nor an HTTP URL"),
        ("h:99999", "cannot be read"),
        ("h:port", "cannot be read"),
        ("::1", "cannot be read"),
        ("a b:1", "cannot be read"),
    ],
)
def test_addresses_that_cannot_be(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        lookup_url(address, "t")
    with pytest.raises(ValueError, match=why):
        daemon_url(address)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("h:1", "http://h:1/nodes"),
        ("http://h:1/lookup", "http://h:1/nodes"),
        ("http://h:1/nsq/lookup?x=1", "http://h:1/nsq/nodes?x=1"),
    ],
)
def test_what_is_beside_lookup(address: str, url: str) -> None:
    assert lookupd_url(address, "nodes") == url


def test_bearer() -> None:
    assert bearer(None) == bearer("") == {}
    assert bearer("s") == bearer(b"s") == {"Authorization": "Bearer s"}
    assert bearer("ü")["Authorization"].encode("latin-1") == "Bearer ü".encode()


# -- producers


def answer(*producers: Any, **other: Any) -> bytes:
    return json.dumps({"channels": ["c"], "producers": producers, **other}).encode()


def test_parse_lookup() -> None:
    (found,) = parse_lookup(answer(FULL), PLAIN)
    assert found == Producer(
        broadcast_address="b",
        tcp_port=4150,
        http_port=4151,
        hostname="h",
        version="1.3.0",
        remote_address="10.0.0.1:5",
        topology_region="r",
        topology_zone="z",
    )
    assert found.address == ("b", 4150)
    assert (found.tcp_address, found.http_address) == ("b:4150", "b:4151")
    assert found.url.url == "http://b:4151"


def test_an_address_of_ipv6_has_brackets() -> None:
    producer = Producer("::1", 1, 2)
    assert (producer.tcp_address, producer.http_address) == ("[::1]:1", "[::1]:2")
    assert producer.address == ("::1", 1)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"status_code": 200, "status_txt": "OK", "data": {"producers": [FULL]}}),
        json.dumps({"producers": [FULL]}),
        json.dumps({"producers": [FULL], "data": None}),
    ],
)
def test_old_answers_may_be_wrapped(body: str) -> None:
    assert len(parse_lookup(body.encode(), {})) == 1


def test_data_of_a_plain_answer_is_none_of_ours() -> None:
    body = json.dumps({"producers": [FULL], "data": {"producers": []}}).encode()
    assert len(parse_lookup(body, PLAIN)) == 1


@pytest.mark.parametrize("body", [b"{}", b'{"producers":null}', b'{"producers":[]}', b"null"])
def test_no_producers(body: bytes) -> None:
    assert parse_lookup(body, PLAIN) == parse_lookup(body, {}) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"OK",
        b"{",
        b'{"producers":{}}',
        b'{"producers":[1]}',
        b'{"producers":[null]}',
        b'{"data":[]}',
        b"[" * 100_000,
        b'{"x":' * 100_000,
        b'{"producers":[{"tcp_port":' + b"9" * 5000 + b"}]}",
        answer(FULL | {"tcp_port": 1 << 63}),
        answer(FULL | {"tcp_port": "4150"}),
        answer(FULL | {"tcp_port": True}),
        answer(FULL | {"http_port": 4151.0}),
        answer(FULL | {"broadcast_address": 5}),
        answer(FULL | {"broadcast_address": ""}),
    ],
)
def test_answers_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(NsqError, match="cannot be read"):
        parse_lookup(body, {})


@pytest.mark.parametrize(
    "announced",
    [
        {"tcp_port": 65536},
        {"http_port": -1},
        {"broadcast_address": "a\r\nb"},
        {"broadcast_address": "a b"},
        {"broadcast_address": "a/x"},
        {"broadcast_address": "user@a"},
        {"broadcast_address": "a" * 256},
    ],
)
def test_an_impossible_producer_does_not_hide_the_others(announced: dict[str, Any]) -> None:
    body = answer(FULL | announced, FULL | {"broadcast_address": "good"})
    assert [each.broadcast_address for each in parse_lookup(body, PLAIN)] == ["good"]
    nodes = [each | {"topics": ["t", "not a name"]} for each in (FULL | announced, FULL)]
    (node,) = parse_nodes(answer(*nodes), PLAIN)
    assert node.topics == {"t": False}


def test_texts_of_an_nsqd_are_cut_and_have_no_control_characters() -> None:
    (found,) = parse_lookup(answer(FULL | {"hostname": "a\x1b[2J", "version": "1" * 5000}), PLAIN)
    assert (found.hostname, len(found.version)) == ("a [2J", 1024)


def test_parse_nodes() -> None:
    nodes = [
        FULL | {"topics": ["a", "b"], "tombstones": [False, True]},
        FULL | {"broadcast_address": "short", "topics": ["a", "b"], "tombstones": [True]},
        FULL | {"broadcast_address": "idle", "topics": [], "tombstones": []},
    ]
    one, short, idle = parse_nodes(answer(*nodes), PLAIN)
    assert one.topics == {"a": False, "b": True}
    assert short.topics == {"a": True, "b": False}
    assert (idle.broadcast_address, idle.topics) == ("idle", {})


def test_parse_topics() -> None:
    body = b'{"topics": ["a", "b#ephemeral", "", "../c", "a b", null, "\\ud800"]}'
    assert parse_topics(body, PLAIN) == ["a", "b#ephemeral"]
    assert parse_topics(b'{"status_code":200,"data":{"topics":["a"]}}', {}) == ["a"]
    assert parse_topics(b'{"topics":null}', PLAIN) == []
    for broken in (b"", b'{"topics":{}}', b'{"topics":[1]}'):
        with pytest.raises(RequestError, match="cannot be read"):
            parse_topics(broken, PLAIN)


def test_a_producer_is_listed_once() -> None:
    first, again, other = Producer("a", 1, 2), Producer("a", 1, 3), Producer("a", 2, 2)
    assert union([[first], [again, other]]) == [first, other]
    assert Found({"x": [first], "y": [other, again]}).producers == [first, other]
    # Producers without TCP ports are distinguished by their HTTP ports.
    deaf = [Producer("a", 0, 2), Producer("a", 0, 3)]
    assert union([deaf]) == deaf


# -- statistics

CHANNEL = {
    "channel_name": "c",
    "depth": 5,
    "backend_depth": 2,
    "in_flight_count": 3,
    "deferred_count": 4,
    "message_count": 100,
    "requeue_count": 6,
    "timeout_count": 7,
    "client_count": 8,
    "clients": None,
    "paused": False,
    "e2e_processing_latency": {"count": 0, "percentiles": None},
}
TOPIC = {
    "topic_name": "t",
    "channels": [CHANNEL],
    "depth": 10,
    "backend_depth": 4,
    "message_count": 50,
    "message_bytes": 500,
    "paused": False,
}


def page(*topics: Any) -> bytes:
    return json.dumps({"version": "1.3.0", "health": "OK", "topics": topics}).encode()


def test_parse_stats() -> None:
    (topic,) = parse_stats(page(TOPIC), PLAIN, "n:1", "host")
    assert (topic.name, topic.node, topic.hostname) == ("t", "n:1", "host")
    assert topic.figures == TopicFigures(depth=10, backend_depth=4, message_count=50)
    channel = topic.channels["c"]
    assert (channel.topic, channel.name, channel.node) == ("t", "c", "n:1")
    assert channel.figures == ChannelFigures(5, 2, 100, False, 3, 4, 6, 7, 8)
    assert channel.figures.memory_depth == 3


def test_old_stats_may_be_wrapped() -> None:
    body = json.dumps({"status_code": 200, "data": {"topics": [TOPIC]}}).encode()
    assert len(parse_stats(body, {})) == 1


def test_invalid_names_are_cleaned() -> None:
    """A topic with an invalid name must not hide the other topics of its nsqd."""
    channel = CHANNEL | {"channel_name": "<c>\x1b"}
    (topic,) = parse_stats(page(TOPIC | {"topic_name": "a\r\nb", "channels": [channel]}), {})
    assert topic.name == "a  b"
    assert [each.name for each in topic.channels.values()] == ["<c> "]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        page(1),
        page(TOPIC | {"channels": [CHANNEL | {"policy": {"dead_letter_topic": "a b"}}]}),
        page(TOPIC | {"depth": "1"}),
        page(TOPIC | {"depth": 1 << 63}),
        page(TOPIC | {"depth": 1.5}),
        page(TOPIC | {"paused": 1}),
        page(TOPIC | {"channels": {}}),
        page(TOPIC | {"channels": [CHANNEL | {"in_flight_count": True}]}),
    ],
)
def test_stats_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        parse_stats(body, {})


def test_texts_that_clients_chose_are_cleaned() -> None:
    client = {"client_id": "c\x9b\x1b]0;x\x07", "user_agent": "u" * 2000, "hostname": "h"}
    body = page(TOPIC | {"channels": [CHANNEL | {"clients": [client]}]})
    (topic,) = parse_stats(body, PLAIN, clients=True)
    (found,) = topic.channels["c"].clients or ()
    assert (found.client_id, len(found.user_agent), found.hostname) == ("c  ]0;x ", 1024, "h")


def test_sums() -> None:
    other = CHANNEL | {"depth": 1, "paused": True}
    late = CHANNEL | {"channel_name": "late"}
    rows = [
        *parse_stats(page(TOPIC | {"channels": [late, other]}), PLAIN, "z:1", "z"),
        *parse_stats(page(TOPIC, TOPIC | {"topic_name": "u"}), PLAIN, "a:1", "a"),
    ]
    sums = sum_topics(rows)
    assert list(sums) == ["t", "u"]
    topic = sums["t"]
    assert (topic.node, topic.hostname) == ("*", "")
    assert topic.figures == TopicFigures(depth=20, backend_depth=8, message_count=100)
    assert [each.node for each in topic.nodes] == ["a:1", "z:1"]
    assert list(topic.channels) == ["c", "late"]
    channel = topic.channels["c"]
    assert channel.figures == ChannelFigures(6, 4, 200, True, 6, 8, 12, 14, 16)
    assert [each.figures.depth for each in channel.nodes] == [5, 1]
    assert [each.node for each in topic.channels["late"].nodes] == ["z:1"]
    assert sum_topics([]) == {}


def test_adding() -> None:
    one = TopicFigures(1, 2, 3)
    assert total([one]) == one
    assert total([one, TopicFigures(1, 1, 1, True)]) == TopicFigures(2, 3, 4, True)
    assert total([one, one]).memory_depth == -2


def times(count: int, **quantiles: float) -> dict[str, Any]:
    values = [{"quantile": int(name[1:]) / 100, "value": each} for name, each in quantiles.items()]
    return {"count": count, "percentiles": values}


def test_latencies() -> None:
    (topic,) = parse_stats(page(TOPIC | {"e2e_processing_latency": times(3, q99=5)}), PLAIN)
    (each,) = (topic.latency and topic.latency.percentiles) or ()
    assert each == Percentile(0.99, 5.0, 5.0, 5.0, 3, 5.0)
    assert topic.channels["c"].latency == Latency(0, None)
    (topic,) = parse_stats(page(TOPIC | {"e2e_processing_latency": None}), PLAIN)
    assert topic.latency is None
    (topic,) = parse_stats(page(TOPIC | {"e2e_processing_latency": {"count": 4}}), PLAIN)
    assert topic.latency == Latency(4, None)


def test_latencies_of_several_nodes() -> None:
    few = of_node(times(10, q99=400, q50=1))
    many = of_node(times(30, q99=200))
    merged = merge([few, None, many, Latency(2)])
    assert merged.count == 42
    assert merged.percentiles == (
        Percentile(0.99, 250.0, 200.0, 400.0, 40),
        Percentile(0.5, 1.0, 1.0, 1.0, 10),
    )
    (idle,) = merge([of_node(times(0, q99=7)), of_node(times(0, q99=9))]).percentiles or ()
    assert (idle.average, idle.count) == (0.0, 0)
    assert merge([None]) == Latency(0, None)


def test_clients_are_read_if_they_are_wanted() -> None:
    client = {"client_id": "i", "connect_ts": 5, "tls": True, "node": "x", "connected": 1}
    body = page(TOPIC | {"channels": [CHANNEL | {"clients": [client]}]})
    assert parse_stats(body, PLAIN, "n")[0].channels["c"].clients is None
    (found,) = parse_stats(body, PLAIN, "n", clients=True)[0].channels["c"].clients or ()
    assert (found.client_id, found.connect_ts, found.tls, found.node) == ("i", 5, True, "n")
    assert sum_topics(parse_stats(body, PLAIN, clients=True))["t"].channels["c"].clients
    none = page(TOPIC | {"channels": [CHANNEL | {"clients": []}]})
    assert parse_stats(none, PLAIN, clients=True)[0].channels["c"].clients == ()


# -- many at once


def test_all_are_queried_at_once() -> None:
    together = threading.Barrier(3)

    def ask(key: str) -> str:
        together.wait(10)
        if key == "bad":
            raise RequestError("no")
        return key.upper()

    outcome = ask_all(["b", "bad", "a", "b"], ask, 30.0)
    assert list(outcome.values.items()) == [("b", "B"), ("a", "A")]
    assert {key: str(error) for key, error in outcome.errors.items()} == {"bad": "no"}


def test_more_than_there_are_threads() -> None:
    outcome = ask_all(range(100), lambda key: key * 2, 30.0)
    assert outcome.values == {key: key * 2 for key in range(100)}
    assert ask_all([], lambda key: key, 30.0).values == {}


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_threads_than_wanted_can_start(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def refuse(thread: threading.Thread) -> None:
        if len(started) == count:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    outcome = ask_all("abc", str.upper, 30.0)
    if count:
        assert outcome.values == {"a": "A", "b": "B", "c": "C"}
    else:
        assert {str(each) for each in outcome.errors.values()} == {
            "cannot start a thread: can't start new thread"
        }
        assert list(outcome.errors) == ["a", "b", "c"]


def test_a_request_that_ends_its_thread_hides_nothing() -> None:
    def ask(key: str) -> str:
        if key == "exits":
            raise SystemExit
        return key

    outcome = ask_all(["exits", "works"], ask, 30.0)
    assert outcome.values == {"works": "works"}
    assert str(outcome.errors["exits"]) == "SystemExit()"


def test_one_that_hangs_has_failed() -> None:
    end = threading.Event()
    outcome = ask_all(["hangs"], lambda key: end.wait(), -GRACE + 0.05)
    end.set()
    assert str(outcome.errors["hangs"]) == "timed out"
    assert outcome.values == {}


def test_what_nobody_expected_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        ask_all([0, 1], lambda key: 1 // key, 30.0)


# -- the clients' addresses


def test_addresses_of_clients() -> None:
    assert NsqdHTTPClient().address == "http://localhost:4151/"
    assert LookupdClient("h").address == "http://h:4161/"
    assert LookupdClient("::1", 5).address == "http://[::1]:5/"
    client = NsqdHTTPClient.from_url("https://h:1/")
    assert (client.scheme, client.host, client.port) == ("https", "h", 1)
    assert NsqdHTTPClient.from_url("http://h/").address == "http://h:4151/"
    assert LookupdClient.from_url("h:7").address == "http://h:7/"
    assert repr(client) == "<NsqdHTTPClient 'https://h:1/'>"
    with pytest.raises(ValueError, match="has no port"):
        NsqdHTTPClient.from_url("h")


def test_names_are_checked_before_anything_is_sent() -> None:
    client = NsqdHTTPClient("nobody.invalid")
    with pytest.raises(InvalidName, match='"a b" is not a valid topic name'):
        client.publish("a b", b"x")
    with pytest.raises(InvalidName, match='"" is not a valid channel name'):
        client.create_channel("t", "")
    with pytest.raises(ValueError, match="newline"):
        client.multipublish("t", [b"a", b"b\nc"])
