"""A very large number of topics: clients create them over both protocols, each with a message, and
a restart restores all of them."""

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import RESPONSE, Conn

AHEAD = 200


def published(conn: Conn, topics: list[str]) -> None:
    """Publish a message to each topic, pipelined."""
    for start in range(0, len(topics), AHEAD):
        some = topics[start : start + AHEAD]
        for topic in some:
            conn.command("PUB", topic, body=topic.encode())
        for _ in some:
            assert conn.frame() == (RESPONSE, b"OK")


def many_topics(starter: Starter, workers: int, count: int) -> None:
    daemon = starter(workers=workers)
    by_http = [f"http{number}" for number in range(count // 10)]
    by_tcp = [f"tcp{number}" for number in range(count - len(by_http))]
    for topic in by_http:
        daemon.web.pub(topic, topic.encode())
    published(daemon.connect(timeout=60), by_tcp)
    for topic in (by_http[0], by_tcp[0]):
        daemon.web.create(topic, "c")
    topics = daemon.web.topics()
    assert set(topics) == {*by_http, *by_tcp}
    assert {topic["message_count"] for topic in topics.values()} == {1}
    daemon.stop(timeout=100)  # each topic has files to sync
    daemon.restart()
    topics = daemon.web.topics()
    assert set(topics) == {*by_http, *by_tcp}
    assert sum(topic["depth"] for topic in topics.values()) == count - 2
    for topic in (by_http[0], by_tcp[0], by_http[-1], by_tcp[-1]):
        conn = daemon.connect().sub(topic, "c", rdy=1)
        assert [message.body for message in conn.take(1)] == [topic.encode()]
    eventually(lambda: daemon.web.counts(by_tcp[0], "c")["in_flight_count"] == 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_thousand_topics(starter: Starter, workers: int) -> None:
    many_topics(starter, workers, 1000)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 3])
def test_ten_thousand_topics(starter: Starter, workers: int) -> None:
    many_topics(starter, workers, 10_000)
