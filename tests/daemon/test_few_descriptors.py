"""More connections than descriptors: nsqd reserves some for itself, whatever its limit."""

import http.client
import json
import socket
from contextlib import ExitStack

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd

TOPICS = [f"t{number}" for number in range(20)]


def flood(daemon: Nsqd, stack: ExitStack, count: int) -> None:
    """Open connections until nsqd stops accepting them because a worker or the master has no
    descriptor left. Further connections wait in the backlog."""
    for _ in range(count):
        sock = socket.socket()
        stack.callback(sock.close)
        sock.setblocking(False)
        sock.connect_ex((daemon.host, daemon.tcp_port))
    eventually(lambda: "; pausing" in daemon.log_text())


@pytest.mark.parametrize(("limit", "workers"), [(64, 1), (64, 8), (256, 3), (1024, 1)])
def test_a_flood_of_connections(starter: Starter, limit: int, workers: int) -> None:
    daemon = starter.prepare(workers=workers)
    daemon.within = ("prlimit", f"--nofile={limit}:{limit}")
    daemon.start()
    for name in TOPICS:
        daemon.web.pub(name, b"hello")
    monitor = http.client.HTTPConnection(daemon.host, daemon.http_port, timeout=30)

    def get(path: str) -> tuple[int, bytes]:
        monitor.request("GET", path)
        response = monitor.getresponse()
        return response.status, response.read()

    assert get("/ping") == (200, b"OK")
    with ExitStack() as stack:
        flood(daemon, stack, limit * workers + 100)
        for _ in range(3):
            status, page = get("/metrics")
            assert status == 200 and all(f'topic="{name}"'.encode() in page for name in TOPICS)
            status, page = get("/stats?format=json")
            assert status == 200
            assert {topic["topic_name"] for topic in json.loads(page)["topics"]} == set(TOPICS)
        assert "lost the master" not in daemon.log_text()
        killed = daemon.kill_worker(0)
        eventually(lambda: "worker 0: up again" in daemon.log_text())
        assert killed and "cannot start" not in daemon.log_text()
    monitor.close()
    eventually(lambda: daemon.web.get("/ping").body == b"OK")
    assert set(daemon.web.topics()) == set(TOPICS)
