"""Peeking at messages over HTTP, regardless of the worker that owns them. NSQ has no such
feature."""

import json
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Answer, Web
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours

DAY_MS = 24 * 3600 * 1000
# The topics are on different workers, if there are several.
TOPICS = {"a": "memory", "b": "os", "c": "fsync", "d": "memory", "e": "os", "f": "fsync"}
HOSTILE = [
    b"<script>alert(1)</script>\x00\x1b[31m\xff\xfe",
    b'{"a": "\xc3\xa4"}',
    bytes(range(256)) * 4096,
]


def page(web: Web, topic: str, channel: str = "", **query: Any) -> dict[str, Any]:
    if channel:
        answer = web.get("/channel/peek", topic=topic, channel=channel, **query)
    else:
        answer = web.get("/topic/peek", topic=topic, **query)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    found: dict[str, Any] = answer.json()
    return found


def bodies(found: dict[str, Any]) -> list[bytes]:
    return [b64decode(each["body"]) for each in found["messages"]]


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["message"]


def test_every_state_in_every_class(nsqd: Starter) -> None:
    daemon = nsqd(mem_queue_size=2, max_defer_timeout="744h", msg_timeout="10m")
    web = daemon.web
    for topic, durability in TOPICS.items():
        web.put("/topic/config", json.dumps({"durability": durability}).encode(), topic=topic)
        web.pub(topic, b"own", headers={"X-Nsq-Trace": "t"})
        (own,) = page(web, topic)["messages"]
        web.create(topic, "c")
        assert page(web, topic) == {"state": "backlog", "messages": [], "next": None}
        assert page(web, topic, "c")["messages"] == [own]
        assert page(web, topic, "c", start=own["start"])["messages"] == [own]
        consumer = daemon.connect()
        consumer.identify(client_id="me")
        consumer.sub(topic, "c", 1)
        delivered = consumer.message()
        web.mpub(topic, [b"%d" % each for each in range(9)])
        web.pub(topic, b"later", defer=DAY_MS)
        web.await_counts(topic, "c", depth=9, in_flight_count=1, deferred_count=1)

        (held,) = page(web, topic, "c", state="in_flight")["messages"]
        assert held["id"] == own["id"] == delivered.id.decode()
        assert held | {"attempts": 0} == own | {
            key: held[key] for key in ("start", "deadline", "consumer")
        }
        assert held["deadline"] > held["timestamp"] == delivered.timestamp
        assert held["headers"] == {"trace": "t"}
        assert held["consumer"]["client_id"] == "me"
        (later,) = page(web, topic, "c", state="deferred")["messages"]
        assert later["due"] >= later["timestamp"] + DAY_MS * 1_000_000
        first = page(web, topic, "c", count=5)
        rest = page(web, topic, "c", count=5, start=first["next"])
        assert bodies(first) + bodies(rest) == [b"%d" % each for each in range(9)]
        for state in ("queued", "in_flight", "deferred"):
            one = page(web, topic, "c", state=state)["messages"][-1]
            (same,) = page(web, topic, "c", state=state, start=one["start"])["messages"]
            assert (same["id"], same["start"]) == (one["id"], one["start"])
        assert rest["next"] is None
        web.await_counts(topic, "c", depth=9, in_flight_count=1, deferred_count=1)


