"""/ready and /live, and a disk that is nearly full. NSQ has no such feature."""

import http.client
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter
from nsqcy.testing import certificates
from nsqcy.testing.http_requests import Answer, Web, eventually
from support.memory_http_client import trusting

pytestmark = pytest.mark.ours
MIB = 1 << 20


def text(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in answer.headers
    return answer.status, answer.body.decode()


def test_a_daemon_that_is_well(nsqd: Starter, tmp_path: Path) -> None:
    daemon = nsqd(**certificates.make("server").save(tmp_path).options)
    for web in (daemon.web, daemon.secure_web(trusting())):
        for path in ("/ready", "/live"):
            assert text(web.get(path)) == (200, "OK")
            assert web.post(path).status == 405


def test_a_worker_that_is_down(nsqd: Starter) -> None:
    daemon = nsqd()
    if nsqd.workers == 1:
        return  # no other worker could answer
    daemon.kill_worker(0)
    line = "worker 0 is being restarted"
    eventually(lambda: text(daemon.web.get("/ready")) == (503, line))
    assert text(daemon.web.get("/live")) == (200, "OK")
    eventually(lambda: text(daemon.web.get("/ready")) == (200, "OK"), timeout=20)


def test_a_log_that_cannot_be_written(nsqd: Starter, topic: str) -> None:
    daemon = nsqd(mem_queue_size=0, cwd=nsqd.path)
    shutil.rmtree(daemon.data)
    assert daemon.web.post("/pub", b"x", topic=topic).status == 503
    status, lines = text(daemon.web.get("/ready"))
    assert status == 503 and lines.startswith("worker ") and "no such file" in lines
    assert text(daemon.web.get("/live")) == (200, "OK")
    line = rf"ERROR: TOPIC\({topic}\): cannot mkdir \S+: no such file or directory: check"
    eventually(lambda: re.search(line, daemon.log_text()))
    assert daemon.web.post("/pub", b"x", topic=topic).status == 503
    assert len(re.findall(line, daemon.log_text())) == 1
    daemon.data.mkdir()
    daemon.web.pub(topic, b"x")
    eventually(lambda: f"TOPIC({topic}): writes succeed again" in daemon.log_text())
    daemon.web.pub(topic + "_later", b"x")
    eventually(lambda: text(daemon.web.get("/ready")) == (200, "OK"))


def test_a_master_that_does_not_turn(nsqd: Starter) -> None:
    daemon = nsqd()
    link = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=20)
    link.request("GET", "/live")
    assert link.getresponse().read() == b"OK"
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        link.request("GET", "/live")
        answer = link.getresponse()
        assert (answer.status, answer.read()) == (503, b"the master does not answer")
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    link.request("GET", "/live")
    assert link.getresponse().read() == b"OK"
    link.close()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Directory on a file system with little other activity."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or free(shared) < 1024 * MIB:
        pytest.skip("no room in /dev/shm")
    path = Path(tempfile.mkdtemp(dir=shared))
    yield path
    shutil.rmtree(path)


def free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def refused(web: Web, topic: str) -> bool:
    answer = web.post("/pub", b"x", topic=topic)
    return (answer.status, answer.json()["message"]) == (503, "EXITING")


def test_a_disk_that_is_nearly_full(nsqd: Starter, small_disk: Path) -> None:
    file = nsqd.path / "nsqd.ini"
    file.write_text("[nsqd]\n[topic safe]\ndurability = os\n")
    minimum = free(small_disk) - 256 * MIB  # other tests use this file system, too
    daemon = nsqd(small_disk, args=(f"--config={file}",), mem_queue_size=2, min_free_disk=minimum)
    web = daemon.web
    consumer = daemon.connect().sub("memory", "c", rdy=0)
    web.pub("safe", b"x")
    assert text(web.get("/ready")) == (200, "OK")

    filler = small_disk / "filler"
    with filler.open("wb") as room:
        os.posix_fallocate(room.fileno(), 0, 512 * MIB)
    line = f"fewer than {minimum} bytes are free on disk"
    eventually(lambda: text(web.get("/ready")) == (503, line))
    assert refused(web, "safe")
    reason = f"E_PUB_FAILED PUB failed {line}"
    producer = daemon.connect()
    producer.command("PUB", "safe", body=b"x")
    producer.expect_error(reason)

    # Class memory accepts messages while the queue has room, and consuming makes room.
    web.pub("memory", b"x")
    web.pub("memory", b"x")
    assert refused(web, "memory")
    consumer.rdy(2)
    for message in consumer.messages(2):
        consumer.fin(message)
    eventually(lambda: web.post("/pub", b"x", topic="memory").status == 200)

    # A worker that starts later also detects the full disk.
    daemon.kill_worker(0)
    eventually(lambda: text(web.get("/ready")) == (503, line), timeout=20)
    assert refused(web, "safe")

    filler.unlink()
    eventually(lambda: text(web.get("/ready")) == (200, "OK"))
    web.pub("safe", b"x")
