"""Signals at the steps of an upgrade in place. nsqcy/nsqd/upgrade_steps.py lists the steps."""

import os
from pathlib import Path

from support.nsqd_process import Nsqd, environment

HOOK = Path(__file__).with_name("upgrade_hook")

TRIAL = ["trying"]
MASTER = ["executing", "executed", "adopted", "replacing 0", "replacing 1"]
OLD = ["resting", "at rest", "sending", "sent", "committing", "handed over"]
NEW = ["booting", "waiting", "receiving", "received", "taken over"]
ALL = [*TRIAL, *MASTER, *OLD, *NEW]


class Steps:
    """The signals at the next upgrades of one nsqd."""

    def __init__(self, path: Path) -> None:
        """path: a directory for this object only"""
        path.mkdir()
        self._path = path
        self.environ = {
            "PYTHONPATH": os.pathsep.join([str(HOOK), environment()["PYTHONPATH"]]),
            "NSQCY_TEST_STEPS": str(path),
        }
        """Environment of the nsqd."""

    def kill_at(self, step: str, number: int) -> None:
        """Send a signal to the next process that reaches a step."""
        self._at(step, 0, number)

    def signal_at(self, step: str, daemon: Nsqd, number: int) -> None:
        """Send a signal to the master when the next process reaches a step."""
        self._at(step, daemon.process.pid, number)

    def happened(self) -> bool:
        """Return whether all signals have been sent."""
        return not os.listdir(self._path)

    def _at(self, step: str, pid: int, number: int) -> None:
        file = self._path / f"{step}.new"
        file.write_text(f"{pid} {number}")
        file.rename(self._path / step)
