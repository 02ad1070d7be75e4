"""The load test with daemons: it simulates all kinds of users, balances its ledger, and returns an
exit code."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.nsqd_process import environment

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(not importlib.util.find_spec("locust"), reason="locust is not installed"),
]


def load(tmp_path: Path, *flags: str) -> tuple[int, str, dict[str, Any]]:
    """Run the load test; return its exit code, output and figures. It runs in a separate process,
    because locust patches the whole process."""
    report = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.swarm", f"--report={report}", "-r100", *flags],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert report.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout, json.loads(report.with_suffix(".json").read_text())


def test_a_run_that_misses_a_threshold_fails(tmp_path: Path) -> None:
    """The output names the threshold; all users have published, and all messages have arrived."""
    code, told, figures = load(
        tmp_path,
        *("-u12", "-t2s", "--channels=one,two", "--defer=200", "--requeue-share=0.1"),
        "--thresholds=p99 deliver=0.001, out_of_order=0, early=0, duplicates=0",
    )
    assert code == 3, told
    missed = [each["told"] for each in figures["verdicts"] if not each["kept"]]
    assert len(missed) == 1
    assert missed[0].startswith("p99 deliver: ")
    assert f"MISSED  {missed[0]}" in told
    kinds = {each["type"] for each in figures["requests"] if each["messages"]}
    assert kinds >= {"PUB", "MPUB", "DPUB", "HTTP pub", "deliver", "deferred"}
    for channel in figures["channels"]:
        assert channel["published"] == channel["finished"] > 100
        assert channel["requeued"] > 0
        assert channel["again"] >= channel["requeued"]
    assert figures["samples"][-1]["memory"] > 1 << 20


@pytest.mark.soak
def test_workers_and_a_master_make_one_report(tmp_path: Path) -> None:
    code, told, figures = load(
        tmp_path,
        *("-u12", "-t6s", "--processes=3", "--nsqds=2", "--workers=2", "--thresholds=rate PUB=50"),
    )
    assert code == 0, told
    (channel,) = figures["channels"]
    assert channel["published"] == channel["finished"] > 500
    assert channel["duplicates"] == 0
    counted = sum(each["messages"] for each in figures["requests"] if each["type"].startswith("d"))
    assert counted == channel["finished"]
