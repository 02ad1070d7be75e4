"""A flipped bit in each kind of file that a job reads, or a truncated, empty or missing file: the
job reports the file and writes nothing, or the damage does not change the rows that are read.
docs/PIPELINE.md contains the table, and the effect of losing the other files."""

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

BITS = 6  # bits to flip in each file, chosen at random
READS = "Spark would read now"
LOCKS = {"lock", "compact.lock"}
ORPHAN, PLAN = "part-9.parquet", "plan.json"
DATA, MANIFEST = "topic=orders/*/*/*/part-0*", "_archive/manifests/*"
UNPLACED = f"_archive/writing/*/{DATA}"
OFFSET, COMMIT = "checkpoint/offsets/[0-9]*", "checkpoint/commits/[0-9]*"
METADATA = "checkpoint/metadata"
DAY, STATE, OPEN = "topics/*.parquet", "_rollup/state.json", ".open-5.jsonl"

# The kinds of files that each job reads before it writes.
MATRIX = {
    "archive": [MANIFEST, f"_archive/{OFFSET}", f"_archive/{COMMIT}", f"_archive/{METADATA}"],
    "archive after a crash": [UNPLACED, MANIFEST],
    "compact": [DATA, MANIFEST],
    "verify": [DATA, MANIFEST, f"_archive/{OFFSET}"],
    "orphans": [DATA, MANIFEST, f"topic=orders/*/*/*/{ORPHAN}"],
    "replay": [DATA, MANIFEST, PLAN],
    "dlq": [DATA, MANIFEST],
    "dlq --republish": [DATA, MANIFEST, PLAN],
    "doctor": [f"_archive/{OFFSET}"],
    "rollup": [
        DAY,
        STATE,
        "_rollup/days.json",
        f"_rollup/{OFFSET}",
        f"_rollup/{COMMIT}",
        f"_rollup/{METADATA}",
    ],
    "plots": [DAY, "_rollup/days.json"],
    "stats": [OPEN],
}
NEEDED = (DATA, UNPLACED, STATE)  # files whose absence is an error
PAIRS = [(job, kind) for job, kinds in MATRIX.items() for kind in kinds]


class Lake:
    """The files of one job, and runs of the job over copies of them."""

    def __init__(self, job: str, path: Path, broker: LogBroker) -> None:
        self.job = job
        self.root = path / "root"
        self._path = path
        self._source = [f"--nsqd-tcp-address={broker.address}", "--topic=orders"]
        topic = broker.topics["orders"] = FakeTopic(LOG, 30)
        if job == "stats":
            self._make_stats()
        else:
            first = "rollup" if job in ("rollup", "plots") else "archive"
            for _ in range(2):
                assert main(self._line(first)) == 0
                topic.publish(30)
        if job == "orphans":
            path = self.files(DATA)[-1]
            shutil.copy(path, path.parent / ORPHAN)
        elif job == "archive after a crash":
            self._take_back()
        elif job in ("replay", "dlq --republish"):
            assert self.run() == 1  # the plan is written, but Spark is missing
            assert (self.root / PLAN).exists()
        shutil.copytree(self.root, self._path / "sound")

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self._path / "sound", self.root)

    def files(self, kind: str) -> list[Path]:
        return sorted(self.root.glob(kind))

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and path.name not in LOCKS
        }

    def run(self) -> int:
        if self.job == "stats":
            with stats.Files(self.root, "parquet", 60):
                return 0
        if self.job == "plots":
            plots.read(self.root, "topics")
            return 0
        return main(self._line(self.job))

    def _line(self, job: str) -> list[str]:
        words = [job.split()[0], f"--root={self.root}", *self._source]
        match job:
            case "doctor":
                return [job, *self._source, f"--checkpoint={self.root}/_archive/checkpoint"]
            case "replay":
                return [*words, "--to=again", f"--state={self.root}/{PLAN}"]
            case "dlq --republish":
                return [*words, "--republish=again", f"--state={self.root}/{PLAN}"]
            case "rollup":
                return [*words, "--once", "--plots=no"]
            case "compact":
                return [*words[:2], "--closed-for=0s"]
            case "orphans":
                return [*words[:2], "--remove"]
            case "verify":
                return words[:2]
            case "dlq":
                return words
        return [*words, "--once"]

    def _take_back(self) -> None:
        """Leave the last batch as a crash between its manifest and the move of its files does."""
        name = max(path.stem for path in self.files(MANIFEST))
        for folder in self.files(f"topic=*/*/*/batch={name}"):
            unplaced = self.root / "_archive/writing" / name / folder.relative_to(self.root)
            unplaced.parent.mkdir(parents=True)
            folder.rename(unplaced)
        for path in self.files("_archive/checkpoint/commits/*1*"):
            path.unlink()

    def _make_stats(self) -> None:
        found = {"version": "1", "topics": [{"topic_name": "t", "depth": 5, "channels": []}]}
        rows = list(stats.rows_of(datetime.datetime.now(datetime.UTC), "n1", found))
        files = stats.Files(self.root, "parquet", 60)
        for _ in range(3):
            files.add(rows)
        (path,) = self.root.glob(".open-*.jsonl")
        files._open.close()  # as if the process had been killed
        path.rename(self.root / OPEN)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogBroker]:
    """A job that reads an archive with Spark fails before it starts Spark, because it checks the
    files first."""

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
    """Return the exit status and the output of a job. The status is 0 if Spark would read the
    files."""
    capsys.readouterr()
    try:
        code = run()
    except (state_files.Damaged, stats.Damaged, minutes.Damaged) as error:
        return 1, str(error)
    said = "".join(capsys.readouterr())
    return (0 if READS in said else code), said


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(1, len(data))]


def flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    bit = rng.randrange(8 * len(data))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize(("job", "kind"), PAIRS, ids=[f"{job}-{kind}" for job, kind in PAIRS])
def test_a_damaged_file(
    job: str,
    kind: str,
    broker: LogBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = random.Random(f"{job} {kind}")
    lake = Lake(job, tmp_path, broker)
    sound = outcome(lake.run, capsys)[0], sorted(lake.contents())

    # Spark continues from the last two files.
    def check(damage: Callable[[bytes, random.Random], bytes | None]) -> bool:
        """Return whether the job detected the damage."""
        lake.restore()
        path = rng.choice(lake.files(kind)[-2:] if damage is flipped else lake.files(kind)[-1:])
        data = damage(path.read_bytes(), rng)
        path.unlink() if data is None else path.write_bytes(data)
        before = lake.contents()
        code, said = outcome(lake.run, capsys)
        if (code, sorted(lake.contents())) == sound:
            return False
        assert code == 1 and f"{path.parent.name}/{path.name}" in said, (path, code, said)
        assert {name: lake.contents().get(name) for name in before} == before, (path, said)
        return True

    assert sum(check(flipped) for _ in range(BITS)), "no bit was noticed"
    if kind != OPEN:  # a kill may truncate this file; an empty one is valid
        assert check(cut) + check(lambda *_: b""), "a cut was not noticed"
    if kind in NEEDED:
        assert check(lambda *_: None), "no file was missed"
