"""What else can happen at each step of an upgrade in place: signals to the master, and an nsqd that
is process 1."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import FOREIGN, Nsqd
from support.upgrade_steps import Steps

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(bool(FOREIGN), reason="NSQ has no upgrades in place"),
    pytest.mark.parametrize("workers", [2], indirect=True),
]
SLOW = 60.0  # seconds
SIGNALLED = ["trying", "executing", "executed", "sent"]
ISOLATED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "steps")


def state(daemon: Nsqd) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.web.get("/upgrade").body)
    return found


def upgraded(daemon: Nsqd) -> None:
    """Upgrade, and wait until that has ended, whether or not another upgrade follows."""
    before = state(daemon)["upgrades"]
    daemon.web.post("/upgrade")

    def done() -> bool:
        found = state(daemon)
        assert not found["error"], found
        return bool(found["upgrades"] > before and not found["under_way"])

    eventually(done, timeout=SLOW)


@pytest.mark.timeout(300)
def test_another_request_to_upgrade_is_ignored(nsqd: Starter, steps: Steps) -> None:
    daemon = nsqd(environ=steps.environ)
    conn = daemon.connect()
    for count, step in enumerate(SIGNALLED, 1):
        steps.signal_at(step, daemon, signal.SIGUSR2)
        upgraded(daemon)
        assert steps.happened(), f"{step} was not reached"
        conn.usable()
        # A signal just before execve ends that attempt, and begins another upgrade.
        assert state(daemon)["upgrades"] == count
    daemon.stop()


@pytest.mark.timeout(300)
def test_the_configuration_is_read_again(nsqd: Starter, steps: Steps, tmp_path: Path) -> None:
    file = tmp_path / "nsqd.ini"
    file.write_text("[nsqd]\nlog_level = info\n")
    daemon = nsqd(environ=steps.environ, config=file)
    conn = daemon.connect()
    levels = ["debug", "info"]
    for count, step in enumerate(SIGNALLED):
        steps.signal_at(step, daemon, signal.SIGHUP)
        file.write_text(f"[nsqd]\nlog_level = {levels[count % 2]}\n")
        upgraded(daemon)
        assert steps.happened(), f"{step} was not reached"
        level = b"1" if count % 2 == 0 else b"2"
        eventually(lambda level=level: daemon.web.get("/config/log_level").body == level)  # type: ignore[misc]
        conn.usable()
    daemon.stop()


def can_isolate() -> bool:
    found = subprocess.run([*ISOLATED, "true"], capture_output=True, check=False)
    return found.returncode == 0


def children(pid: int) -> list[int]:
    """Return the children of a process, oldest first."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(300)
def test_process_1(nsqd: Starter) -> None:
    """It adopts orphans, and reaps them before and after an upgrade."""
    if not can_isolate():
        pytest.skip("no permission to create a PID namespace")
    daemon = nsqd(within=ISOLATED)
    (pid,) = children(daemon.process.pid)
    workers = set(children(pid))
    assert len(workers) == 2
    conn = daemon.connect()
    conn.pub("kept", b"1")
    upgraded(daemon)
    eventually(lambda: len(children(pid)) == 2 and not workers & set(children(pid)))
    conn.pub("kept", b"2")
    orphan_is_reaped(pid)
    killed = set(children(pid))
    for each in killed:
        os.kill(each, signal.SIGKILL)
    eventually(lambda: len(set(children(pid)) - killed) == 2, SLOW)
    eventually(lambda: daemon.web.get("/ready").status == 200, SLOW)
    upgraded(daemon)
    orphan_is_reaped(pid)
    consumer = daemon.connect().sub("kept", "channel", 2)
    assert sorted(each.body for each in consumer.messages(2)) == [b"1", b"2"]
    os.kill(pid, signal.SIGTERM)
    assert daemon.wait() == 0


def orphan_is_reaped(pid: int) -> None:
    """Create a process whose parent has exited, in the namespace of process 1, and kill it."""
    before = set(children(pid))
    words = ["nsenter", f"--target={pid}", "--pid", "sh", "-c", "sleep 1000 &"]
    subprocess.run(words, check=True)
    (orphan,) = eventually(lambda: set(children(pid)) - before)
    os.kill(orphan, signal.SIGKILL)
    eventually(lambda: set(children(pid)) == before)
