"""Daemons whose event loops report their longest iteration (see `probe`).

Owns the directory of the reports. Independent of commands and routes.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from loadtest.turns.probe import DIRECTORY, FIELDS

ROOT = Path(__file__).parents[2]
QUIET = 0.03  # seconds; an idle loop has at most a few iterations in this time
IDLE_TURNS = 3  # maximum iterations of an idle loop within QUIET
SETTLE_LIMIT = 60.0


class Loops:
    """The event loops of the daemons that were started within `observed()`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def longest(self, action: Callable[[], object]) -> float:
        """Return the CPU time in milliseconds of the longest iteration of any loop, from the
        beginning of the action until no loop has work left."""
        self._settle()
        for report in self._directory.iterdir():
            with report.open("r+b") as file:
                file.write(FIELDS.pack(0, 0))
        action()
        self._settle()
        return max(longest for _, longest in self._figures()) / 1e6

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_LIMIT
        before = self._turns()
        while time.monotonic() < deadline:
            time.sleep(QUIET)
            after = self._turns()
            if all(after[each] - before.get(each, 0) <= IDLE_TURNS for each in after):
                return
            before = after

    def _turns(self) -> dict[Path, int]:
        return {
            report: FIELDS.unpack(report.read_bytes())[0] for report in self._directory.iterdir()
        }

    def _figures(self) -> list[tuple[int, int]]:
        return [FIELDS.unpack(report.read_bytes()) for report in self._directory.iterdir()]


@contextlib.contextmanager
def observed() -> Iterator[Loops]:
    """Observe all daemons that are started in this context."""
    with tempfile.TemporaryDirectory(prefix="nsqcy-turns-") as directory:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        changed = {
            "GEVENT_LOOP": "loadtest.turns.probe.Loop",
            DIRECTORY: directory,
            "PYTHONPATH": path,
        }
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield Loops(Path(directory))
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
