"""A flipped bit in each kind of file that a job reads: the job names the file and writes nothing,
or the bit changes nothing that is read."""

import datetime
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline import dlq, minutes, plots, replay, state_files, stats
from nsqcy.pipeline.__main__ import main
from support.archive_files import LOG
from support.fake_log_nsqd import FakeTopic, LogBroker
from support.lost_checkpoints import Trap
from support.spark_on_disk import install

pytestmark = pytest.mark.ours

BITS = 6  # of each file, chosen at random
READS = "Spark would read now"
LOCKS = {"lock", "compact.lock"}
DATA, MANIFEST, ORPHAN = "topic=orders/*/*/*/*.parquet", "_archive/manifests/*", "orphan"
OFFSET, COMMIT = "checkpoint/offsets/[0-9]*", "checkpoint/commits/[0-9]*"
METADATA = "checkpoint/metadata"
DAY = "topics/*.parquet"

# The kinds of files that each job reads before it writes.
MATRIX = {
    "archive": [MANIFEST, f"_archive/{OFFSET}", f"_archive/{COMMIT}", f"_archive/{METADATA}"],
    "compact": [DATA, MANIFEST],
    "verify": [DATA, MANIFEST, f"_archive/{OFFSET}"],
    "orphans": [MANIFEST, ORPHAN],
    "replay": [DATA, MANIFEST, "plan.json"],
    "dlq": [DATA, MANIFEST],
    "rollup": [
        DAY,
        "_rollup/state.json",
        "_rollup/days.json",
        f"_rollup/{OFFSET}",
        f"_rollup/{COMMIT}",
        f"_rollup/{METADATA}",
    ],
    "plots": [DAY, "_rollup/days.json"],
    "stats": [".open-5.jsonl"],
}
PAIRS = [(job, kind) for job, kinds in MATRIX.items() for kind in kinds]


class Lake:
    """The files of one job, and runs of the job over copies of them."""

    def __init__(self, job: str, path: Path, broker: LogBroker) -> None:
        self.job = job
        self.root = path / "root"
        self._path = path
        self._broker = broker
        self._words = [f"--nsqd-tcp-address={broker.address}", "--topic=orders"]
        broker.topics["orders"] = FakeTopic(LOG, 30)
        getattr(self, f"_make_{job}", self._make_archive)()
        broker.topics["orders"].publish(30)
        shutil.copytree(self.root, path / "sound")

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self._path / "sound", self.root)

    def files(self, kind: str) -> list[Path]:
        if kind == ORPHAN:
            return [self.root / self.orphan]
        return sorted(self.root.glob(kind))

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and path.name not in LOCKS
        }

    def run(self) -> int:
        return int(getattr(self, f"_run_{self.job}", self._run_quick)())

    def _make_archive(self) -> None:
        assert self._run_archive() == 0
        self._broker.topics["orders"].publish(30)
        assert self._run_archive() == 0

    def _run_archive(self) -> int:
        return main(["archive", "--once", f"--root={self.root}", *self._words])

    def _run_quick(self) -> int:
        words = ["--closed-for=0s"] if self.job == "compact" else []
        return main([self.job, f"--root={self.root}", *words])

    def _make_orphans(self) -> None:
        self._make_archive()
        path = self.files(DATA)[0]
        other = path.parent / "part-9.parquet"
        shutil.copy(path, other)
        self.orphan = str(other.relative_to(self.root))

    def _run_orphans(self) -> int:
        return main(["orphans", "--remove", f"--root={self.root}"])

    def _run_replay(self) -> int:
        state = self.root / "plan.json"
        words = ["--topic=orders", "--to=again", f"--root={self.root}", f"--state={state}"]
        return main(["replay", *words, *self._words[:1]])

    def _make_replay(self) -> None:
        self._make_archive()
        assert self._run_replay() == 1  # the plan is written, and Spark is not there
        assert (self.root / "plan.json").exists()

    def _run_dlq(self) -> int:
        return main(["dlq", "--topic=orders", f"--root={self.root}"])

    def _run_rollup(self) -> int:
        return main(["rollup", "--once", "--plots=no", f"--root={self.root}", *self._words])

    def _make_rollup(self) -> None:
        assert self._run_rollup() == 0
        self._broker.topics["orders"].publish(30)
        assert self._run_rollup() == 0

    _make_plots = _make_rollup

    def _run_plots(self) -> int:
        plots.read(self.root, "topics")
        return 0

    def _make_stats(self) -> None:
        found = {"version": "1", "topics": [{"topic_name": "t", "depth": 5, "channels": []}]}
        rows = list(stats.rows_of(datetime.datetime.now(datetime.UTC), "n1", found))
        files = stats.Files(self.root, "parquet", 60)
        for _ in range(3):
            files.add(rows)
        (path,) = self.root.glob(".open-*.jsonl")
        files._open.close()  # as if it had been killed
        path.rename(self.root / ".open-5.jsonl")

    def _run_stats(self) -> int:
        with stats.Files(self.root, "parquet", 60):
            return 0


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogBroker]:
    """Jobs that read an archive with Spark end when they would: they check its files first."""

    class Absent:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(READS)

    install(monkeypatch, Trap())
    for module in (replay, dlq):
        monkeypatch.setattr(module, "require_spark", lambda: None)
        monkeypatch.setattr(module, "make_session", lambda *_: Absent())
    broker = LogBroker()
    yield broker
    broker.close()


def outcome(run: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit status, and what a job says. It is 0 if Spark would read the files."""
    capsys.readouterr()
    try:
        code = run()
    except (state_files.Damaged, stats.Damaged, minutes.Damaged) as error:
        return 1, str(error)
    said = "".join(capsys.readouterr())
    return (0 if READS in said else code), said


@pytest.mark.parametrize(("job", "kind"), PAIRS, ids=[f"{job}-{kind}" for job, kind in PAIRS])
def test_a_flipped_bit(
    job: str,
    kind: str,
    broker: LogBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = random.Random(f"{job} {kind}")
    lake = Lake(job, tmp_path, broker)
    sound = outcome(lake.run, capsys)[0], sorted(lake.contents())
    unread = 0
    for _ in range(BITS):
        lake.restore()
        path = rng.choice(lake.files(kind)[-2:])  # Spark continues from the last ones
        data = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        before = lake.contents()
        code, said = outcome(lake.run, capsys)
        where = f"bit {bit} of {path.name}: {code} {said}"
        if (code, sorted(lake.contents())) == sound:
            unread += 1
            continue
        assert code == 1 and f"{path.parent.name}/{path.name}" in said, where
        assert {name: lake.contents().get(name) for name in before} == before, where
    assert unread < BITS, "no bit was noticed"
