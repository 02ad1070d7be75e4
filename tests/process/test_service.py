"""Notifications that a service manager receives from a master and its workers."""

import os
import signal
from pathlib import Path

import pytest

from support.service_manager import Manager
from toy import wait_until


@pytest.fixture
def manager(tmp_path):
    found = Manager(f"@{tmp_path}")
    yield found
    found.close()


def serving(nsqd, workers):
    host, port = nsqd.address()
    return f"serving TCP {host}:{port} with {workers} workers"


@pytest.mark.parametrize("workers", [1, 3])
def test_ready_comes_when_connections_are_served(toy, tmp_path, manager, workers):
    gate = tmp_path / "gate"
    environ = manager.environ()
    nsqd = toy(workers=workers, environ=environ, load_waits_for=str(gate))
    first, second = manager.hear(), manager.hear()
    assert first == {"STATUS": "starting"}
    assert second == {"EXTEND_TIMEOUT_USEC": "30000000"}
    wait_until(lambda: len(nsqd.worker_pids()) == workers)
    assert not nsqd.seen("listening on")
    assert manager.hear_all() == []
    gate.touch()
    ready = manager.hear()
    assert ready == {"READY": "1", "STATUS": serving(nsqd, workers)}
    assert nsqd.connect().ask("hello").endswith("hello")
    assert manager.hear_all() == []  # no watchdog is configured


def test_workers_do_not_know_of_it(toy, manager):
    nsqd = toy(workers=2, environ=manager.environ(watchdog=10)).ready()
    for worker in range(2):
        environ = nsqd.client_of(worker).ask("!environ").split()
        assert "PATH" in environ
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(environ)


def test_saving_is_given_time(toy, tmp_path, manager):
    gate = tmp_path / "gate"
    nsqd = toy(workers=2, environ=manager.environ(), stop_waits_for=str(gate)).ready()
    manager.until("READY")
    nsqd.process.send_signal(signal.SIGTERM)
    assert manager.hear() == {"STOPPING": "1", "STATUS": "saving"}
    assert manager.hear() == {"EXTEND_TIMEOUT_USEC": "30000000"}
    assert nsqd.process.poll() is None
    gate.touch()
    assert nsqd.wait() == 0
    assert manager.hear_all() == []


def test_reloading_is_told_with_its_time(toy, manager):
    nsqd = toy(workers=2, environ=manager.environ()).ready()
    manager.until("READY")
    nsqd.process.send_signal(signal.SIGHUP)
    told = manager.hear()
    assert told.pop("MONOTONIC_USEC").isdigit()
    assert told == {"RELOADING": "1"}
    assert manager.hear() == {"READY": "1", "STATUS": serving(nsqd, 2)}


def test_why_it_could_not_start_is_its_status(toy, manager):
    nsqd = toy(workers=2, environ=manager.environ(), cannot_load=1)
    assert nsqd.wait() == 1
    assert manager.hear_all()[-1]["STATUS"].startswith("failed to load topics - worker 1: ")


@pytest.mark.parametrize("worker", [0, 1])
def test_the_watchdog_is_fed_only_while_all_workers_beat(toy, manager, worker):
    nsqd = toy(workers=2, environ=manager.environ(watchdog=0.1)).ready()
    manager.until("WATCHDOG")
    pid = nsqd.pid_of(worker)
    os.kill(pid, signal.SIGSTOP)
    manager.until("STATUS", f"no heartbeat: worker {worker}")
    assert manager.hear_all(10 * 0.05) == []
    os.kill(pid, signal.SIGCONT)
    assert manager.hear()["STATUS"] == serving(nsqd, 2)
    assert manager.hear() == {"WATCHDOG": "1"}


def test_a_worker_that_is_started_again_is_not_missed(toy, manager):
    nsqd = toy(workers=2, environ=manager.environ(watchdog=0.1)).ready()
    manager.until("WATCHDOG")
    os.kill(nsqd.pid_of(1), signal.SIGKILL)
    nsqd.wait_line("worker 1: up again")
    assert all(set(each) == {"WATCHDOG"} for each in manager.hear_all())
    manager.until("WATCHDOG")


def test_a_master_that_is_aborted_leaves_its_stacks(toy):
    nsqd = toy().ready()
    assert nsqd.stop(signal.SIGABRT) == -signal.SIGABRT
    nsqd.wait_line("Fatal Python error: Aborted")
    nsqd.wait_line("most recent call first")


def test_a_master_whose_hub_does_not_turn_says_nothing(toy, manager):
    nsqd = toy(workers=2, environ=manager.environ(watchdog=0.1)).ready()
    manager.until("WATCHDOG")
    nsqd.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{nsqd.process.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(") ")[2][0] == "T")
    manager.hear_all()
    assert manager.hear_all() == []
    nsqd.process.send_signal(signal.SIGCONT)
    manager.until("WATCHDOG")
