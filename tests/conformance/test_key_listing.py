"""What nsqd shows about the keys of a channel: /channel/keys, /stats and the metrics, and `nsqcy
channel keys`. NSQ has no such feature."""

import json
import subprocess
import sys
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
        "beyond_index": 0,
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


def test_messages_of_a_key_are_peeked(nsqd: Starter) -> None:
    daemon = nsqd(msg_timeout="10m")
    web = daemon.web
    keyed(web, "t")
    publish(web, "t", a=3, b=2)
    web.pub("t", b'{"k": "a"}', defer=3_600_000)
    conn = daemon.connect().sub("t", "c", rdy=1)
    conn.message()

    def peeked(**query: Any) -> list[str | None]:
        answer = web.get("/channel/peek", topic="t", channel="c", **query)
        assert answer.status == 200, answer
        return [each.get("key") for each in answer.json()["messages"]]

    assert peeked() == ["a", "a", "b", "b"]
    assert peeked(key="a") == ["a", "a"]
    assert peeked(key="b", count=1) == ["b"]
    assert peeked(key="none") == []
    assert peeked(key="a", state="in_flight") == ["a"]
    assert peeked(key="b", state="in_flight") == []
    assert peeked(key="a", state="deferred") == ["a"]
    assert web.get("/channel/peek", topic="t", channel="c", key="").status == 400


def run(daemon: Nsqd, *words: str) -> str:
    command = [sys.executable, "-m", "nsqcy", *words]
    command.append(f"--nsqd-http-address=127.0.0.1:{daemon.http_port}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line(nsqd: Starter) -> None:
    daemon = nsqd(workers=1)
    keyed(daemon.web, "t", fair=True)
    publish(daemon.web, "t", a=3, b=2)
    node = f"127.0.0.1:{daemon.http_port}"
    assert run(daemon, "channel", "pause", "t", "c", "--key=b") == (
        "paused key b of channel t/c on 1 nsqd\n"
    )
    found = json.loads(run(daemon, "channel", "keys", "t", "c", "--json"))
    assert [(each["key"], each["depth"], each["paused"]) for each in found["keys"]] == [
        ("a", 3, False),
        ("b", 2, True),
    ]
    lines = run(daemon, "channel", "keys", "t", "c", "--blocked").splitlines()
    assert lines[0].split() == ["key", "waiting", "held", "blocked", "for", "paused", "nsqd"]
    assert (lines[1].split()[0], lines[1].split()[-2:]) == ("b", ["yes", node])
    run(daemon, "channel", "unpause", "t", "c", "--key=b")
    assert run(daemon, "channel", "keys", "t", "c", "--paused") == "channel t/c has no such keys\n"
    run(daemon, "channel", "empty", "t", "c", "--key=a", "--yes")
    daemon.web.await_counts("t", "c", depth=2)
    assert run(daemon, "peek", "t", "c", "--key=b", "--full") == '{"k": "b"}\n' * 2
    assert "no queued messages with key a" in run(daemon, "peek", "t", "c", "--key=a")
