"""Dead letters in a daemon with several workers. Each one is transferred once, no matter which
workers own the topics and which processes are killed."""

import json
import os
import random
import signal
import time
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from nsqcy.base.core import decode_headers
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, Hangup, Silence
from support.copying_nsqds import BUDGET, await_copies, copying_nsqds
from support.etcd_process import Etcd, needs_etcd
from support.nsqd_process import Nsqd, free_port

TOPICS = ["t0", "t1", "t2"]
DEAD = ["d0", "d1", "d2"]
N = 60


@pytest.fixture(params=[1, 3], ids=["w1", "w3"])
def starter(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    starter = Starter(request.param, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


def begun(starter: Starter, attempts: int, **options: Any) -> Nsqd:
    daemon = starter(
        tcp_address=f"127.0.0.1:{free_port()}",
        http_address=f"127.0.0.1:{free_port()}",
        sync_timeout="200ms",
        **options,
    )
    for topic, dead in zip(TOPICS, DEAD, strict=True):
        daemon.web.create(topic, "c")
        daemon.web.create(dead, "look")
        policy = json.dumps({"max_attempts": attempts, "dead_letter_topic": dead}).encode()
        answer = daemon.web.put("/channel/config", policy, topic=topic, channel="c")
        assert answer.status == 200, answer.body
    return daemon


def headers_of(body: bytes) -> tuple[bytes, dict[str, str]]:
    size = int.from_bytes(body[:2], "big")
    return body[2 + size :], decode_headers(body[2 : 2 + size])


def letters(daemon: Nsqd, dead: str, count: int) -> list[tuple[bytes, dict[str, str]]]:
    conn = daemon.connect()
    assert conn.negotiate(headers=True)["headers"] is True
    conn.sub(dead, "look", rdy=2500)
    found = [headers_of(message.body) for message in conn.take(count)]
    conn.nothing(0.1)
    conn.close()
    return found


def test_the_sixth_delivery_never_happens(starter: Starter) -> None:
    daemon = begun(starter, 5)
    for topic, dead in zip(TOPICS, DEAD, strict=True):
        daemon.web.pub(topic, b"poison")
        conn = daemon.connect()
        conn.identify(client_id="the-last-one")
        conn.sub(topic, "c", rdy=10)
        for attempt in range(1, 6):
            message = conn.message()
            assert message.attempts == attempt
            conn.req(message)
        ((body, headers),) = letters(daemon, dead, 1)
        conn.nothing(0.1)
        assert body == b"poison"
        assert headers["origin-topic"] == topic
        assert headers["origin-channel"] == "c"
        assert headers["origin-id"] == message.id.decode()
        assert headers["attempts"] == "5"
        assert headers["last-client"] == "the-last-one"
        assert headers["reason"] == "attempts"
        assert abs(int(headers["first-time"]) - time.time_ns()) < 60 * 10**9
        shown = daemon.web.get("/stats", format="json", ledger="true", topic=topic).json()
        assert shown["topics"][0]["channels"][0]["ledger"]["dead_lettered"] == 1


def test_at_once(starter: Starter) -> None:
    """The consumer requests the transfer, regardless of the worker that owns the topic."""
    daemon = begun(starter, 5)
    for topic, dead in zip(TOPICS, DEAD, strict=True):
        daemon.web.pub(topic, b"poison")
        conn = daemon.connect()
        assert conn.negotiate(dead_letters=True)["dead_letters"] is True
        conn.sub(topic, "c", rdy=10)
        message = conn.message()
        conn.send(b"DEAD_LETTER %b 0 why\n" % message.id)
        ((body, headers),) = letters(daemon, dead, 1)
        assert (body, headers["reason"], headers["reason-text"]) == (b"poison", "rejected", "why")
        daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0)
        conn.send(b"DEAD_LETTER %b 0 why\n" % message.id)
        ident = message.id.decode()
        conn.expect_error(
            f"E_DEAD_LETTER_FAILED DEAD_LETTER {ident} failed ID not in flight", fatal=False
        )
        conn.nothing(0.1)


class Failing:
    """Consumers that requeue every message, and reconnect when they are disconnected."""

    def __init__(self, daemon: Nsqd) -> None:
        self.daemon = daemon
        self.conns: dict[str, Conn] = {}

    def fail(self, topic: str, maximum: int) -> None:
        try:
            if topic not in self.conns:
                self.conns[topic] = self.daemon.connect().sub(topic, "c", rdy=20)
            conn = self.conns[topic]
            for _ in range(maximum):
                conn.req(conn.message(0.05))
        except (OSError, Hangup, Silence, AssertionError):
            pass


def kill(daemon: Nsqd, chance: random.Random) -> None:
    """Kill one worker, or all processes and restart the daemon."""
    if chance.random() < 0.5:
        os.kill(chance.choice(daemon.workers()), signal.SIGKILL)
    else:
        os.killpg(daemon.process.pid, signal.SIGKILL)
        daemon.wait()
        daemon.hang_up()
        daemon.start()


def killed(starter: Starter, durability: str, kills: int) -> None:
    daemon = begun(starter, 1, durability=durability, msg_timeout="1s")
    expected = {f"{topic} {number}".encode() for topic in TOPICS for number in range(N)}
    for topic in TOPICS:
        daemon.web.mpub(topic, [f"{topic} {number}".encode() for number in range(N)])
    chance = random.Random(durability)
    failing = Failing(daemon)
    share = max(1, N * len(TOPICS) // kills // 2)
    for _ in range(kills):
        for topic in chance.sample(TOPICS, 2):
            failing.fail(topic, chance.randint(1, share))
        time.sleep(chance.random() * 0.01)
        kill(daemon, chance)
        failing.conns.clear()

    def all_moved() -> bool:
        for topic in TOPICS:
            failing.fail(topic, N)
        counts = [daemon.web.counts(topic, "c") for topic in TOPICS]
        return not any(each["depth"] + each["in_flight_count"] for each in counts)

    eventually(all_moved, 60)
    found: Counter[bytes] = Counter()
    for topic, dead in zip(TOPICS, DEAD, strict=True):
        for body, headers in letters(daemon, dead, N):
            assert headers["origin-topic"] == topic
            found[body] += 1
    assert found == Counter(expected)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_in_exactly_one_place_whatever_is_killed(starter: Starter, durability: str) -> None:
    killed(starter, durability, 5)


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_fifty_kills(starter: Starter, durability: str) -> None:
    killed(starter, durability, 50)


def test_redrive(starter: Starter) -> None:
    daemon = begun(starter, 1, durability="os")
    for topic in TOPICS:
        daemon.web.create(topic, "other")
        daemon.web.mpub(topic, [b"%d" % number for number in range(N)])
        daemon.web.await_counts(topic, "other", depth=N)
        conn = daemon.connect().sub(topic, "c", rdy=N)
        for message in conn.messages(N):
            conn.req(message)
        conn.nothing(0.1)
        conn.close()
    for topic, dead in zip(TOPICS, DEAD, strict=True):
        daemon.web.await_counts(dead, "look", depth=N)
        for count in (N, 0):
            answer = daemon.web.post("/channel/redrive", topic=dead, channel="look")
            assert (answer.status, answer.json()) == (200, {"redriven": count})
            daemon.web.await_counts(dead, "look", depth=0, in_flight_count=0)
        daemon.web.await_counts(topic, "c", depth=N)
        daemon.web.await_counts(topic, "other", depth=N)
        conn = daemon.connect().sub(topic, "c", rdy=N)
        assert {(each.body, each.attempts) for each in conn.take(N)} == {
            (b"%d" % number, 1) for number in range(N)
        }
        conn.nothing(0.1)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_redrive_that_a_kill_interrupts(starter: Starter, durability: str) -> None:
    """The answer means that the redrive has begun. The channel's depth shows the remaining
    messages, and another request continues."""
    count = 2000
    daemon = begun(starter, 1, durability=durability)
    topic, dead = TOPICS[0], DEAD[0]
    daemon.web.mpub(topic, [b"%d" % number for number in range(count)])
    conn = daemon.connect().sub(topic, "c", rdy=2500)
    for message in conn.messages(count):
        conn.req(message)
    conn.close()
    daemon.web.await_counts(dead, "look", depth=count, in_flight_count=0)
    answer = daemon.web.post("/channel/redrive", topic=dead, channel="look")
    assert (answer.status, answer.json()) == (200, {"redriven": count})
    daemon.destroy()
    daemon.start()

    # nsqd completes the transfers in progress.
    daemon.web.await_counts(dead, "look", in_flight_count=0)
    left = daemon.web.counts(dead, "look")["depth"]
    daemon.web.await_counts(topic, "c", depth=count - left)
    answer = daemon.web.post("/channel/redrive", topic=dead, channel="look")
    assert answer.json() == {"redriven": left}
    daemon.web.await_counts(dead, "look", depth=0, in_flight_count=0)
    taken = daemon.connect().sub(topic, "c", rdy=2500).take(count)
    assert sorted(int(message.body) for message in taken) == list(range(count))
    daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0)


def test_what_redrive_refuses(starter: Starter) -> None:
    daemon = begun(starter, 1)
    look = {"topic": "d0", "channel": "look"}
    for query, status, text in (
        ({}, 400, "MISSING_ARG_TOPIC"),
        ({"topic": "d0"}, 400, "MISSING_ARG_CHANNEL"),
        ({"topic": "none", "channel": "look"}, 404, "TOPIC_NOT_FOUND"),
        ({"topic": "d0", "channel": "none"}, 404, "CHANNEL_NOT_FOUND"),
        ({**look, "limit": "0"}, 400, "INVALID_LIMIT"),
        ({**look, "limit": "-1"}, 400, "INVALID_LIMIT"),
        ({**look, "limit": "x"}, 400, "INVALID_LIMIT"),
    ):
        answer = daemon.web.post("/channel/redrive", **query)
        assert answer.status == status
        assert answer.json()["message"].startswith(text)


def test_one_message(starter: Starter) -> None:
    """One dead letter is redriven, one is deleted; the result survives a restart and a kill."""
    daemon = begun(starter, 1, durability="os")
    daemon.web.mpub("t0", [b"1", b"2", b"3", b"4"])
    daemon.web.await_counts("t0", "c", depth=4)
    conn = daemon.connect().sub("t0", "c", rdy=4)
    for message in conn.messages(4):
        conn.req(message)
    conn.close()
    daemon.web.await_counts("d0", "look", depth=4)
    look = {"topic": "d0", "channel": "look"}

    def ids() -> dict[bytes, str]:
        page = daemon.web.get("/channel/peek", **look).json()
        return {b64decode(each["body"]): each["id"] for each in page["messages"]}

    before = ids()
    assert list(before) == [b"1", b"2", b"3", b"4"]
    answer = daemon.web.post("/channel/redrive", **look, id=before[b"2"])
    assert (answer.status, answer.json()) == (200, {"redriven": 1})
    daemon.web.await_counts("t0", "c", depth=1)
    assert daemon.web.post("/message/delete", **look, id=before[b"3"]).status == 200
    assert daemon.web.post("/message/delete", **look, id=before[b"3"]).status == 404
    assert list(ids()) == [b"1", b"4"]
    daemon.restart()
    assert list(ids()) == [b"1", b"4"]
    assert daemon.connect().sub("t0", "c", rdy=1).message().body == b"2"
    answer = daemon.web.post("/channel/redrive", **look, id=before[b"1"], limit="1")
    assert (answer.status, answer.json()["message"]) == (400, "INVALID_LIMIT (not allowed with id)")


COPIED = """\
[topic *]
copies = 3
[channel orders/c]
dead_letter_topic = dead
"""


@needs_etcd
def test_a_takeover_after_it_was_moved_at_once(etcd: Etcd, tmp_path: Path) -> None:
    """The copies of both topics record that the message was transferred."""
    with copying_nsqds(tmp_path, etcd, COPIED) as (owner, *others):
        owner.web.create("orders", "c")
        owner.web.create("dead", "look")
        for topic in ("orders", "dead"):
            await_copies(owner, topic)
        owner.web.pub("orders", b"poison")
        conn = owner.connect()
        assert conn.negotiate(dead_letters=True)["dead_letters"] is True
        conn.sub("orders", "c", rdy=1)
        conn.send(b"DEAD_LETTER %b 0 why\n" % conn.message().id)
        eventually(lambda: owner.web.counts("dead", "look")["depth"] == 1, BUDGET)
        owner.web.await_counts("orders", "c", depth=0, in_flight_count=0)
        owner.kill()

        def held() -> Counter[str]:
            found: Counter[str] = Counter()
            for each in others:
                for topic in each.web.get("/stats", format="json").json()["topics"]:
                    for channel in topic["channels"]:
                        waits = channel["depth"] + channel["in_flight_count"]
                        found[topic["topic_name"]] += waits
            return found

        eventually(lambda: held() == Counter(dead=1), BUDGET)
