"""Answers of nsqlookupds and nsqds: any bytes are either read or refused, without other effects."""

import functools
import json
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.garbage import ODD_JSON
from nsqcy.cluster.connections import parse_connections
from nsqcy.cluster.discovery import Producer, lookup_url, parse_lookup, parse_nodes, parse_topics
from nsqcy.cluster.stats import TopicStats, parse_stats, sum_topics
from nsqcy.cluster.web_client import Answer
from nsqcy.errors import RequestError
from nsqcy.names import is_valid_name
from nsqcy.nsqadmin.api.copies_json import copies_json
from nsqcy.nsqadmin.api.stats_json import StatsJson
from nsqcy.nsqadmin.cluster import copies
from nsqcy.nsqadmin.cluster.answers import COPIES, read_answer
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.html.layout import Layout, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.views import copies as copies_views
from nsqcy.nsqadmin.views import topics as topic_views
from nsqcy.util.gotext import json_bytes
from support.copies_reports import group, worker
from support.runs import runs
from support.strict_html import Element
from support.strict_html import read as read_markup

HEADERS = st.sampled_from([{}, {"x-nsq-content-type": "nsq; version=1.0"}])
KEYS = ["producers", "data", "broadcast_address", "tcp_port", "http_port", "hostname", "version"]
KEYS += ["topics", "tombstones", "channels", "topic_name", "channel_name", "depth", "paused"]
KEYS += ["message_count", "backend_depth", "Depth", "status_code", "in_flight_count", "x"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([4150, "127.0.0.1", "\ud800", 10**400, -1, 65536]),
)
VALUES = st.recursive(
    SCALARS,
    lambda each: st.one_of(
        st.lists(each, max_size=4), st.dictionaries(st.sampled_from(KEYS), each, max_size=6)
    ),
    max_leaves=30,
)


