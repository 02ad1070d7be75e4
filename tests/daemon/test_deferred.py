"""Deferred messages are listed and cancelled over HTTP, on any worker, even after a kill."""

import json
from typing import Any

import pytest

from conftest import Starter
from support.nsqd_process import Nsqd

DAY_MS = 24 * 3600 * 1000
TOPICS = ["a", "b", "c", "d"]


def listed(daemon: Nsqd, topic: str, **query: Any) -> dict[str, Any]:
    answer = daemon.web.get("/channel/deferred", topic=topic, channel="c", **query)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["message"]


def test_listed_cancelled_and_killed(nsqd: Starter) -> None:
    daemon = nsqd(durability="os", max_defer_timeout="744h")
    for topic in TOPICS:
        daemon.web.create(topic, "c")
        for days in (30, 2, 1):
            daemon.web.pub(topic, b"." * days, defer=days * DAY_MS)
    before = {topic: listed(daemon, topic)["deferred"] for topic in TOPICS}
    for found in before.values():
        assert [each["size"] for each in found] == [1, 2, 30]
        assert [each["attempts"] for each in found] == [0, 0, 0]
    for topic in TOPICS:
        id = before[topic][1]["id"]
        for status in (200, 404):
            answer = daemon.web.post("/message/cancel", topic=topic, channel="c", id=id)
            assert answer.status == status
        daemon.web.await_counts(topic, "c", deferred_count=2)
    daemon.restart(killed=True)
    for topic in TOPICS:
        after = listed(daemon, topic)["deferred"]
        assert [each["id"] for each in after] == [before[topic][at]["id"] for at in (0, 2)]
        for one, other in zip(after, (before[topic][0], before[topic][2]), strict=True):
            assert one["size"] == other["size"] and abs(one["due"] - other["due"]) < 10**9


def test_pages(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.web.create("t", "c")
    for number in range(5):
        daemon.web.pub("t", b".", defer=1_000_000 + number)
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    for _ in range(3):
        page = listed(daemon, "t", limit=2, **after)
        found += page["deferred"]
        after = {"after": page["next"]}
    assert page["next"] is None
    whole = listed(daemon, "t")["deferred"]
    assert [each["id"] for each in found] == [each["id"] for each in whole]
    assert [each["seq"] for each in found] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("method", "path", "query", "status", "message"),
    [
        ("GET", "/channel/deferred", {"topic": "none", "channel": "c"}, 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channel/deferred", {"topic": "t", "channel": "d"}, 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/channel/deferred", {"topic": "t"}, 400, "MISSING_ARG_CHANNEL"),
        *(
            (
                "GET",
                "/channel/deferred",
                {"topic": "t", "channel": "c", "limit": limit},
                400,
                "INVALID_LIMIT (allowed: 1 to 1000)",
            )
            for limit in ("0", "1001", "x", "-1", "")
        ),
        (
            "GET",
            "/channel/deferred",
            {"topic": "t", "channel": "c", "after": "1"},
            400,
            "INVALID_AFTER (allowed: the value of next in a response)",
        ),
        (
            "POST",
            "/message/cancel",
            {"topic": "t", "channel": "c", "id": "0123456789abcdef"},
            404,
            "MESSAGE_NOT_FOUND",
        ),
        (
            "POST",
            "/message/cancel",
            {"topic": "t", "channel": "c", "id": "17"},
            400,
            "INVALID_ID (allowed: 16 hexadecimal digits)",
        ),
        ("POST", "/message/cancel", {"topic": "t", "channel": "c"}, 400, "MISSING_ARG_ID"),
        (
            "POST",
            "/message/cancel",
            {"topic": "t", "channel": "d", "id": "0123456789abcdef"},
            404,
            "CHANNEL_NOT_FOUND",
        ),
    ],
)
def test_refusals(
    plain: Nsqd, method: str, path: str, query: dict[str, str], status: int, message: str
) -> None:
    plain.web.create("t", "c")
    assert refusal(plain.web.request(method, path, **query)) == (status, message)
