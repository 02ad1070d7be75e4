"""The replacement of one running worker by a successor process, without a loss of connections.

Owns the order of the steps on the master's side, and what follows from each failure. The two
processes hand over to each other (nsqd/worker/succession.py), and decide alone whether the
successor has taken over: the master only learns it, from the report of one of them or from the
predecessor's exit code. Independent of what is handed over.

    booting        the successor imports its modules; the worker serves
    handing over   the worker answers what is outstanding and sends everything to the successor;
                   requests to the worker, and new connections, wait in the master
    taken over     the successor is the worker
    kept           the successor has ended, and the worker serves on
    lost           both have ended: an ordinary death
"""

from typing import Protocol

from gevent.event import AsyncResult, Event

from nsqcy.process import arbiter

BOOT_LIMIT = 60.0  # maximum seconds for a successor to import its modules
HAND_OVER_LIMIT = 15.0  # maximum seconds for the two processes to hand over
KEEP_LIMIT = 5.0  # maximum seconds for the worker to notice that its successor has ended

TAKEN_OVER, KEPT, LOST = "taken over", "kept", "lost"


class Steps(Protocol):
    """The actions of a replacement."""

    def begin_hand_over(self) -> None:
        """Let requests and connections wait, and have the worker hand over."""

    def promote(self) -> None:
        """Use the successor as the worker. Must not block, because its next report may follow."""

    def end_successor(self) -> None:
        """Kill the successor. Its exit is reported as usual."""


class Replacement:
    """One replacement. The methods that report an event never block."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._booted = Event()  # the successor waits, or will not
        self._outcome: AsyncResult = AsyncResult()
        self.ended = Event()
        """Set by the owner, once it has handled the outcome."""
        self._is_handing_over = False
        self._serves = True  # whether the worker reads from its clients
        self.exit_code: int | None = None
        """Exit code of the worker, if it has exited, or has become a pump."""
        self._has_successor = True
        self.reason = ""
        """Why the successor has not taken over."""

    def run(self) -> str:
        """Replace the worker; return the outcome. Blocks."""
        if not self._booted.wait(BOOT_LIMIT):
            self.cancel(f"the successor has not booted within {BOOT_LIMIT:g} s")
        if not self.reason:
            self._is_handing_over = True
            self._serves = False
            self._steps.begin_hand_over()
            if not self._outcome.wait(HAND_OVER_LIMIT) and not self._outcome.ready():
                self._give_up(f"the hand-over has not ended within {HAND_OVER_LIMIT:g} s")
        if not self._outcome.wait(KEEP_LIMIT) and not self._outcome.ready():
            self._outcome.set(KEPT)  # a worker that hangs is killed, as at any time
        outcome: str = self._outcome.get()
        return outcome

    def cancel(self, reason: str) -> None:
        """Give up, unless the processes hand over already."""
        if not self._is_handing_over:
            self._give_up(reason)

    # -- events

    def successor_waits(self) -> None:
        """Handle the report of the successor that it can take over."""
        self._booted.set()

    def taken_over(self) -> None:
        """Handle the report of the successor that it has taken over."""
        self._end(TAKEN_OVER)

    def kept(self, reason: str) -> None:
        """Handle the report of the worker that it has not handed over, and serves on."""
        self._serves = True
        self._give_up(reason)

    def left(self, code: int) -> None:
        """Handle the exit of the worker."""
        self.exit_code = code
        if code == arbiter.HANDED_OVER and self._has_successor:
            self._end(TAKEN_OVER)
        elif self._is_handing_over:
            # The successor knows whether it has taken over. If not, it exits.
            self._decide("the worker has exited")
        else:
            self._give_up("the worker has exited")

    def handed_over(self) -> None:
        """Handle the report of the worker that it has handed over. It stays as a pump."""
        self.left(arbiter.HANDED_OVER)

    def successor_left(self, code: int) -> None:
        """Handle the exit of the successor."""
        self._has_successor = False
        self._decide(f"the successor {arbiter.describe(code)}")

    def _give_up(self, reason: str) -> None:
        if self._has_successor:
            self._steps.end_successor()
        self._decide(reason)

    def _decide(self, reason: str) -> None:
        self.reason = self.reason or reason
        if not self._has_successor:
            if self.exit_code is not None:
                self._end(LOST)
            elif self._serves:
                self._end(KEPT)
        self._booted.set()

    def _end(self, outcome: str) -> None:
        if not self._outcome.ready():
            self._outcome.set(outcome)
            if outcome == TAKEN_OVER:
                self._steps.promote()
        self._booted.set()
