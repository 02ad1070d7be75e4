"""The page of the connections to all nsqds, and how `/stats` is read for it."""

import json
from typing import Any

from nsqcy.cluster.connections import Connection, parse_connections
from nsqcy.cluster.stats import ClientStats
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.html.layout import Layout, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.views.connections import connections
from support.strict_html import Element, read


def client(address: str, **values: Any) -> dict[str, Any]:
    return {"remote_address": address, "hostname": "h", "connect_ts": 100, **values}


def parse(*clients: dict[str, Any], producers: list[dict[str, Any]] | None) -> list[Connection]:
    channel = {"channel_name": "c", "clients": list(clients)}
    page = {"topics": [{"topic_name": "t", "channels": [channel]}], "producers": producers}
    return parse_connections(json.dumps(page).encode(), {}, "n:1")


def test_consumers_and_producers() -> None:
    counts = [{"topic": "u", "count": 3}, {"topic": "v", "count": 4}]
    found = parse(
        client("10.0.0.1:7", message_count=5),
        client("10.0.0.1:8"),
        producers=[client("10.0.0.1:8", pub_counts=counts), client("10.0.0.1:9", pub_counts=[])],
    )
    assert [(each.client.remote_address, each.topic, each.channel) for each in found] == [
        ("10.0.0.1:7", "t", "c"),
        ("10.0.0.1:8", "t", "c"),
        ("10.0.0.1:9", "", ""),
    ]
    assert [dict(each.published) for each in found] == [{}, {"u": 3, "v": 4}, {}]
    assert {each.client.node for each in found} == {"n:1"}


def test_clients_on_a_unix_socket_stay_apart() -> None:
    found = parse(client("@"), client("@"), producers=[client("@", pub_counts=[])])
    assert [each.topic for each in found] == ["t", "t", ""]
    assert parse(producers=None) == []


def page(rows: list[Connection], **params: str) -> Element:
    location = Location("/b/connections", params)
    view = connections(rows, Clients({}, 160.0), location)
    return read(render(Layout("/b", False), "Connections", view))


def hosts(rows: list[Connection], **params: str) -> list[str]:
    return [each[0] for each in page(rows, **params).table("Connections")[1:]]


def named(name: str, node: str = "n:1", **values: Any) -> ClientStats:
    return ClientStats(node=node, hostname=name, remote_address="10.0.0.1:7", **values)


CONSUMER = Connection(
    named(
        "b", connect_ts=100, in_flight_count=2, ready_count=2, saturated=True, message_count=1234
    ),
    "t",
    "c",
)
PRODUCER = Connection(named("a", node="n:2", user_agent="go-nsq/1"), published={"u": 3, "v": 4})


def test_what_it_shows() -> None:
    shown = page([CONSUMER, PRODUCER])
    assert shown.one("h1").text == "Connections 2 ⚠ 1 saturated consumer"
    head, producer, consumer = shown.table("Connections")
    assert dict(zip(head, consumer, strict=True)) == {
        "Client Host": "b:7",
        "Consumes": "t/c",
        "Publishes To": "",
        "NSQd Host": "n:1",
        "Finish Rate": "–",
        "In-Flight / RDY": "saturated 2 / 2",
        "Received": "1,234",
        "Published": "",
        "Connected": "1m",
        "Attributes": "",
        "User-Agent": "",
    }
    assert producer[:4] == ["a:7", "", "u, v", "n:2"]
    assert producer[7] == "7"
    assert shown.all("a", href="/b/topics/t/c") and shown.all("a", href="/b/topics/v")


def test_producers_of_many_topics() -> None:
    row = Connection(named("a"), published={"u": 1, "v": 2, "w": 3, "x": 4})
    shown = page([row])
    assert shown.table("Connections")[1][2] == "u, v and 2 more"
    assert shown.all("span", title="u, v, w, x")
    assert hosts([row], q="x") == ["a:7"]


def test_order_and_search() -> None:
    rows = [CONSUMER, PRODUCER]
    assert hosts(rows) == ["a:7", "b:7"]
    assert hosts(rows, sort="received") == ["b:7", "a:7"]
    for text, wanted in (("T/C", "b:7"), ("go-nsq", "a:7"), ("n:2", "a:7"), ("v", "a:7")):
        assert hosts(rows, q=text) == [wanted]
    assert "No connection matches." in page(rows, q="none").text
    assert "No client is consuming" in page([]).text


def test_pages() -> None:
    rows = [Connection(named(f"h{number:04}")) for number in range(501)]
    assert len(hosts(rows)) == 500
    assert hosts(rows, page="2") == ["h0500:7"]
