"""LOG_PUB and LOG_CURSOR with several workers. Chunks are published exactly once, and cursors
survive, no matter which process is killed."""

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, Hangup, Silence, batch
from support.nsqd_process import Nsqd, free_port

TOPICS = ["t0", "t1", "t2"]
KILLS = 10
BATCH = 20
AHEAD = 4  # chunks sent before the first one is answered


@pytest.fixture(params=[1, 3], ids=["w1", "w3"])
def starter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(request.param, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


def fixed(starter: Starter, **options: Any) -> Nsqd:
    """Return a daemon that keeps its addresses across restarts."""
    return starter(
        tcp_address=f"127.0.0.1:{free_port()}",
        http_address=f"127.0.0.1:{free_port()}",
        sync_timeout="200ms",
        **options,
    )


def reader(daemon: Nsqd) -> Conn:
    conn = daemon.connect()
    assert conn.negotiate(topic_log=True)["topic_log"] == 1
    return conn


def chunk_of(number: int) -> list[bytes]:
    return [b"%d %d" % (number, index) for index in range(BATCH)]


def send(conn: Conn, topic: str, number: int) -> None:
    conn.send(f"LOG_PUB {topic} spark 1 0 {number}\n".encode(), batch(chunk_of(number)))


class Producer:
    """Publishes chunks to topics, and resends each one until it is answered."""

    def __init__(self, daemon: Nsqd) -> None:
        self.daemon = daemon
        self.conn: Conn | None = None
        self.done = dict.fromkeys(TOPICS, 0)
        self.repeated = 0

    def step(self, topic: str) -> bool:
        """Send the next chunks; return whether all of them were answered."""
        try:
            if self.conn is None:
                self.conn = reader(self.daemon)
            for number in range(self.done[topic], self.done[topic] + AHEAD):
                send(self.conn, topic, number)
            for _ in range(AHEAD):
                self.conn.expect_ok()
                self.done[topic] += 1
        except (OSError, Hangup, Silence, AssertionError):
            self.repeated += 1
            self.conn = None
            return False
        return True


def kill(daemon: Nsqd, chance: random.Random) -> None:
    """Kill one worker, or all processes and restart the daemon."""
    if chance.random() < 0.5:
        os.kill(chance.choice(daemon.workers()), signal.SIGKILL)
    else:
        kill_all(daemon)


def kill_all(daemon: Nsqd) -> None:
    os.killpg(daemon.process.pid, signal.SIGKILL)
    daemon.wait()
    daemon.hang_up()
    daemon.start()


def test_exactly_once(starter: Starter) -> None:
    durability = "os" if starter.workers == 1 else "fsync"
    daemon = fixed(starter, durability=durability)
    for topic in TOPICS:
        daemon.web.create(topic, "c")
    chance = random.Random(durability)
    producer = Producer(daemon)
    for _ in range(KILLS):
        for _ in range(chance.randint(1, 6)):
            producer.step(chance.choice(TOPICS))
        if producer.conn is not None:
            # Kill the daemon with unanswered chunks.
            topic = chance.choice(TOPICS)
            for number in range(producer.done[topic], producer.done[topic] + AHEAD):
                send(producer.conn, topic, number)
            if chance.random() < 0.5:
                producer.step(topic)
        kill(daemon, chance)
        producer.conn = None
    for topic in TOPICS:
        eventually(lambda topic=topic: producer.step(topic), 30)
    expected = {topic: producer.done[topic] * BATCH for topic in TOPICS}
    for topic in TOPICS:
        conn = daemon.connect().sub(topic, "c", rdy=2500)
        found = Counter(message.body for message in conn.take(expected[topic]))
        daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0)
        assert found.total() == expected[topic]
        assert set(found.values()) == {1}
        assert len(found) == expected[topic]


def cursor(daemon: Nsqd, topic: str, rest: str) -> dict[str, Any]:
    conn = reader(daemon)
    conn.send(f"LOG_CURSOR {topic} {rest}\n".encode())
    return conn.expect_json()


def test_the_epochs_of_a_producer(starter: Starter) -> None:
    """Any connection can query cursors, regardless of the worker that owns the topic."""
    daemon = fixed(starter, durability="os")
    conn = reader(daemon)
    for topic in TOPICS:
        send(conn, topic, 1)
        conn.expect_ok()
    for topic in TOPICS:
        conn.send(f"LOG_EPOCHS {topic} spark\n".encode())
        assert conn.expect_json() == {"producer": "spark", "epochs": [1]}


def test_cursors_hold_and_are_shown(starter: Starter) -> None:
    daemon = fixed(starter, durability="os")
    conn = daemon.connect()
    for topic in TOPICS:
        conn.pub(topic, b"one", b"two")
        id = daemon.web.get("/topic/log", topic=topic).json()["log_id"]
        assert cursor(daemon, topic, f"{id} spark 2") == {"name": "spark", "log_id": id, "seq": 2}
    kill_all(daemon)
    for topic in TOPICS:
        assert cursor(daemon, topic, "- spark -")["seq"] == 2
        (shown,) = daemon.web.get("/topic/log", topic=topic).json()["cursors"]
        assert (shown["name"], shown["seq"], shown["lag"]) == ("spark", 2, 1)
        (shown,) = daemon.web.topic(topic)["cursors"]
        assert shown["name"] == "spark"
        cursor(daemon, topic, "- spark delete")
        assert "cursors" not in daemon.web.topic(topic)
