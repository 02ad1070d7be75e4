"""The choice between this version and the previous one for a worker's next process.

After an upgrade in place with an interpreter of its own (`--to`), the previous version is still
installed. If this version twice fails to come up as a worker, the previous one follows; if that
fails twice as well, this one is tried again. Owns the count of the failures. Independent of how a
process is started, and of why it failed.

Once all workers run this version, the previous one is not used any more.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nsqcy.nsqd.master.master_state import Program, State

ATTEMPTS = 2


class WayBack:
    """The previous version, if there is one."""

    def __init__(self) -> None:
        self._previous: Program | None = None
        self._failures: Counter[int] = Counter()

    def dump(self) -> Program | None:
        """Return the state for the next version."""
        return self._previous

    def restore(self, dumped: Sequence[Any] | None, state: State) -> None:
        """Continue with the state of the version that executed this one. If some workers did not
        run that version yet, its own previous version stays the previous one: it is known to work.
        """
        found = None if dumped is None else Program(*dumped)
        if found is None and not state.failure:
            found = state.way_back
        # After an installation over its files, the previous version is not there any more.
        if found is not None and not found.is_same(Program.of(sys.executable, ())):
            self._previous = found

    def failed(self, worker: int) -> None:
        """Note that a process did not come up."""
        self._failures[worker] += 1

    def came_up(self, worker: int) -> None:
        """Note that a process of this version has come up."""
        del self._failures[worker]

    def choose(self, worker: int) -> Program | None:
        """Return the previous version if it must be started; None for this version."""
        return self._previous if self._failures[worker] // ATTEMPTS % 2 else None

    def is_used(self, worker: int) -> bool:
        """Return whether this version has failed as this worker."""
        return self.choose(worker) is not None

    def forget(self) -> None:
        """Use this version only, from now on."""
        self._previous = None
