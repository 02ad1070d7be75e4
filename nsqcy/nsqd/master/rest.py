"""Rest: the master begins nothing, and nothing is half done, so that its process can execute the
next version.

Owns the order and the time limits. The parts that rest know what they hold back: the acceptor
leaves connections in the backlog, the channels keep requests for the next version.
"""

import time
from collections.abc import Callable

import gevent

from nsqcy.nsqd.master.workers import Workers

SETTLE_LIMIT = 10.0  # maximum seconds for workers to come up, while everything else goes on
CALLS_LIMIT = 1.0  # maximum seconds for calls to be answered, before they fail as unreachable
WORK_LIMIT = 1.0  # maximum seconds for the rest of the work
LOOK = 0.005  # seconds


class Rest:
    """Brings the master to rest.

    begin, end: hold back and continue what does not concern the channels. activity: what keeps the
    rest of the master from resting; empty if nothing does.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        end: Callable[[], None],
        workers: Workers,
        activity: Callable[[], str],
    ) -> None:
        self._begin = begin
        self._end = end
        self._workers = workers
        self._parts_activity = activity

    def settle(self) -> str:
        """Wait until the master could come to rest; return why it cannot, or "". Everything goes on
        in the meantime."""
        return self._await(self._parts_activity, SETTLE_LIMIT)

    def begin(self) -> str:
        """Come to rest; return why that is not possible, or "". Call `end` in any case."""
        self._begin()
        for handle in self._workers:
            handle.channel.hold_requests()
        if not self._await(self.activity, CALLS_LIMIT):
            return ""
        # A worker that exits or starts now depends on its calls.
        reason = self._parts_activity()
        if reason:
            return reason
        for handle in self._workers:
            handle.channel.give_up_calls()
        return self._await(self.activity, WORK_LIMIT)

    def end(self) -> None:
        """Continue."""
        for handle in self._workers:
            handle.channel.resume()
        self._end()

    def activity(self) -> str:
        """Return what keeps the master from resting; empty if it rests."""
        for handle in self._workers:
            found = handle.channel.activity
            if found:
                return f"worker {handle.index}: {found}"
        return self._parts_activity()

    def _await(self, activity: Callable[[], str], limit: float) -> str:
        deadline = time.monotonic() + limit
        while (found := activity()) and time.monotonic() < deadline:
            gevent.sleep(LOOK)
        return found
