"""A temporarily unreadable disk: nothing is lost, and nsqd reports the error."""

import errno
import json
from pathlib import Path

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import eventually
from support.failing_reads import SHORT, FailingReads
from support.nsqd_process import Nsqd

COUNT = 2000
BODIES = {b"%05d" % number + bytes(1500) for number in range(COUNT)}
OPTIONS = {
    "durability": "os",
    "mem_queue_size": 0,
    "memory_bytes": 1 << 20,
    "max_bytes_per_file": 500_000,
}


def filled(nsqd: Starter, path: Path) -> tuple[Nsqd, FailingReads]:
    """Return an nsqd most of whose messages are only on disk."""
    data = nsqd.path / "data"
    data.mkdir()
    disk = FailingReads(path, data)
    daemon = nsqd(data, environ=disk.environ, **OPTIONS)
    daemon.web.create("t", "c")
    producer = daemon.connect()
    bodies = sorted(BODIES)
    for at in range(0, COUNT, 100):
        producer.mpub("t", bodies[at : at + 100])
    return daemon, disk


def take_all(daemon: Nsqd) -> set[bytes]:
    conn = daemon.connect().sub("t", "c", rdy=100)
    found = {message.body for message in conn.take(COUNT)}
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0)
    return found


@pytest.mark.parametrize("error", [errno.EIO, errno.ETIMEDOUT, SHORT])
def test_delivery_waits_for_the_disk(nsqd: Starter, tmp_path: Path, error: int) -> None:
    daemon, disk = filled(nsqd, tmp_path)
    disk.fail_with(error)
    consumer = daemon.connect().sub("t", "c", rdy=2500)
    eventually(lambda: daemon.web.get("/ping").status == 500)
    name = errno.errorcode[error if error > 0 else errno.EIO]
    for path, status in (("/ping", 500), ("/ready", 503)):
        answer = daemon.web.get(path)
        text = answer.body.decode()
        assert answer.status == status and "topic t has been unreadable since 20" in text
        assert ".seg: " in text and text.endswith(f"({name})")
    health = json.loads(daemon.web.get("/stats?format=json").body)["health"]
    assert health.startswith("NOK - topic t has been unreadable since")
    daemon.web.pub("other", b"accepted")
    daemon.web.pub("t", b"accepted as well")
    disk.fail_with(0)
    eventually(lambda: daemon.web.get("/ping").body == b"OK")
    eventually(lambda: daemon.web.get("/ready").body == b"OK")
    assert "TOPIC(t): reads succeed again" in daemon.log_text()
    found = {message.body for message in consumer.take(COUNT + 1)}
    assert found == BODIES | {b"accepted as well"}


@one_worker
def test_a_start_waits_for_the_disk(nsqd: Starter, tmp_path: Path) -> None:
    daemon, disk = filled(nsqd, tmp_path)
    daemon.stop()
    disk.fail_with(errno.EIO)
    daemon.launch()
    eventually(lambda: "TOPIC(t): cannot read" in daemon.log_text())
    disk.fail_with(0)
    daemon.await_ready()
    assert take_all(daemon) == BODIES
