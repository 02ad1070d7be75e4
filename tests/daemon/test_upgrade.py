"""The master executes the next version in its process: what clients, workers, a service manager and
nsqlookupds notice of it."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from nsqcy import __version__
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import MESSAGE, Conn, Message
from support.client_libraries import Consumer, Producer
from support.nsqd_process import FOREIGN, Nsqd, environment
from support.nsqlookupd_process import Lookupd
from support.service_manager import Manager

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(bool(FOREIGN), reason="NSQ has no upgrades in place"),
    pytest.mark.parametrize("workers", [2], indirect=True),
]
SLOW = 60.0  # seconds
PACE = 0.005  # seconds between publishes
LAST = b"last"

BROKEN = """\
import importlib.abc, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            raise ImportError("told to fail")
sys.meta_path.insert(0, Finder())
"""


def state(daemon: Nsqd) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.web.get("/upgrade").body)
    return found


def ended(daemon: Nsqd) -> dict[str, Any]:
    """Wait until the upgrade has ended; return its state."""
    eventually(lambda: not state(daemon)["under_way"], timeout=SLOW)
    return state(daemon)


def upgraded(daemon: Nsqd, python: str = "") -> None:
    """Upgrade to the same version."""
    before = state(daemon)["upgrades"]
    if python:
        daemon.web.post("/upgrade", to=python)
    else:
        daemon.process.send_signal(signal.SIGUSR2)
    eventually(lambda: done(daemon, before), timeout=SLOW)


def done(daemon: Nsqd, before: int) -> bool:
    found = state(daemon)
    assert not found["error"], found
    return found["upgrades"] == before + 1 and not found["under_way"]


def refused(daemon: Nsqd, python: str = "") -> str:
    """Try to upgrade; return why it failed."""
    before = state(daemon)["upgrades"]
    answer = daemon.web.post("/upgrade", **({"to": python} if python else {}))
    assert answer.status == 200, answer
    found = ended(daemon)
    assert found["upgrades"] == before
    error: str = found["error"]
    assert error
    return error


def script(path: Path, text: str) -> str:
    """Create an executable that is named as an interpreter."""
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


def broken(path: Path, module: str) -> str:
    """Create an interpreter whose trial succeeds, but that cannot import a module after that."""
    site = path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BROKEN.format(module=module))
    pythonpath = os.pathsep.join([str(site), environment()["PYTHONPATH"]])
    return script(
        path / "python3",
        f'[ -n "$NSQCY_MASTER_TRIAL" ] && exec {sys.executable} "$@"\n'
        f'PYTHONPATH={pythonpath} exec {sys.executable} "$@"\n',
    )


def intact(path: Path) -> str:
    """Create an interpreter that finds only this version."""
    (path / "intact").mkdir()
    pythonpath = environment()["PYTHONPATH"]
    return script(
        path / "intact" / "python3", f'PYTHONPATH={pythonpath} exec {sys.executable} "$@"\n'
    )


def expect_line(daemon: Nsqd, text: str) -> None:
    """Wait for a line of its log."""
    eventually(lambda: text in daemon.log_text(), timeout=SLOW)


def is_ready(daemon: Nsqd) -> bool:
    return daemon.web.get("/ready").status == 200


def open_files(daemon: Nsqd) -> list[int]:
    """Return the number of descriptors of each of its processes."""
    pids = [daemon.process.pid, *daemon.workers()]
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]


class Load:
    """A publisher and a consumer. Both fail if their connections end."""

    def __init__(self, daemon: Nsqd, topic: str) -> None:
        self.topic = topic
        self.published = 0
        self.finished: list[bytes] = []
        self.errors: list[BaseException] = []
        self._ends = threading.Event()
        self._publisher, self._consumer = daemon.connect(), daemon.connect()
        self._consumer.sub(topic, "channel", 50)
        self._threads = [threading.Thread(target=self._guard, args=(each,)) for each in self._parts]
        for thread in self._threads:
            thread.start()

    @property
    def _parts(self) -> list[Any]:
        return [self._publish, self._consume]

    def _guard(self, part: Any) -> None:
        try:
            part()
        except BaseException as error:
            self.errors.append(error)

    def _publish(self) -> None:
        while not self._ends.is_set():
            self._publisher.pub(self.topic, b"%d" % self.published)
            self.published += 1
            self._ends.wait(PACE)
        self._publisher.pub(self.topic, LAST)

    def _consume(self) -> None:
        while self.finished[-1:] != [LAST]:
            frame = self._consumer.frame(timeout=SLOW)
            assert frame.kind == MESSAGE, frame
            message = Message.parse(frame.data)
            self._consumer.fin(message)
            self.finished.append(message.body)

    def moves(self) -> None:
        """Wait for more publishes and deliveries."""
        published, finished = self.published, len(self.finished)
        eventually(
            lambda: (
                self.errors
                or (self.published > published + 10 and len(self.finished) > finished + 10)
            ),
            timeout=SLOW,
        )
        assert not self.errors

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(SLOW)
        assert not self.errors
        assert self.finished == [*(b"%d" % each for each in range(self.published)), LAST]


@pytest.fixture
def daemon(nsqd: Starter) -> Nsqd:
    return nsqd()


@pytest.mark.timeout(900)
def test_twenty_upgrades_under_load(daemon: Nsqd) -> None:
    """No connection ends, no message is lost, and no descriptor stays open."""
    pid, workers = daemon.process.pid, daemon.workers()
    loads = [Load(daemon, topic) for topic in ("first", "second")]
    before = []
    for _ in range(20):
        upgraded(daemon)
        for load in loads:
            load.moves()
        before = before or open_files(daemon)
    eventually(lambda: open_files(daemon) == before)
    for load in loads:
        load.end()
    assert daemon.process.pid == pid
    assert not set(daemon.workers()) & set(workers)
    steps = ["trial", "rest", "execute", "worker 0", "worker 1", "done"]
    assert state(daemon)["steps"] == steps
    daemon.stop()


@pytest.mark.parametrize(
    "way", [{"tls": True}, {"codec": "deflate"}, {"tls": True, "codec": "deflate"}], ids=str
)
def test_encrypted_and_compressed_clients_stay(
    nsqd: Starter, tmp_path: Path, way: dict[str, Any]
) -> None:
    """The processes of the replaced workers stay for them: also over further upgrades, and while
    nsqd exits."""
    daemon = nsqd(**make("nsqd").save(tmp_path).options)
    readers = ("pynsq", "blocking")
    consumers = [Consumer(each, daemon, each, "c", rdy=5, **way) for each in readers]
    producers = [Producer("pynsq", daemon, topic, **way) for topic in readers]
    bodies = [b"%d" % number for number in range(40)]
    try:
        for count in range(1, 5):
            for each in producers:
                each.publish(bodies)
            for consumer in consumers:
                found = Counter(m.body for m in consumer.messages(count * len(bodies), SLOW))
                assert found == Counter(bodies * count)
            if count == 1:
                accepted = daemon.log_text().count("new client")
            if count < 4:
                upgraded(daemon)
                assert 1 <= state(daemon)["pumps"] <= 2
        assert daemon.log_text().count("new client") == accepted
        for each in producers:
            assert set(each.finish()) == {"OK"}
        daemon.stop()
    finally:
        for program in (*producers, *consumers):
            program.destroy()


def test_connections_are_served_that_come_during_the_upgrade(daemon: Nsqd) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []
    count = 0

    def connect() -> None:
        nonlocal count
        while not stop.is_set():
            try:
                with Conn(daemon.address, timeout=SLOW) as conn:
                    conn.usable()
                count += 1
                stop.wait(PACE)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=connect) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        upgraded(daemon)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert count > 0


def test_state_of_the_master_stays(daemon: Nsqd) -> None:
    web = daemon.web
    web.create("kept", "kept")
    web.post("/topic/pause", topic="kept")
    web.post("/topic/create", topic="short#ephemeral")
    web.post("/topic/create", topic="deleted")
    web.post("/topic/delete", topic="deleted")
    assert web.put("/topic/config", b'{"ttl": "1h"}', topic="kept").status == 200
    policy = web.get("/topic/config", topic="kept").body
    started = json.loads(web.get("/info").body)["start_time"]
    upgraded(daemon)
    assert json.loads(web.get("/info").body)["start_time"] == started
    assert web.get("/topic/config", topic="kept").body == policy
    topics = {each["topic_name"]: each for each in web.stats()["topics"]}
    assert set(topics) == {"kept", "short#ephemeral"}
    assert topics["kept"]["paused"]
    web.create("later", "later")
    daemon.stop()
    found = json.loads((daemon.data / "nsqd.dat").read_text())
    assert {each["name"]: each["paused"] for each in found["topics"]} == {
        "kept": True,
        "later": False,
    }


def test_results_and_versions_are_shown(nsqd: Starter) -> None:
    daemon = nsqd(workers=2)
    refused(daemon, "/bin/sh")
    upgraded(daemon)
    lines = daemon.web.get("/metrics").body.decode().splitlines()
    assert 'nsqd_upgrades_total{result="done"} 1.0' in lines
    assert 'nsqd_upgrades_total{result="failed"} 1.0' in lines
    assert 'nsqd_upgrades_total{result="incomplete"} 0.0' in lines
    for worker in range(2):
        assert f'nsqd_worker_build_info{{version="{__version__}",worker="{worker}"}} 1.0' in lines
    node = json.loads(daemon.web.get("/node").body)
    assert [each["nsqcy"] for each in node["workers"]] == [__version__] * 2


def test_a_drain_goes_on(daemon: Nsqd) -> None:
    conn = daemon.connect()
    conn.pub("left", b"1")
    daemon.web.create("left", "channel")
    daemon.web.put("/config/drain", b"true", timeout="1h")
    before = json.loads(daemon.web.get("/config/drain").body)
    upgraded(daemon)
    after = json.loads(daemon.web.get("/config/drain").body)
    assert (after["draining"], after["since"]) == (True, before["since"])
    assert 0 < after["seconds_left"] <= before["seconds_left"]
    consumer = daemon.connect().sub("left", "channel", 1)
    consumer.fin(consumer.message())
    assert daemon.wait() == 0


def test_a_worker_that_dies_meanwhile_is_replaced(daemon: Nsqd) -> None:
    """Its exit is only noticed by the next version."""
    conn = daemon.connect()
    conn.pub("kept", b"1")
    conn.pub("kept", b"2")
    before = state(daemon)["upgrades"]
    pids = daemon.workers()
    daemon.process.send_signal(signal.SIGUSR2)
    expect_line(daemon, "UPGRADE: the trial")
    os.kill(pids[0], signal.SIGKILL)
    eventually(lambda: pids[0] not in daemon.workers(), timeout=SLOW)
    eventually(lambda: daemon.web.get("/ready").status == 200, timeout=SLOW)
    ended(daemon)
    assert state(daemon)["upgrades"] in (before, before + 1)
    consumer = daemon.connect().sub("kept", "channel", 2)
    assert sorted(each.body for each in consumer.messages(2)) == [b"1", b"2"]
    daemon.stop()


def test_a_stopped_worker_delays_only_its_own_replacement(nsqd: Starter) -> None:
    """It continues after the upgrade, and the next upgrade replaces it."""
    daemon = nsqd(workers=2)
    pids = daemon.workers()
    os.kill(pids[0], signal.SIGSTOP)
    try:
        daemon.process.send_signal(signal.SIGUSR2)
        expect_line(daemon, "UPGRADE: version")
    finally:
        os.kill(pids[0], signal.SIGCONT)
    eventually(lambda: daemon.web.get("/ready").status == 200, timeout=SLOW)
    ended(daemon)
    upgraded(daemon)
    assert not set(daemon.workers()) & set(pids)


class TestRefusals:
    """nsqd stays as it is."""

    @pytest.fixture(autouse=True)
    def load(self, daemon: Nsqd) -> Iterator[None]:
        load = Load(daemon, "topic")
        pids = [daemon.process.pid, *daemon.workers()]
        load.moves()
        yield
        load.moves()
        load.end()
        assert [daemon.process.pid, *daemon.workers()] == pids

    def test_a_program_that_is_no_nsqd(self, daemon: Nsqd, tmp_path: Path) -> None:
        found = refused(daemon, script(tmp_path / "python3", "echo hello\n"))
        assert found.endswith("does not report as nsqcy's nsqd does")

    def test_a_trial_that_exits(self, daemon: Nsqd, tmp_path: Path) -> None:
        found = refused(daemon, script(tmp_path / "python3", "exit 3\n"))
        assert found.endswith("exited with status 3")

    def test_a_trial_that_is_killed(self, daemon: Nsqd, tmp_path: Path) -> None:
        path = tmp_path / "pid"
        text = f"echo $$ > {path}.new\nmv {path}.new {path}\nexec sleep 60\n"
        python = script(tmp_path / "python3", text)
        daemon.web.post("/upgrade", to=python)
        eventually(path.exists)
        os.kill(int(path.read_text()), signal.SIGKILL)
        assert ended(daemon)["error"].endswith("was killed by signal 9")

    def test_no_program(self, daemon: Nsqd, tmp_path: Path) -> None:
        missing = tmp_path / "python3"
        assert refused(daemon, str(missing)) == f"{missing}: no such file or directory"

    def test_a_program_that_others_can_change(self, daemon: Nsqd, tmp_path: Path) -> None:
        python = Path(script(tmp_path / "python3", "exit 0\n"))
        python.chmod(python.stat().st_mode | stat.S_IWOTH)
        assert "other users can change it" in refused(daemon, str(python))

    def test_a_program_with_another_name(self, daemon: Nsqd) -> None:
        found = refused(daemon, "/bin/sh")
        assert found == "/bin/sh is not the absolute path of a Python interpreter"

    def test_a_version_with_other_formats(self, daemon: Nsqd, tmp_path: Path) -> None:
        """The next version does not read what this one has in memory."""
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(
            "import nsqcy.formats as f\n"
            "f.FORMATS = tuple(\n"
            "    e._replace(since=('0.1.0', '0.2.0', '0.3.0'), oldest=2)\n"
            "    if e.name == 'worker memory' else e for e in f.FORMATS\n"
            ")\n"
        )
        path = os.pathsep.join([str(site), environment()["PYTHONPATH"]])
        python = script(tmp_path / "python3", f'PYTHONPATH={path} exec {sys.executable} "$@"\n')
        assert "worker memory format version 1 is older than this nsqcy supports (2 to 3)" in (
            refused(daemon, python)
        )

    def test_a_version_that_fails_at_once(self, daemon: Nsqd, tmp_path: Path) -> None:
        """Its trial succeeds. It executes the version before, which continues."""
        python = broken(tmp_path, "nsqcy.nsqd.master.master")
        assert refused(daemon, python) == "told to fail"
        assert state(daemon)["python"] == sys.executable
        assert refused(daemon, python) == "told to fail"


class TestBrokenWorkers:
    """The next version takes over, but cannot run a worker."""

    def test_the_previous_version_serves(self, daemon: Nsqd, tmp_path: Path) -> None:
        """Workers serve on; later, one that dies is followed by one of the previous version."""
        conn = daemon.connect()
        conn.pub("kept", b"1")
        pids = daemon.workers()
        load = Load(daemon, "topic")
        python = broken(tmp_path, "nsqcy.nsqd.worker.engine")
        daemon.web.post("/upgrade", to=python)
        found = ended(daemon)
        assert found["upgrades"] == 1 and "not replaced" in found["error"], found
        assert "some workers still run version" in daemon.log_text()
        assert daemon.workers() == pids
        load.moves()
        load.end()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len({*daemon.workers()} - {*pids}) == 2 and is_ready(daemon), SLOW)
        for index in range(2):
            text = f"worker {index}: starting the previous version again, with {sys.executable}"
            assert text in daemon.log_text()
        consumer = daemon.connect().sub("kept", "channel", 1)
        assert consumer.message().body == b"1"
        upgraded(daemon, intact(tmp_path))
        daemon.stop()

    def test_its_messages_are_saved_at_the_end(self, daemon: Nsqd, tmp_path: Path) -> None:
        daemon.connect().pub("kept", b"1")
        daemon.web.post("/upgrade", to=broken(tmp_path, "nsqcy.nsqd.worker.engine"))
        ended(daemon)
        for pid in daemon.workers():
            os.kill(pid, signal.SIGKILL)
        daemon.stop()


class TestConfiguration:
    def test_what_a_reload_would_change_is_changed(self, nsqd: Starter, tmp_path: Path) -> None:
        file = tmp_path / "nsqd.ini"
        file.write_text("[nsqd]\nlog_level = info\n")
        daemon = nsqd(config=file)
        file.write_text("[nsqd]\nlog_level = debug\n")
        upgraded(daemon)
        eventually(lambda: daemon.web.get("/config/log_level").body == b"1")

    def test_an_invalid_one_is_refused(self, nsqd: Starter, tmp_path: Path) -> None:
        file = tmp_path / "nsqd.ini"
        file.write_text("[nsqd]\nlog_level = info\n")
        daemon = nsqd(config=file)
        file.write_text("[nsqd]\nlog_level = loud\n")
        assert "loud" in refused(daemon)

    def test_another_data_path_is_refused(self, nsqd: Starter, tmp_path: Path) -> None:
        (tmp_path / "here").mkdir()
        (tmp_path / "link").symlink_to("here")
        daemon = nsqd(data_path=tmp_path / "link")
        (tmp_path / "there").mkdir()
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("there")
        assert refused(daemon).endswith(
            f"{tmp_path}/link is not the data path with which nsqd runs: restart nsqd"
        )


def test_one_that_is_exiting_is_not_upgraded(daemon: Nsqd) -> None:
    daemon.process.send_signal(signal.SIGUSR2)
    expect_line(daemon, "UPGRADE: trying")
    daemon.stop()


def test_signals_that_come_meanwhile_are_handled(daemon: Nsqd) -> None:
    """They are blocked until the next version can receive them."""
    daemon.process.send_signal(signal.SIGUSR2)
    expect_line(daemon, "UPGRADE: the trial")
    while daemon.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.process.pid, signal.SIGTERM)
        time.sleep(0.01)
    assert daemon.wait() == 0, daemon.tail()


def test_a_service_manager_is_notified(nsqd: Starter, tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    try:
        daemon = nsqd(environ=manager.environ(watchdog=10))
        serving = manager.until("READY")[-1]["STATUS"]
        manager.until("WATCHDOG")
        for _ in range(2):
            daemon.process.send_signal(signal.SIGUSR2)
            reloading = manager.until("RELOADING")[-1]
            assert reloading["MONOTONIC_USEC"].isdigit()
            # The watchdog may still send one notification before the hub stops.
            ready = manager.until("READY")
            assert all(set(each) == {"WATCHDOG"} for each in ready[:-1])
            assert ready[-1]["STATUS"] == serving
            assert manager.hear() == {"WATCHDOG": "1"}
            ended(daemon)
        daemon.stop()
    finally:
        manager.close()


def test_nsqlookupds_see_no_disconnect(nsqd: Starter) -> None:
    with Lookupd() as lookupd:
        address = lookupd.addresses["TCP"]
        daemon = nsqd(lookupd_tcp_address=address)
        daemon.web.post("/topic/create", topic="first")
        eventually(lambda: "first" in lookupd.web.get("/topics").body.decode())
        upgraded(daemon)
        daemon.web.post("/topic/create", topic="second")
        eventually(lambda: "second" in lookupd.web.get("/topics").body.decode())
        assert lookupd.tail().count("client connected") <= 1
        assert daemon.tail().count("connecting") <= 1


class TestCommand:
    def run(self, daemon: Nsqd, *args: str) -> subprocess.CompletedProcess[str]:
        address = f"--nsqd-http-address=127.0.0.1:{daemon.http_port}"
        words = [sys.executable, "-m", "nsqcy", "upgrade", address, *args]
        return subprocess.run(
            words, env=environment(), capture_output=True, text=True, timeout=2 * SLOW, check=False
        )

    def test_it_shows_each_step(self, daemon: Nsqd) -> None:
        found = self.run(daemon, f"--to={sys.executable}")
        assert found.returncode == 0, found
        lines = found.stdout.splitlines()
        steps = ["trial", "rest", "execute", "worker 0", "worker 1", "done"]
        assert [line.partition(":")[0] for line in lines] == steps
        assert f"with {sys.executable}" in lines[-1]

    def test_it_fails_if_the_upgrade_does(self, daemon: Nsqd, tmp_path: Path) -> None:
        found = self.run(daemon, f"--to={script(tmp_path / 'python3', 'exit 3')}")
        assert found.returncode == 1
        assert found.stdout.startswith("trial: ")
        assert found.stderr.endswith("exited with status 3\n")
