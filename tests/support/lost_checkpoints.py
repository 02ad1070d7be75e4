"""Ends jobs at random lines of their own code, and damages Spark's checkpoint afterwards."""

import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from nsqcy import pipeline

HOME = Path(pipeline.__file__).parent
WORK = (
    *("archive", "checkpoint", "compact", "manifests", "minutes", "orphans", "replay", "rollup"),
    *("rounds", "seqs", "state_files", "streams", "verify"),
)
FILES = {str(HOME / f"{name}.py") for name in WORK}
MOST_FILES = 6


class Killed(Exception):
    """The job has ended here."""


class Trap:
    """Raises an error at a line of the jobs' code, in the thread that enters it: nothing after that
    line runs, as after SIGKILL. `reached` may add positions between those lines.

    Loops run some lines very often. A trap therefore consists of a position and a number of visits:
    it chooses any of the positions that a run has passed.
    """

    def __init__(self, error: type[BaseException] = Killed) -> None:
        self._error = error
        self.fired = ""  # the position
        self._visits: Counter[str] = Counter()  # number in the longest run
        self._passed: Counter[str] = Counter()
        self._place, self._left = "", 0

    def set(self, rng: random.Random) -> None:
        self.remove()
        if self._visits:
            self._place = rng.choice(sorted(self._visits))
            self._left = int(self._visits[self._place] ** rng.random())

    def remove(self) -> None:
        for place, visits in self._passed.items():
            self._visits[place] = max(visits, self._visits[place])
        self._passed.clear()
        self.fired = self._place = ""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        sys.settrace(self._enter)
        try:
            return function(*args)
        finally:
            sys.settrace(None)

    def reached(self, place: str) -> None:
        """Record that the job is at a position; end the job if the trap is there."""
        self._passed[place] += 1
        if place == self._place:
            self._left -= 1
            if not self._left:
                self.fired = place
                raise self._error(place)

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._at if frame.f_code.co_filename in FILES else None

    def _at(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            self.reached(f"{Path(frame.f_code.co_filename).stem}:{frame.f_lineno}")
        return self._at


def damage(state: Path, copy: Path, rng: random.Random) -> str:
    """Change the checkpoint of a job that has ended, and return a description of the damage. `copy`
    is an older copy, which may be updated."""
    kind = rng.choice(["files", "files", "files", "torn", "copy", "all"])
    if kind in ("files", "torn"):
        lost = lose_files(state, rng)
        torn = kind == "torn" and tear_last(state, rng)
        kind = f"{lost} files{', the last one torn' if torn else ''}"
    else:
        shutil.rmtree(state, ignore_errors=True)
        if kind == "copy" and copy.exists():
            shutil.copytree(copy, state)
    if rng.random() < 0.3 and state.exists():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(state, copy)
    return kind


def lose_files(state: Path, rng: random.Random) -> int:
    """Remove the last files of the offsets and commits, and return their number."""
    files = written(state)
    lost = rng.randint(0, min(MOST_FILES, len(files)))
    for path in files[:lost]:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return lost


def tear_last(state: Path, rng: random.Random) -> bool:
    """Empty or truncate the last file, as a power failure may."""
    for path in written(state)[:1]:
        path.write_bytes(path.read_bytes()[: rng.choice([0, rng.randrange(40)])])
        return True
    return False


def written(state: Path) -> list[Path]:
    """Return the offsets and commits, the newest first: each offset precedes its commit."""
    files = [path for name in ("offsets", "commits") for path in (state / name).glob("[0-9]*")]
    return sorted(files, key=lambda path: (int(path.name), path.parent.name != "offsets"))[::-1]


def tear(folder: Path, rng: random.Random) -> None:
    """Leave unfinished Parquet files as a kill does: some missing, some truncated."""
    for path in sorted(folder.rglob("*.parquet")):
        fate = rng.random()
        if fate < 0.3:
            path.unlink()
        elif fate < 0.6:
            path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
    (folder / "_temporary" / "0").mkdir(parents=True, exist_ok=True)
