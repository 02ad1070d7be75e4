"""Processes of a daemon under load are killed at random: what was acknowledged is not lost.

NSQCY_CRASH_SEED makes another run.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Starter
from crash.trial import CHANNELS, OPTIONS, TOPICS, Trial, fixed_addresses
from daemon import Nsqd, environment
from web import eventually

SEED = int(os.environ.get("NSQCY_CRASH_SEED", "1"))

pytestmark = pytest.mark.ours


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
    """Of messages that are all finished only the open segment is left, and a clean exit is clean."""
    eventually(lambda: max(segments(daemon)) <= 1, 30)
    daemon.stop()
    checked = check_data(daemon.data)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 places unreadable" in checked.stdout


def kills(starter: Starter, seed: int, cycles: int, **options: Any) -> None:
    """Nothing is lost, whoever is killed how often."""
    run = trial(starter, seed, **options)
    with run.load():
        for _ in range(cycles):
            run.cycle()
    findings = run.findings(keeps=True)
    assert len(findings) == len(TOPICS) * len(CHANNELS)
    leaves_nothing(run.daemon)


@pytest.mark.parametrize("seed", [SEED])
def test_kept_in_files(starter: Starter, seed: int) -> None:
    kills(starter, seed, 5, mem_queue_size=0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEED, SEED + 10))
def test_kept_in_files_long(starter: Starter, seed: int) -> None:
    kills(starter, seed, 20, mem_queue_size=0)


def test_memory_dies_with_its_processes(starter: Starter) -> None:
    """The checker can find losses: this is what the class `memory` does not promise."""
    run = trial(starter, SEED)
    with run.load():
        for _ in range(2):
            run.await_progress()
            run.kill_all()
            run.start()
    findings = run.findings(keeps=False)
    assert sum(len(each.forgotten) for each in findings.values()) > 0
    leaves_nothing(run.daemon)


def test_memory_survives_clean_exits(starter: Starter) -> None:
    run = trial(starter, SEED)
    with run.load():
        for _ in range(2):
            run.await_progress()
            run.restart()
            run.await_progress()
            run.kill_master()
    run.findings(keeps=True)
    leaves_nothing(run.daemon)
