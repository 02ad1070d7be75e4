"""SIGTERM at random lines of each job that has an end: the exit status tells that it has not
reached it, and the next run completes the work exactly once."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nsqcy.pipeline import archive, compact, manifests, minutes, orphans, verify
from nsqcy.pipeline.__main__ import main
from support.archive_files import LOG, rows_by_glob
from support.fake_log_nsqd import FakeTopic, LogBroker
from support.lost_checkpoints import Trap
from support.spark_on_disk import install

pytestmark = pytest.mark.ours

SIGNALS = 8
ROWS = 120


@pytest.fixture
def broker() -> Iterator[LogBroker]:
    broker = LogBroker()
    broker.topics["orders"] = FakeTopic(LOG, ROWS)
    yield broker
    broker.close()


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Trap:
    """Interrupts a job: SIGTERM and ^C raise this."""
    trap = Trap(KeyboardInterrupt)
    install(monkeypatch, trap)
    for job in (compact, orphans, verify):
        run: Callable[..., int] = job.run
        monkeypatch.setattr(job, "run", lambda *args, run=run: trap.call(run, *args))
    return trap


@pytest.fixture
def words(broker: LogBroker) -> list[str]:
    more = ["--option=maxOffsetsPerTrigger=40"]
    return ["--once", "--topic=orders", f"--nsqd-tcp-address={broker.address}", *more]


@pytest.mark.parametrize("job", ["archive", "rollup", "compact", "orphans", "verify"])
def test_a_job_that_is_stopped(
    job: str, trap: Trap, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(job)
    sound, root = tmp_path / "sound", tmp_path / "root"
    here = f"--root={root}"
    sound.mkdir()
    if job not in ("archive", "rollup"):
        assert main(["archive", f"--root={sound}", *words]) == 0
        path = sound / min(manifests.on_disk(sound))
        if job == "orphans":
            shutil.copy(path, path.with_name("part-9.parquet"))
    line = {
        "archive": ["archive", here, *words],
        "rollup": ["rollup", here, "--plots=no", *words],
        "compact": ["compact", here, "--closed-for=0s"],
        "orphans": ["orphans", here, "--remove"],
        "verify": ["verify", here],
    }[job]
    stopped = 0
    for _ in range(SIGNALS):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(sound, root)
        trap.set(rng)
        code = main(line)
        err = capsys.readouterr().err
        if trap.fired:
            stopped += 1
            told = f"nsqcy-pipeline {job}: stopped before its end; run the command again\n"
            assert (code, err) == (1, told), trap.fired
        trap.remove()
        assert main(line) == 0
        check(root, is_rollup=job == "rollup")
    assert stopped > 1


def check(root: Path, *, is_rollup: bool) -> None:
    if is_rollup:
        files = minutes.files(root, "topics")
        assert sum(pc.sum(pq.read_table(path)["count"]).as_py() for path in files) == ROWS
    else:
        assert [seq for _, seq, _ in rows_by_glob(root)] == list(range(1, ROWS + 1))
        assert main(["verify", f"--root={root}"]) == 0
    assert not list(root.rglob("*.partial"))


def test_a_checkpoint_belongs_to_one_archive(
    trap: Trap, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two archives would each have some of its rows."""
    state = tmp_path / "state"
    with archive.claimed(state):
        line = ["archive", *words, f"--root={tmp_path}/other", f"--checkpoint={state}"]
        assert main(line) == 1
        said = f"nsqcy-pipeline archive: another archive uses the checkpoint {state}\n"
        assert capsys.readouterr().err == said
    assert main(line) == 0


def test_a_job_without_an_end_is_stopped_as_intended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: Any) -> int:
        raise KeyboardInterrupt

    for job, module in (("archive", archive), ("verify", verify)):
        monkeypatch.setattr(module, "run", run)
        code = 1 if job == "verify" else 0
        assert main([job]) == code
        assert bool(capsys.readouterr().err) == bool(code)
    assert main(["archive", "--once"]) == 1
