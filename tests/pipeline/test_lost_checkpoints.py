"""Drivers killed at random moments, after which Spark's checkpoint lacks its last files, is an
older copy, or is gone: each row is in the archive, and counted by rollup, exactly once.

This is a soak test, because each moment starts Spark again. `NSQCY_MOMENTS` sets their number,
`NSQCY_MOMENTS_SEED` the seed.
"""

import os
import random
import shutil
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nsqcy.pipeline import checkpoint, manifests, minutes
from nsqcy.pipeline.__main__ import main
from support.archive_files import rows_by_glob
from support.archive_process import Driver, at, publish
from support.nsqd_process import Nsqd

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

MOMENTS = int(os.environ.get("NSQCY_MOMENTS", "200"))
SEED = int(os.environ.get("NSQCY_MOMENTS_SEED", "1"))
MOST_FILES = 6
EACH = 400


def lose_files(state: Path, rng: random.Random) -> int:
    """Remove the last files of the offsets and commits, and return their number."""
    files = [path for name in ("offsets", "commits") for path in (state / name).glob("[0-9]*")]
    files.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    lost = rng.randint(0, min(MOST_FILES, len(files)))
    for path in files[:lost]:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return lost


def damage(state: Path, copy: Path, rng: random.Random) -> str:
    """Change the checkpoint of a dead driver, and return what was done."""
    kind = rng.choice(["files", "files", "files", "copy", "all"])
    if kind == "files":
        return f"lost {lose_files(state, rng)} files"
    shutil.rmtree(state, ignore_errors=True)
    if kind == "copy" and copy.exists():
        shutil.copytree(copy, state)
    return kind


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("job", ["archive", "rollup"])
def test_each_row_once(daemon: Nsqd, tmp_path: Path, job: str) -> None:
    root = tmp_path / "lake" / job
    root.parent.mkdir()
    hidden = manifests.HIDDEN if job == "archive" else minutes.HIDDEN
    state, copy = root / hidden / "checkpoint", tmp_path / "copy"
    more = ["--plots=no"] if job == "rollup" else []
    words = [*at(daemon), "--option=maxOffsetsPerTrigger=150", *more]
    rng = random.Random(SEED)
    published = 0
    for moment in range(MOMENTS):
        publish(daemon, published, published + EACH)
        published += EACH
        driver = Driver(root, "--every=50ms", *words, job=job)
        try:
            begun = checkpoint.last(state / "offsets")
            driver.until(lambda begun=begun: checkpoint.last(state / "offsets") != begun)
            time.sleep(rng.uniform(0, 1.5))
        finally:
            driver.kill()
        print(moment, damage(state, copy, rng), flush=True)
        if rng.random() < 0.3 and state.exists():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(state, copy)
        if job == "archive":
            seqs = [seq for _, seq, _ in rows_by_glob(root)] if any(root.glob("topic=*")) else []
            assert len(seqs) == len(set(seqs))
    driver = Driver(root, "--once", *words, job=job)
    assert driver.wait() == 0, driver.said()
    if job == "archive":
        assert [seq for _, seq, _ in rows_by_glob(root)] == list(range(1, published + 1))
        assert main(["verify", f"--root={root}"]) == 0
        assert manifests.unplaced(root) == []
    else:
        counts = [pc.sum(pq.read_table(path)["count"]) for path in minutes.files(root, "topics")]
        assert sum(each.as_py() for each in counts) == published
