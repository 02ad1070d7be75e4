"""A disk that permits no writes: nsqd starts, delivers messages, refuses publishes that must be
written to disk, and recovers automatically."""

import errno
import http.client
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import eventually
from support.etcd_process import Etcd, needs_etcd
from support.nsqd_process import Nsqd, is_worker

MESSAGES = 1000
LOCAL = "127.0.0.1:0"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounts are not permitted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return


def free(disk: Path) -> None:
    (disk / "filler").unlink()


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


def fix_writes(disk: Path) -> None:
    remount(disk, "rw")


def forbid_writes(disk: Path) -> None:
    remount(disk, "ro")


def ping(daemon: Nsqd) -> tuple[int, str]:
    answer = daemon.web.get("/ping")
    return answer.status, answer.body.decode()


@one_worker
@pytest.mark.parametrize(
    ("spoil", "mend", "reason"),
    [
        pytest.param(fill, free, "no space left on device", id="full"),
        pytest.param(forbid_writes, fix_writes, "read-only file system", id="read-only"),
    ],
)
def test_a_start_without_writes(
    nsqd: Starter,
    disk: Path,
    spoil: Callable[[Path], None],
    mend: Callable[[Path], None],
    reason: str,
) -> None:
    daemon = nsqd(disk, durability="os", cwd=nsqd.path)
    daemon.web.create("t", "c")
    daemon.web.create("paused", "c")
    daemon.web.post("/mpub", b"\n".join([b"%d" % each for each in range(MESSAGES)]), topic="t")
    daemon.stop()
    spoil(disk)

    daemon.start(is_healthy=False)
    eventually(lambda: ping(daemon)[0] == 500)
    _, text = ping(daemon)
    # The first operation to fail depends on timing.
    assert re.match("NOK - (write|mkdir|open) ", text) and text.endswith(reason)
    assert reason in daemon.web.get("/ready").body.decode()
    for line in (
        f"cannot write {disk}/disk-probe.0: {reason}",
        f"failed to persist metadata - {disk}/nsqd.dat: {reason}",
    ):
        eventually(lambda line=line: line in daemon.log_text())
    consumer = daemon.connect().sub("t", "c", rdy=100)
    bodies = sorted(int(each.body) for each in consumer.take(MESSAGES))
    assert bodies == list(range(MESSAGES))
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0)
    assert daemon.web.post("/pub", b"x", topic="t").status == 503
    assert daemon.web.post("/topic/pause", topic="paused").status == 503

    mend(disk)
    eventually(lambda: ping(daemon) == (200, "OK"))  # without a publish
    eventually(lambda: daemon.web.get("/ready").status == 200)
    eventually(lambda: f"{disk}: writes succeed again" in daemon.log_text())
    eventually(lambda: b'"paused","paused":true' in (disk / "nsqd.dat").read_bytes(), timeout=20)
    daemon.web.pub("t", b"after")
    assert [each.body for each in consumer.take(1)] == [b"after"]
    daemon.restart()
    daemon.web.await_counts("t", "c", depth=0, in_flight_count=0)
    assert not list(disk.glob("disk-probe*"))


@one_worker
@needs_etcd
def test_a_start_without_writes_with_copies(nsqd: Starter, disk: Path) -> None:
    """nsqd delivers topics without copies, and joins the cluster once the disk is writable."""
    with Etcd() as etcd:
        options = {
            "etcd_endpoints": etcd.members[0].client_url,
            "copies_lease": "2s",
            "copies_address": LOCAL,
        }
        daemon = nsqd(disk, durability="os", cwd=nsqd.path, **options)
        daemon.web.create("t", "c")
        daemon.web.mpub("t", [b"x"] * MESSAGES)
        daemon.stop()
        forbid_writes(disk)
        daemon.start(is_healthy=False)
        eventually(lambda: ping(daemon)[0] == 500)
        assert len(daemon.connect().sub("t", "c", rdy=100).take(MESSAGES)) == MESSAGES
        assert f"node.0.json cannot be written: {os.strerror(errno.EROFS).lower()}" in (
            daemon.log_text()
        )
        assert daemon.web.get("/ready").status == 503
        fix_writes(disk)
        eventually(lambda: daemon.web.get("/ready").status == 200)
        eventually(lambda: ping(daemon) == (200, "OK"))
        daemon.web.pub("t", b"after")


def test_an_exit_says_what_a_full_disk_refused(nsqd: Starter, disk: Path) -> None:
    daemon = nsqd(disk, cwd=nsqd.path)
    published = {"a": 1000, "b": 500, "c": 1}
    for topic, count in published.items():
        daemon.web.create(topic, "c")
        daemon.web.mpub(topic, [bytes(1000)] * count)
    fill(disk)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == 1
    last = daemon.log_text().rstrip().rpartition("\n")[2]
    found = re.search(r"FATAL: NSQ: not everything is saved: (\d+) messages are not on disk", last)
    assert found, last
    named = {topic: int(count) for topic, count in re.findall(r"(\w+) \((\d+)\)", last)}
    assert sum(named.values()) == int(found[1]) > 0
    free(disk)
    daemon.start()
    for topic, count in published.items():
        daemon.web.await_counts(topic, "c", depth=count - named.get(topic, 0))


@one_worker
def test_an_exit_with_more_topics_than_descriptors(nsqd: Starter) -> None:
    """The next start does not need any additional writes."""
    daemon = nsqd.prepare()
    daemon.within = ("prlimit", "--nofile=128:128")
    daemon.start()
    names = [f"t{number}" for number in range(250)]
    for name in names:
        daemon.web.pub(name, b"hello")
    daemon.stop()
    daemon.start()
    assert {name: topic["depth"] for name, topic in daemon.web.topics().items()} == dict.fromkeys(
        names, 1
    )


def test_a_wrong_data_path_is_an_error(nsqd: Starter) -> None:
    if nsqd.workers > 1:
        pytest.skip("the master checks it before workers exist")
    daemon = nsqd.prepare(cwd=nsqd.path)
    shutil.rmtree(daemon.data)
    daemon.launch()
    assert daemon.wait() == 1
    assert f"open {daemon.data}: no such file or directory" in daemon.log_text()


def test_descriptors_run_out(nsqd: Starter) -> None:
    daemon = nsqd(durability="os")
    workers = [each for each in psutil.Process(daemon.process.pid).children() if is_worker(each)]
    limits = [resource.prlimit(each.pid, resource.RLIMIT_NOFILE) for each in workers]
    link = http.client.HTTPConnection("127.0.0.1", daemon.http_port, timeout=20)

    def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        link.request(method, path, body)
        answer = link.getresponse()
        return answer.status, answer.read()

    assert ask("GET", "/ping") == (200, b"OK")
    for each, (_, most) in zip(workers, limits, strict=True):
        resource.prlimit(each.pid, resource.RLIMIT_NOFILE, (3, most))
    assert ask("POST", "/pub?topic=t", b"x")[0] == 503
    status, text = ask("GET", "/ping")
    assert status == 500 and b"too many open files" in text
    for each, limit in zip(workers, limits, strict=True):
        resource.prlimit(each.pid, resource.RLIMIT_NOFILE, limit)
    eventually(lambda: ask("GET", "/ping") == (200, b"OK"))
    assert ask("POST", "/pub?topic=t", b"x")[0] == 200
    link.close()