def almost(each: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for variants of this object with up to two changed values."""
    return st.dictionaries(st.sampled_from(sorted(each)), VALUES, max_size=2).map(
        lambda changes: {**each, **changes}
    )


PRODUCER = {"broadcast_address": "a", "tcp_port": 1, "http_port": 2, "hostname": "h"}
NODE = PRODUCER | {"topics": ["t"], "tombstones": [True]}
PUBLISHING = {"remote_address": "h:1", "pub_counts": [{"topic": "t", "count": 1}]}
CHANNEL = {"channel_name": "c", "depth": 5, "message_count": 7, "paused": False}
TOPIC = {"topic_name": "t", "channels": [CHANNEL], "depth": 1, "backend_depth": 2}
BODIES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(ODD_JSON),
    st.sampled_from([b"[" * 100_000, b'{"producers":' * 50_000, b'{"data":' * 50_000]),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries(
        {
            "producers": st.lists(st.one_of(almost(NODE), almost(PUBLISHING), VALUES), max_size=3),
            "topics": st.lists(st.one_of(almost(TOPIC), VALUES), max_size=3),
        }
    ).map(lambda value: json.dumps(value).encode()),
)


def read_or_refused(read: Callable[..., list[Any]], body: bytes, headers: Any) -> list[Any]:
    try:
        return read(body, headers)
    except RequestError as error:
        assert "cannot be read" in str(error)
        return []


@settings(deadline=None, max_examples=runs(100))
@given(BODIES, HEADERS)
@example(b'{"producers":[{"tcp_port":' + b"9" * 5000 + b"}]}", {})
def test_lookups(body: bytes, headers: dict[str, str]) -> None:
    for read in (parse_lookup, parse_nodes):
        for each in read_or_refused(read, body, headers):
            assert isinstance(each, Producer) and each.broadcast_address
            assert 0 <= each.tcp_port < 65536 and 0 <= each.http_port < 65536
            each.broadcast_address.encode()
            assert all(type(mark) is bool for mark in each.topics.values())
    assert all(is_valid_name(each) for each in read_or_refused(parse_topics, body, headers))


@settings(deadline=None, max_examples=runs(100))
@given(BODIES, HEADERS)
@example(b'{"topics":[{"depth":' + b"9" * 5000 + b"}]}", {})
def test_statistics(body: bytes, headers: dict[str, str]) -> None:
    topics = read_or_refused(parse_stats, body, headers)
    assert all(isinstance(each, TopicStats) for each in topics)
    for name, each in sum_topics([*topics, *topics]).items():
        name.encode()
        rows = [row.figures.depth for row in topics if row.name == name]
        assert each.figures.depth == 2 * sum(rows)
    for connection in read_or_refused(
        functools.partial(parse_connections, node="n"), body, headers
    ):
        assert connection.client.node == "n"
        assert all(type(count) is int for count in connection.published.values())


NO_PLOTS = Plots(None, 0.0, 0.0)
PERCENTILE = {"quantile": 0.99, "value": 5.5}
LATENCY = {"count": 3, "percentiles": [PERCENTILE]}
CLIENT = {"hostname": "h", "connect_ts": 5, "tls": True, "auth_identity_url": "http://u"}
FIGURES = st.builds(
    lambda latency, percentile, client, topic: json.dumps(
        {
            "topics": [
                {
                    **topic,
                    "e2e_processing_latency": latency | {"percentiles": [percentile]},
                    "channels": [
                        CHANNEL | {"clients": [client], "e2e_processing_latency": latency}
                    ],
                }
            ]
        }
    ).encode(),
    almost(LATENCY),
    almost(PERCENTILE),
    almost(CLIENT),
    almost(TOPIC),
)


@settings(deadline=None, max_examples=runs(80))
@given(FIGURES)
def test_whatever_is_read_can_be_shown(body: bytes) -> None:
    rows = read_or_refused(functools.partial(parse_stats, clients=True), body, {})
    clients = Clients({}, 0.0)
    stats, layout = StatsJson(clients), Layout("", True)
    for topic in sum_topics([*rows, *rows]).values():
        json.loads(json_bytes(stats.topic(topic)))
        location = Location("/t", {"ask": "delete", "sort": "depth"})
        read_markup(render(layout, "t", topic_views.topic(topic, location, NO_PLOTS)))
        for channel in topic.channels.values():
            json.loads(json_bytes(stats.channel(channel)))
            view = topic_views.channel(topic, channel, clients, location, NO_PLOTS)
            read_markup(render(layout, "c", view))


@settings(deadline=None)
@given(st.text(), st.text(max_size=20))
def test_addresses(address: str, topic: str) -> None:
    try:
        url = lookup_url(address, topic)
    except ValueError:
        return
    assert url.startswith(("http://", "https://")) and "topic=" in url


PAIR = {"members": ["n.0", "m.0"], "epoch": 2, "responding": 1, "accepts": False}
GROUP = group("owner", owner="n.0", **PAIR)
WORKER = worker("n.0", sessions=PAIR["members"])
REPORTS = st.builds(
    lambda worker, *groups: json.dumps({"workers": [worker | {"groups": groups}]}).encode(),
    almost(WORKER),
    almost(GROUP),
    almost(GROUP | {"role": "holder", "owner": "m.0"}),
    almost(GROUP | {"group": "h", "role": "new", "closed": True}),
)


@settings(deadline=None, max_examples=runs(60))
@given(REPORTS, REPORTS)
def test_whatever_is_read_of_copies_can_be_shown(one: bytes, other: bytes) -> None:
    answers = [
        read_answer(node, Answer(200, {}, body), COPIES)
        for node, body in (("<a>:1", one), ("b:1", other))
    ]
    assert all(each.is_done or "unreadable" in each.reason for each in answers)
    json.loads(json_bytes(copies_json(answers)))
    layout = Layout("", True, has_copies=True)
    for order in ("topics", "-state", "bytes"):
        view = copies_views.page(answers, Location("/copies", {"sort": order}))
        shown = read_markup(render(layout, "Copies", view))
        groups = {each.id for each in copies.groups(answers)}
        assert {each.attributes["data-key"] for each in rows_of(shown)} >= groups - {""}
    for answer in answers:
        copies.of_nsqd(answer)
        copies.of_topic([answer], "orders")


def rows_of(page: Element) -> list[Element]:
    return [each for each in page.all("tr") if "data-key" in each.attributes]
