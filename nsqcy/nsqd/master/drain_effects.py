"""Effects of draining on the rest of nsqd: `drain.DrainEffects`, and the on/off switch.

Notifies nsqlookupds and workers; drain owns the order of the steps.
"""

from collections.abc import Callable
from typing import Any

from nsqcy.logging.types import Lines
from nsqcy.nsqd.lookup.registration import Lookup
from nsqcy.nsqd.master.drain import Drain
from nsqcy.nsqd.master.workers import Phase, Workers
from nsqcy.nsqd.process_messages.drain_remainder import Remains, merged
from nsqcy.nsqd.process_messages.to_worker import GetRemains, HandOver, SetDraining

LOOKUPS_LIMIT = 5.0  # seconds within which nsqlookupds must unregister topics


class DrainControl:
    """Drains this nsqd."""

    def __init__(
        self,
        workers: Workers,
        count: int,
        context: dict[str, Any],
        lookup: Lookup | None,
        phase: Phase,
        *,
        end: Callable[[int], None],
        on_change: Callable[[], None],
        log: Lines,
    ) -> None:
        """count: the number of workers; context: boot data for workers; end: saves and exits."""
        self._workers = workers
        self._count = count
        self._context = context
        self._lookup = lookup
        self._phase = phase
        self._on_change = on_change
        self._drain = Drain(self, log)
        self.end = end

    @property
    def under_way(self) -> bool:
        return self._drain.under_way

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return self._drain.dump()

    def take_over(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        self._drain.take_over(dumped)

    def set(self, on: bool, limit: float | None, hand_over: bool = False) -> dict[str, Any]:
        """Start draining, with a limit in seconds, or stop draining; return the state."""
        if on and not self._phase.ending:
            self._drain.begin(limit, hand_over)
        elif not on:
            self._drain.cancel()
        if self._phase.started and not self._phase.ending:
            self._on_change()
        return self._drain.state()

    def state(self) -> dict[str, Any]:
        """Return the /config/drain object."""
        return self._drain.state()

    def reason(self) -> str:
        """Return why clients should not publish here."""
        return self._drain.reason()

    def stop(self) -> None:
        """nsqd exits."""
        self._drain.stop()

    # -- drain.DrainEffects

    def withdraw(self) -> None:
        if self._lookup is not None:
            self._lookup.withdraw(LOOKUPS_LIMIT)

    def restore(self) -> None:
        if self._lookup is not None:
            self._lookup.restore(LOOKUPS_LIMIT)

    def refuse_publishes(self, refuse: bool) -> None:
        self._context["draining"] = refuse
        self._workers.gather(SetDraining(refuse))

    def hand_over(self) -> int | None:
        if not self._all_ready():
            return None
        answers = self._workers.gather(HandOver(True)).values()
        counts = [each for each in answers if isinstance(each, int)]
        return sum(counts) if len(counts) == len(answers) else None

    def keep(self) -> None:
        self._workers.gather(HandOver(False))

    def remains(self) -> Remains | None:
        if not self._all_ready():
            return None
        answers = self._workers.gather(GetRemains()).values()
        parts = [each for each in answers if not isinstance(each, Exception)]
        return merged(parts) if len(parts) == len(answers) else None

    def _all_ready(self) -> bool:
        return len(self._workers) >= self._count and all(each.ready for each in self._workers)
