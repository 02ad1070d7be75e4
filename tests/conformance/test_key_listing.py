"""What nsqd shows about the keys of a channel: /channel/keys, /stats and the metrics, and `nsqcy
channel keys`. NSQ has no such feature."""

import json
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Web, eventually
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours


def keyed(web: Web, topic: str, **rules: Any) -> None:
    web.create(topic, "c")
    web.put("/topic/config", b'{"key": "json:/k", "durability": "os"}', topic=topic)
    values = json.dumps(rules or {"order": "key"}).encode()
    assert web.put("/channel/config", values, topic=topic, channel="c").status == 200


def publish(web: Web, topic: str, **counts: int) -> None:
    for key, count in counts.items():
        web.mpub(topic, [json.dumps({"k": key}).encode()] * count)


def listed(web: Web, topic: str, **query: Any) -> dict[str, Any]:
    answer = web.get("/channel/keys", topic=topic, channel="c", **query)
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [each["key"] for each in found["keys"]]


@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "disk"])
def test_keys_are_listed(nsqd: Starter, in_memory: bool) -> None:
    daemon = nsqd()
    for number in range(4):  # on different workers, if there are several
        keyed(daemon.web, f"t{number}")
        publish(daemon.web, f"t{number}", ab=3, b=5, bc=1, c=2)
        daemon.web.mpub(f"t{number}", [b"no key"])
        query = {"topic": f"t{number}", "channel": "c"}
        daemon.web.post("/channel/key/pause", **query, key="b")
        daemon.web.post("/channel/key/pause", **query, key="idle")
    if not in_memory:
        daemon.restart()
    web = daemon.web
    for number in range(4):
        topic = f"t{number}"
        conn = daemon.connect().sub(topic, "c", rdy=1)
        conn.message()  # of ab, whose next message is blocked
        found = listed(web, topic)
        assert found["complete"]
        first, second, *_ = found["keys"]
        assert first == {
            "key": "b",
            "depth": 5,
            "held": 0,
            "blocked": True,
            "blocked_seconds": first["blocked_seconds"],
            "paused": True,
        }
        assert second["key"] in ("ab", "c")
        assert sorted(names(found)) == ["ab", "b", "bc", "c", "idle"]
        assert sorted(names(listed(web, topic, blocked="true"))) == ["ab", "b"]
        assert sorted(names(listed(web, topic, paused="1"))) == ["b", "idle"]
        assert sorted(names(listed(web, topic, search="b"))) == ["ab", "b", "bc"]
        assert names(listed(web, topic, key="c")) == ["c"]
        assert names(listed(web, topic, key="idle")) == ["idle"]
        assert listed(web, topic, key="none") == {"keys": [], "complete": True}
        assert names(listed(web, topic, limit=1)) == ["b"]
        assert not listed(web, topic, limit=1)["complete"]


@one_worker
def test_a_channel_that_has_more_keys_than_a_page(shared: Nsqd, topic: str) -> None:
    keyed(shared.web, topic, fair=True)
    shared.web.mpub(topic, [json.dumps({"k": f"key {n % 5000}"}).encode() for n in range(7000)])
    found = listed(shared.web, topic, limit=1000)
    assert len(found["keys"]) == 1000 and not found["complete"]
    assert {each["depth"] for each in found["keys"]} == {2}
    assert len(names(listed(shared.web, topic, limit=1000, search="key 12"))) == 111


@one_worker
def test_what_cannot_be_listed(shared: Nsqd, topic: str) -> None:
    def message(**query: str) -> tuple[int, str]:
        answer = shared.web.get("/channel/keys", topic=topic, channel="c", **query)
        return answer.status, answer.json()["message"]

    assert message() == (404, "TOPIC_NOT_FOUND")
    shared.web.create(topic, "c")
    assert message() == (400, "NO_KEY_RULES")
    assert message(limit="1001") == (400, "INVALID_LIMIT (allowed: 1 to 1000)")
    assert message(blocked="x") == (400, "INVALID_BLOCKED (allowed: true, false, 1 or 0)")
    assert message(key="") == (400, "INVALID_KEY (allowed: 1 to 255 bytes)")


def test_statistics_and_metrics(nsqd: Starter) -> None:
    daemon = nsqd()
    web = daemon.web
    keyed(web, "t")
    web.create("u", "c")
    publish(web, "t", a=3, b=5, c=1)
    web.pub("u", b"x")
    web.post("/channel/key/pause", topic="t", channel="c", key="b")
    daemon.connect().sub("t", "c", rdy=1).message()
    found = eventually(lambda: web.channel("t", "c"))
    assert found["keys"] == {
        "waiting": 1,
        "blocked": 2,
        "blocked_seconds": found["keys"]["blocked_seconds"],
        "paused": 1,
        "largest": [
            {"key": "b", "depth": 5, "in_flight": 0, "blocked": True, "paused": True},
            {"key": "a", "depth": 2, "in_flight": 1, "blocked": True, "paused": False},
            {"key": "c", "depth": 1, "in_flight": 0, "blocked": False, "paused": False},
        ],
    }
    assert "keys" not in web.channel("u", "c")  # type: ignore[operator]

    def lines() -> list[str]:
        text = web.get("/metrics").body.decode()
        return [each for each in text.splitlines() if each.startswith("nsqd_channel_keys_")]

    names = '{topic="t",channel="c"}'
    wanted = {
        f"nsqd_channel_keys_waiting{names} 1",
        f"nsqd_channel_keys_blocked{names} 2",
        f"nsqd_channel_keys_blocked_long{names} 0",
        f"nsqd_channel_keys_paused{names} 1",
    }
    eventually(lambda: wanted <= set(lines()))
    assert set(lines()) == wanted