def test_the_log_of_a_topic(nsqd: Starter) -> None:
    """Peeking includes finished messages, and may start at any position."""
    daemon = nsqd()
    web = daemon.web
    for topic, durability in TOPICS.items():
        policy = {"durability": durability, "retention_time": "1h"}
        web.put("/topic/config", json.dumps(policy).encode(), topic=topic)
        web.create(topic, "c")
        web.mpub(topic, [b"%d" % each for each in range(9)])
        consumer = daemon.connect()
        consumer.identify()
        consumer.sub(topic, "c", 9)
        for _ in range(9):
            consumer.fin(consumer.message().id)
        web.pub(topic, b"later", defer=DAY_MS // 100)
        web.await_counts(topic, "c", depth=0, in_flight_count=0, deferred_count=1)

        whole = page(web, topic, state="log", **{"from": "earliest"})
        assert whole == page(web, topic, state="log") | {"next": None}
        assert bodies(whole) == [*(b"%d" % each for each in range(9)), b"later"]
        fifth = whole["messages"][5]
        assert page(web, topic, state="log", start=fifth["start"])["messages"][0] == fifth
        rest = page(web, topic, state="log", count=2, **{"from": fifth["seq"]})
        assert bodies(rest) == [b"5", b"6"]
        assert bodies(page(web, topic, state="log", start=rest["next"])) == [b"7", b"8", b"later"]
        last = datetime.fromtimestamp(whole["messages"][-1]["timestamp"] // 1000 / 1e6, UTC)
        at = last.isoformat().replace("+00:00", "Z")
        assert bodies(page(web, topic, state="log", **{"from": at})) == [b"later"]
        assert page(web, topic, state="log", **{"from": "latest"})["messages"] == []
        newest = page(web, topic, state="log", count=3, **{"from": -3})
        assert bodies(newest) == [b"7", b"8", b"later"]
        before = page(web, topic, state="log", count=6, start=newest["previous"])
        assert bodies(before)[:3] == [b"4", b"5", b"6"]
        before = page(web, topic, state="log", count=9, start=before["previous"])
        assert (bodies(before)[0], before["previous"]) == (b"0", None)
        assert page(web, topic)["messages"] == []


def test_bodies_are_what_they_are(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c")
    for body in HOSTILE:
        shared.web.pub(topic, body)
    whole = page(shared.web, topic, "c", bytes=512 << 10)
    assert bodies(whole) == [*HOSTILE[:2], HOSTILE[2][: 512 << 10]]
    assert [each["size"] for each in whole["messages"]] == [len(each) for each in HOSTILE]
    assert [each["cut"] for each in whole["messages"]] == [False, False, True]


def test_pages_end_at_a_megabyte(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c")
    sent = [bytes([number]) * 200_000 for number in range(12)]
    for body in sent:
        shared.web.pub(topic, body)
    found: list[bytes] = []
    start: dict[str, str] = {}
    while True:
        query = {"topic": topic, "channel": "c", "bytes": 200_000, "count": 100, **start}
        answer = shared.web.get("/channel/peek", **query)
        assert len(answer.body) <= 1 << 20
        found += bodies(answer.json())
        if answer.json()["next"] is None:
            break
        start = {"start": answer.json()["next"]}
    assert found == sent


@one_worker
@pytest.mark.parametrize(
    ("path", "query", "status", "message"),
    [
        ("/channel/peek", {"topic": "none-such", "channel": "c"}, 404, "TOPIC_NOT_FOUND"),
        ("/topic/peek", {"topic": "none-such"}, 404, "TOPIC_NOT_FOUND"),
        ("/channel/peek", {"channel": "d"}, 404, "CHANNEL_NOT_FOUND"),
        ("/channel/peek", {}, 400, "MISSING_ARG_CHANNEL"),
        ("/channel/peek", {"topic": "a b", "channel": "c"}, 400, "INVALID_ARG_TOPIC"),
        (
            "/channel/peek",
            {"channel": "c", "state": "done"},
            400,
            "INVALID_STATE (allowed: queued, in_flight, deferred)",
        ),
        ("/topic/peek", {"count": 101}, 400, "INVALID_COUNT (allowed: 1 to 100)"),
        ("/topic/peek", {"state": "queued"}, 400, "INVALID_STATE (allowed: backlog, log)"),
        (
            "/topic/peek",
            {"from": "earliest"},
            400,
            "INVALID_FROM (allowed with state=log, and without start)",
        ),
    ],
)
def test_refusals(
    shared: Nsqd, topic: str, path: str, query: dict[str, Any], status: int, message: str
) -> None:
    shared.web.create(topic, "c")
    assert refusal(shared.web.get(path, **({"topic": topic} | query))) == (status, message)


def test_only_what_is_read_is_got(shared: Nsqd) -> None:
    assert shared.web.get("/topic/peek").json() == {"message": "MISSING_ARG_TOPIC"}
    assert shared.web.post("/topic/peek", topic="t").status == 405


@one_worker
def test_auth_is_not_passed_by(guarded: Nsqd, topic: str) -> None:
    guarded.web.create(topic, "c")
    of_channel = {"channel": "c"}
    paths = {"/topic/peek": {}, "/channel/peek": of_channel, "/channel/keys": of_channel}
    for path, query in paths.items():
        status, message = refusal(guarded.web.get(path, topic=topic, **query))
        assert (status, message[:16]) == (403, "PEEK_NOT_ALLOWED")
