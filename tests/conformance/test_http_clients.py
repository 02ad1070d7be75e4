"""Every request of the HTTP clients, sent to a real nsqd and a real nsqlookupd."""

from collections.abc import Iterator

import pytest

from conftest import one_worker
from nsqcy.cluster.http_clients import LookupdClient, NsqdHTTPClient
from nsqcy.errors import RequestError
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd


@pytest.fixture
def nsqd_client(shared: Nsqd) -> NsqdHTTPClient:
    return NsqdHTTPClient("127.0.0.1", shared.http_port)


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Lookupd]:
    with Lookupd() as lookupd:
        yield lookupd


def test_publishing(shared: Nsqd, nsqd_client: NsqdHTTPClient, topic: str) -> None:
    conn = shared.connect().sub(topic, "c", rdy=10)
    assert nsqd_client.publish(topic, b"one\ntwo") == b"OK"
    assert nsqd_client.multipublish(topic, [b"three", b"four"]) == b"OK"
    assert nsqd_client.multipublish(topic, iter([b"five\n", b"\n"]), binary=True) == b"OK"
    bodies = sorted(conn.message().body for _ in range(5))
    assert bodies == sorted([b"one\ntwo", b"three", b"four", b"five\n", b"\n"])
    assert nsqd_client.publish(topic, b"late", defer=3_600_000) == b"OK"
    shared.web.await_counts(topic, "c", deferred_count=1)


def test_topics_and_channels(shared: Nsqd, nsqd_client: NsqdHTTPClient, topic: str) -> None:
    nsqd_client.create_topic(topic)
    nsqd_client.create_channel(topic, "c")
    nsqd_client.pause_channel(topic, "c")
    assert (shared.web.channel(topic, "c") or {})["paused"] is True
    nsqd_client.unpause_channel(topic, "c")
    assert (shared.web.channel(topic, "c") or {})["paused"] is False
    nsqd_client.publish(topic, b"x")
    shared.web.await_counts(topic, "c", depth=1)
    nsqd_client.empty_channel(topic, "c")
    shared.web.await_counts(topic, "c", depth=0)
    nsqd_client.pause_topic(topic)
    nsqd_client.publish(topic, b"x")
    shared.web.await_counts(topic, depth=1)
    nsqd_client.empty_topic(topic)
    shared.web.await_counts(topic, depth=0)
    nsqd_client.unpause_topic(topic)
    assert (shared.web.topic(topic) or {})["paused"] is False
    nsqd_client.delete_channel(topic, "c")
    assert shared.web.channel(topic, "c") is None
    nsqd_client.delete_topic(topic)
    assert shared.web.topic(topic) is None


@one_worker
def test_what_an_nsqd_says(nsqd_client: NsqdHTTPClient, topic: str) -> None:
    nsqd_client.create_topic(topic)
    nsqd_client.create_channel(topic, "c")
    assert nsqd_client.ping() == b"OK"
    assert nsqd_client.info()["version"] == "1.3.0"
    stats = nsqd_client.stats(topic, "c")
    assert isinstance(stats, dict)
    assert [each["topic_name"] for each in stats["topics"]] == [topic]
    everything = nsqd_client.stats()
    assert isinstance(everything, dict) and everything["health"] == "OK"
    page = nsqd_client.stats(topic, text=True)
    assert isinstance(page, bytes) and topic.encode() in page


@one_worker
def test_errors(nsqd_client: NsqdHTTPClient, topic: str) -> None:
    with pytest.raises(RequestError, match=r"got response 404 Not Found .*TOPIC_NOT_FOUND") as why:
        nsqd_client.delete_topic(topic)
    assert (why.value.status, why.value.body) == (404, b'{"message":"TOPIC_NOT_FOUND"}')
    with pytest.raises(RequestError, match=r"400 Bad Request .*MSG_EMPTY"):
        nsqd_client.publish(topic, b"")
    with pytest.raises(RequestError, match="Connection refused") as why:
        NsqdHTTPClient("127.0.0.1", 1).ping()
    assert why.value.status == 0


def test_lookupd(lookupd: Lookupd, topic: str) -> None:
    client = LookupdClient.from_url(f"http://{lookupd.http_address}")
    conn = lookupd.connect()
    conn.identify("a", tcp_port=1, http_port=2)
    conn.register(topic, "c")
    assert [each["broadcast_address"] for each in client.lookup(topic)["producers"]] == ["a"]
    assert client.channels(topic) == {"channels": ["c"]}
    assert [each["topics"] for each in client.nodes()["producers"]] == [[topic]]
    client.tombstone_topic(topic, "a:2")
    assert client.lookup(topic) == {"channels": ["c"], "producers": []}
    assert client.nodes()["producers"][0]["tombstones"] == [True]
    client.delete_channel(topic, "c")
    client.create_channel(topic, "d")
    assert client.channels(topic) == {"channels": ["d"]}
    client.delete_topic(topic)
    with pytest.raises(RequestError, match="TOPIC_NOT_FOUND"):
        client.lookup(topic)
    client.create_topic(topic)
    assert topic in client.topics()["topics"]
    assert (client.ping(), client.info()) == (b"OK", {"version": "1.3.0"})
    lookupd.hang_up()
    eventually(lambda: client.nodes()["producers"] == [])
