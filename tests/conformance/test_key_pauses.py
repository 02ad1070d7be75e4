"""Pausing, unpausing and emptying one key of a channel, regardless of the worker that owns it. NSQ
has no such feature."""

import json
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Answer, Web
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours


def keyed(daemon: Nsqd, topic: str, **rules: Any) -> Web:
    """Create topic and channel c, with these rules; the key is in the body."""
    web = daemon.web
    web.create(topic, "c")
    web.put("/topic/config", b'{"key": "json:/k", "durability": "os"}', topic=topic)
    values = json.dumps(rules or {"order": "key"}).encode()
    assert web.put("/channel/config", values, topic=topic, channel="c").status == 200
    return web


def publish(web: Web, topic: str, *keys: str) -> None:
    web.mpub(topic, [json.dumps({"k": key}).encode() for key in keys])


def act(web: Web, verb: str, topic: str, key: str) -> None:
    answer = web.post(f"/channel/key/{verb}", topic=topic, channel="c", key=key)
    assert (answer.status, answer.body) == (200, b"")


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["message"]


def key_of(body: bytes) -> str:
    found: str = json.loads(body)["k"]
    return found


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_paused_key_stays_paused_and_its_neighbours_go_on(nsqd: Starter, killed: bool) -> None:
    daemon = nsqd()
    for number in range(4):  # on different workers, if there are several
        topic = f"t{number}"
        web = keyed(daemon, topic)
        act(web, "pause", topic, "ä&b")
        publish(web, topic, "ä&b", "b", "ä&b", "c")
    daemon.restart(killed=killed)
    web = daemon.web
    for number in range(4):
        topic = f"t{number}"
        conn = daemon.connect().sub(topic, "c", rdy=10)
        got = [conn.message(), conn.message()]
        assert [key_of(each.body) for each in got] == ["b", "c"]
        for each in got:
            conn.fin(each)
        conn.nothing()
        act(web, "unpause", topic, "ä&b")
        assert key_of(conn.message().body) == "ä&b"
        conn.nothing()  # one at a time


def test_a_key_is_emptied_up_to_now(nsqd: Starter) -> None:
    daemon = nsqd()
    for number in range(4):
        topic = f"t{number}"
        web = keyed(daemon, topic)
        publish(web, topic, "a", "b", "a", "a", "b")
        conn = daemon.connect().sub(topic, "c", rdy=10)
        first, second = conn.message(), conn.message()
        act(web, "empty", topic, "a")
        web.await_counts(topic, "c", depth=1, in_flight_count=2)
        publish(web, topic, "a")
        conn.req(first, 0)
        again = conn.message()
        assert again.id == first.id  # it was in flight
        conn.fin(again)
        assert conn.message().body == b'{"k": "a"}'
        conn.fin(second)
        assert key_of(conn.message().body) == "b"
        conn.nothing()


def test_an_emptied_key_stays_empty_after_a_kill(nsqd: Starter) -> None:
    daemon = nsqd()
    web = keyed(daemon, "t", fair=True)
    publish(web, "t", *["a", "b"] * 2000)
    act(web, "empty", "t", "a")
    daemon.restart(killed=True)
    daemon.web.await_counts("t", "c", depth=2000)
    conn = daemon.connect().sub("t", "c", rdy=2500)
    assert {key_of(each.body) for each in conn.take(2000)} == {"b"}


def test_pauses_outlive_the_rules(nsqd: Starter) -> None:
    daemon = nsqd()
    web = keyed(daemon, "t")
    act(web, "pause", "t", "a")
    assert web.put("/channel/config", b'{"order": ""}', topic="t", channel="c").status == 200
    query = {"topic": "t", "channel": "c"}
    assert refusal(web.post("/channel/key/pause", **query, key="b")) == (400, "NO_KEY_RULES")
    publish(web, "t", "a")
    conn = daemon.connect().sub("t", "c", rdy=1)
    conn.fin(conn.message())  # no rule applies
    daemon.restart()
    web = daemon.web
    assert web.put("/channel/config", b'{"fair": true}', topic="t", channel="c").status == 200
    publish(web, "t", "a", "b")
    conn = daemon.connect().sub("t", "c", rdy=2)
    assert key_of(conn.message().body) == "b"
    conn.nothing()
    act(web, "unpause", "t", "a")
    assert key_of(conn.message().body) == "a"


@one_worker
@pytest.mark.parametrize("verb", ["pause", "unpause", "empty"])
def test_what_cannot_be_done(shared: Nsqd, topic: str, verb: str) -> None:
    def message(**query: str) -> tuple[int, str]:
        return refusal(shared.web.post(f"/channel/key/{verb}", **query))

    assert message(topic=topic, channel="c", key="k") == (404, "TOPIC_NOT_FOUND")
    shared.web.create(topic)
    assert message(topic=topic, channel="c", key="k") == (404, "CHANNEL_NOT_FOUND")
    shared.web.create(topic, "c")
    assert message(topic=topic, channel="c", key="k") == (400, "NO_KEY_RULES")
    assert message(topic=topic, channel="c") == (400, "MISSING_ARG_KEY")
    for wrong in ("", "ä" * 128):
        assert message(topic=topic, channel="c", key=wrong) == (
            400,
            "INVALID_KEY (allowed: 1 to 255 bytes)",
        )
    assert message(topic=topic, key="k") == (400, "MISSING_ARG_CHANNEL")
    assert message(channel="c", key="k") == (400, "MISSING_ARG_TOPIC")
    assert message(topic="$", channel="c", key="k") == (400, "INVALID_ARG_TOPIC")


@one_worker
def test_at_most_1000_keys_are_paused(shared: Nsqd, topic: str) -> None:
    web = keyed(shared, topic)
    web.put("/topic/config", b'{"durability": "memory"}', topic=topic)
    for number in range(1000):
        act(web, "pause", topic, f"key {number}")
    act(web, "pause", topic, "key 999")
    query = {"topic": topic, "channel": "c", "key": "one more"}
    assert refusal(web.post("/channel/key/pause", **query)) == (400, "TOO_MANY_PAUSED_KEYS")
    act(web, "unpause", topic, "key 500")
    act(web, "pause", topic, "one more")
