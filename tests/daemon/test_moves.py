"""Plain connections move to the worker of their topic, and nothing else about them changes."""

import os
from functools import partial

import psutil
import pytest
from daemon import Nsqd
from talk import Conn
from web import eventually

WORKERS = 3


@pytest.fixture
def daemon(tmp_path) -> Nsqd:
    started = Nsqd(tmp_path, workers=WORKERS).start()
    yield started
    started.destroy()


def home_of(daemon: Nsqd, conn: Conn) -> int | None:
    """The process that serves a connection; None while it is under way."""
    port = conn.socket.getsockname()[1]
    for pid in daemon.workers():
        for each in psutil.Process(pid).net_connections(kind="tcp"):
            if each.raddr and each.raddr.port == port:
                return pid
    return None


def owners(daemon: Nsqd, topics: list[str]) -> dict[str, int]:
    """The home a subscriber of each topic ends up in: its owner."""
    found = {}
    for topic in topics:
        conn = daemon.connect().sub(topic, "probe#ephemeral")
        found[topic] = eventually(partial(home_of, daemon, conn))
        conn.close()
    return found


def test_a_subscriber_moves_to_the_owner_of_its_topic(daemon):
    topics = [f"t{number}" for number in range(WORKERS)]
    for topic in topics:
        daemon.web.create(topic, "c")
    at = owners(daemon, topics)
    assert len(set(at.values())) == WORKERS

    for topic in topics:
        # As many connections as it takes for each worker to have been the first home.
        for number in range(2 * WORKERS):
            conn = daemon.connect()
            conn.identify(client_id=f"client{number}", heartbeat_interval=5000, msg_timeout=9000)
            conn.sub(topic, "c", rdy=1)
            assert eventually(partial(home_of, daemon, conn)) == at[topic]
            client = daemon.web.client(topic, "c")
            assert client["client_id"] == f"client{number}"
            host, port = conn.socket.getsockname()
            assert client["remote_address"] == f"{host}:{port}"
            assert client["ready_count"] == 1
            daemon.connect().pub(topic, b"for you")
            message = conn.message()
            assert message.body == b"for you"
            conn.fin(message.id)
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
    at = owners(daemon, ["t"])["t"]
    conns = [daemon.connect() for _ in range(WORKERS)]
    for conn in conns:
        for _ in range(400):
            conn.pub("t", b"x")
        assert home_of(daemon, conn) == at
    daemon.web.await_counts("t", "c", depth=400 * WORKERS)
    counts = [client["pub_counts"] for client in daemon.web.stats()["producers"]]
    assert counts == [[{"topic": "t", "count": 400}]] * WORKERS


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
