"""Processes are killed at each step of an upgrade in place, under load: no acknowledged message is
lost, and no process is left over.

NSQCY_CRASH_SEED selects another run.
"""

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from crash.trial import OPTIONS, Trial, fixed_addresses
from crash.worker_deaths import WorkerDeaths
from nsqcy.testing.http_requests import eventually
from support import upgrade_steps
from support.nsqd_process import Nsqd
from support.upgrade_steps import Steps

SEED = int(os.environ.get("NSQCY_CRASH_SEED", "1"))
WORKERS = 2
SLOW = 60.0  # seconds
PROCESSES = [*upgrade_steps.TRIAL, *upgrade_steps.OLD, *upgrade_steps.NEW]

pytestmark = [pytest.mark.ours, pytest.mark.real_disk]
each_durability = pytest.mark.parametrize(
    "durability",
    ["memory", *(pytest.param(each, marks=pytest.mark.soak) for each in ("os", "fsync"))],
)


def every_step(steps: list[str], *, few: list[str]) -> pytest.MarkDecorator:
    """Run a test with a few steps; as a soak, with every step."""
    return pytest.mark.parametrize(
        "at", [few, pytest.param(steps, marks=pytest.mark.soak)], ids=["few", "every"]
    )


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "steps")


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(WORKERS, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


def started(starter: Starter, steps: Steps, durability: str) -> Nsqd:
    options = OPTIONS | fixed_addresses() | {"durability": durability}
    return starter(environ=steps.environ, **options)


def is_left_over(daemon: Nsqd) -> bool:
    """Return whether any process of a daemon runs."""
    try:
        os.killpg(daemon.process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def end_at(run: Trial, steps: Steps, step: str, number: int) -> int:
    """Send a signal to the master at a step of an upgrade; return the exit code of nsqd, and start
    it again."""
    daemon = run.daemon
    run.await_progress()
    with run.death(saved=True):
        steps.signal_at(step, daemon, number)
        daemon.process.send_signal(signal.SIGUSR2)
        code = daemon.process.wait(SLOW)
        assert steps.happened(), f"{step} was not reached"
        eventually(lambda: not is_left_over(daemon), SLOW)
    run.start()
    return code


@pytest.mark.timeout(900)
@every_step(upgrade_steps.ALL, few=["executing", "executed", "received", "taken over"])
@each_durability
def test_the_master_is_killed(
    starter: Starter, steps: Steps, durability: str, at: list[str]
) -> None:
    """Its workers save and exit; so do their successors."""
    run = Trial(started(starter, steps, durability), WORKERS, SEED)
    with run.load():
        for step in at:
            assert end_at(run, steps, step, signal.SIGKILL) == -signal.SIGKILL
        run.await_progress()
    run.findings(keeps=True)
    run.daemon.stop()


@pytest.mark.timeout(900)
@every_step(upgrade_steps.ALL, few=["executing", "adopted", "sent"])
def test_nsqd_is_stopped(starter: Starter, steps: Steps, at: list[str]) -> None:
    """Everything is saved, in class memory too."""
    run = Trial(started(starter, steps, "memory"), WORKERS, SEED)
    with run.load():
        for step in at:
            assert end_at(run, steps, step, signal.SIGTERM) == 0, run.daemon.tail()
        run.await_progress()
    run.findings(keeps=True)
    run.daemon.stop()


def upgrade(run: Trial) -> dict[str, Any]:
    """Upgrade nsqd under load; return the state after that."""

    def ended() -> dict[str, Any] | None:
        assert run.daemon.alive(), run.daemon.tail()
        with contextlib.suppress(OSError, http.client.HTTPException):
            found: dict[str, Any] = json.loads(run.daemon.web.get("/upgrade").body)
            if not found["under_way"] and found != before:
                return found
        return None

    before = eventually(lambda: json.loads(run.daemon.web.get("/upgrade").body), SLOW)
    run.daemon.process.send_signal(signal.SIGUSR2)
    return eventually(ended, SLOW)


@pytest.mark.timeout(900)
@every_step(PROCESSES, few=["trying", "booting", "sent", "taken over"])
@each_durability
def test_another_process_is_killed(
    starter: Starter, steps: Steps, durability: str, at: list[str]
) -> None:
    """The trial, a worker or its successor is killed, and nsqd continues."""
    run = WorkerDeaths(started(starter, steps, durability), WORKERS, SEED)
    with run.load():
        for step in at:
            run.await_progress()
            with run.death():
                steps.kill_at(step, signal.SIGKILL)
                found = upgrade(run)
            assert steps.happened(), f"{step} was not reached"
            fails = step in upgrade_steps.TRIAL
            assert bool(found["error"]) == fails, (step, found)
            eventually(lambda: run.daemon.web.get("/ready").status == 200, SLOW)
        run.await_progress()
    run.findings(keeps=True)
    faults = [fault for each in run.subscribers for fault in each.faults]
    assert not faults, "\n".join(faults[:20])
    run.daemon.stop()
