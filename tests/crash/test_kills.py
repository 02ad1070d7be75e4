"""Processes of a daemon under load are killed at random: no acknowledged message is lost.

NSQCY_CRASH_SEED selects another run.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter
from crash.trial import OPTIONS, TOPICS, Trial, fixed_addresses
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd, environment

DURABLE = ["os", "fsync"]
SEED = int(os.environ.get("NSQCY_CRASH_SEED", "1"))

pytestmark = [pytest.mark.ours, pytest.mark.real_disk]


@pytest.fixture(params=[1, 3], ids=["w1", "w3"])
def starter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(request.param, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


def trial(starter: Starter, seed: int, **options: Any) -> Trial:
    daemon = starter(**OPTIONS, **fixed_addresses(), **options)
    return Trial(daemon, starter.workers, seed)


def segments(daemon: Nsqd) -> list[int]:
    return [len(list((daemon.data / f"{topic}.topic").glob("*.seg"))) for topic in TOPICS]


def check_data(path: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "nsqcy", "data", "check", str(path)]
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60)


def leaves_nothing(daemon: Nsqd) -> None:
    """Check that finished messages leave at most the open segment, and that a clean exit leaves
    nothing."""
    eventually(lambda: max(segments(daemon)) <= 1, 30)
    daemon.stop()
    checked = check_data(daemon.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "unreadable parts: 0" in checked.stdout


def kills(starter: Starter, seed: int, cycles: int, **options: Any) -> None:
    """Check that nothing is lost, no matter which processes are killed, and how often."""
    run = trial(starter, seed, **options)
    with run.load():
        for number in range(cycles):
            if number % 3 == 1 and run.late:
                run.cycle_with_a_new_channel()
            elif number % 3 == 2:
                run.cycle_with_answered_changes()
            else:
                run.cycle()
    run.findings(keeps=True)
    leaves_nothing(run.daemon)


@pytest.mark.parametrize("durability", DURABLE)
def test_nothing_is_lost(starter: Starter, durability: str) -> None:
    kills(starter, SEED, 3, durability=durability)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABLE)
@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_nothing_is_lost_in_the_long_run(starter: Starter, seed: int, durability: str) -> None:
    kills(starter, seed, 10, durability=durability)


def test_memory_dies_with_its_processes(starter: Starter) -> None:
    """Messages of class `memory` are lost with their processes, and the checker finds the
    losses."""
    run = trial(starter, SEED)
    with run.load():
        run.await_progress()
        run.kill_worker(0)
        run.await_progress()
        run.kill_all()
        run.start()
    findings = run.findings(keeps=False)
    assert any(each.forgotten for each in findings.values())
    leaves_nothing(run.daemon)


def test_memory_survives_clean_exits(starter: Starter) -> None:
    run = trial(starter, SEED)
    with run.load():
        run.await_progress()
        run.restart()
        run.await_progress()
        run.kill_master()
        run.await_progress()
    run.findings(keeps=True)
    for topic in run.daemon.web.stats(ledger="true")["topics"]:
        for channel in topic["channels"]:
            assert channel["ledger"]["received"] == channel["ledger"]["finished"], channel
    leaves_nothing(run.daemon)
