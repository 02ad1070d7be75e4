"""Plain connections that migrate to the owner of their topic. Nothing else about them changes."""

import os
from functools import partial

import psutil
import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import WORTH_A_MOVE, Conn
from support.nsqd_process import Nsqd

WORKERS = 3


@pytest.fixture
def daemon(tmp_path) -> Nsqd:
    started = Nsqd(tmp_path, workers=WORKERS, mem_queue_size=0).start()
    yield started
    started.destroy()


def owner_of(daemon: Nsqd, topic: str) -> int | None:
    """Return the worker process that has the topic's files open."""
    for pid in daemon.workers():
        if any(f"/{topic}.topic/" in file.path for file in psutil.Process(pid).open_files()):
            return pid
    return None


def moved(daemon: Nsqd, topic: str, client_id: str) -> Conn:
    """Return a subscriber whose connection has migrated to the owner of its topic. No connection
    migrates to a busy worker or one with more clients, so this may take several attempts."""
    owner = eventually(partial(owner_of, daemon, topic))

    def attempt() -> Conn | None:
        conn = daemon.connect()
        conn.identify(client_id=client_id, heartbeat_interval=5000, msg_timeout=9000)
        begins = eventually(partial(daemon.home_of, conn))
        conn.sub(topic, "c")
        if begins != owner and eventually(partial(daemon.home_of, conn)) == owner:
            return conn
        conn.close()
        return None

    conn: Conn = eventually(attempt, 60)
    return conn


def test_a_subscriber_moves_to_the_owner_of_its_topic(daemon):
    topics = [f"t{number}" for number in range(WORKERS)]
    producer = daemon.connect()
    for topic in topics:
        daemon.web.create(topic, "c")
        producer.pub(topic, b"first")
    producer.close()
    for topic in topics:
        conn = moved(daemon, topic, "mover")
        conn.rdy(1)
        daemon.web.await_counts(topic, "c", client_count=1, in_flight_count=1)
        client = daemon.web.client(topic, "c")
        host, port = conn.socket.getsockname()
        assert client["client_id"] == "mover"
        assert client["remote_address"] == f"{host}:{port}"
        assert client["ready_count"] == 1
        conn.fin(conn.message())
        producer = daemon.connect()
        producer.pub(topic, b"second")
        producer.close()
        message = conn.message()
        assert message.body == b"second"
        conn.fin(message)
        conn.close()
        daemon.web.await_counts(topic, "c", client_count=0, in_flight_count=0, depth=0)


def test_what_is_pipelined_behind_sub_goes_along(daemon):
    topics = [f"t{number}" for number in range(WORKERS)]
    for topic in topics:
        daemon.web.create(topic, "c")
        daemon.web.pub(topic, b"waiting")
    for topic in topics:
        conn = daemon.connect()
        conn.send(b"NOP\nSUB %s c\nRDY 1\nPUB other\n\0\0\0\1x" % topic.encode())
        conn.expect_ok()
        frames = [conn.frame(), conn.frame()]
        assert {frame.kind for frame in frames} == {0, 2}, frames
        conn.close()


def test_a_producer_of_one_topic_moves(daemon):
    daemon.web.create("t", "c")
    daemon.connect().pub("t", b"first")
    owner = eventually(partial(owner_of, daemon, "t"))

    def attempt() -> bool:
        conn = daemon.connect()
        begins = eventually(partial(daemon.home_of, conn))
        for body in WORTH_A_MOVE:
            conn.pub("t", body)
        stays = daemon.home_of(conn) != owner
        ports = [client["remote_address"] for client in daemon.web.stats()["producers"]]
        assert ports.count(f"127.0.0.1:{conn.socket.getsockname()[1]}") == 1
        counts = [each["pub_counts"] for each in daemon.web.stats()["producers"]]
        assert [{"topic": "t", "count": len(WORTH_A_MOVE)}] in counts
        conn.close()
        return begins != owner and not stays

    assert eventually(attempt, 60)
    depth = daemon.web.counts("t", "c")["depth"]
    assert depth % len(WORTH_A_MOVE) == 1


def test_descriptors_do_not_leak(daemon):
    def open_files() -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in daemon.workers())

    def round_of(connections: int) -> None:
        for number in range(connections):
            conn = daemon.connect().sub(f"t{number % 5}", "c")
            conn.close()
        for number in range(5):
            daemon.web.await_counts(f"t{number}", "c", client_count=0)

    round_of(10)
    before = open_files()
    round_of(100)
    eventually(lambda: open_files() <= before)
