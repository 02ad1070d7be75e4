"""The state of a test in one process.

Each load process records its work here. Periodically, `take` passes the new entries to the process
that combines everything, which is the master in a distributed run. If a run has only one process,
nothing is passed on. Independent of locust.
"""

import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from loadtest.soak.bodies import Bodies, Stamp
from loadtest.soak.ledger import Account, Ledger
from loadtest.soak.timeline import PERCENTILES, Cell, Timeline
from loadtest.swarm.options import Options
from loadtest.swarm.stages import Step
from loadtest.swarm.thresholds import COUNTS, FAILURES, RATE, Threshold

# Request types of first deliveries, without and with a delay; the recorded value is the lateness.
DELIVER, DEFERRED = "deliver", "deferred"
DELIVERIES = (DELIVER, DEFERRED)
PUBLISHERS = 1 << 16  # maximum number per process


@dataclass
class Quiet:
    """Return whether a process has stopped publishing and has received all responses."""

    halted: bool = False
    waiting: int = 0  # publishes without a response

    @property
    def is_so(self) -> bool:
        return self.halted and not self.waiting


class Strain(NamedTuple):
    """The maximum strain on a load process."""

    busy: float = 0.0  # share of time spent running
    late: float = 0.0  # lateness in milliseconds

    def maximum(self, other: "Strain") -> "Strain":
        return Strain(max(self.busy, other.busy), max(self.late, other.late))


class Strains(dict[int, Strain]):
    """The maximum strain of each second, over all processes."""

    def __init__(self) -> None:
        super().__init__()
        self._last = time.monotonic(), time.process_time()

    def note(self, late: float) -> None:
        """Record the strain since the last call, for some time before now."""
        before, self._last = self._last, (time.monotonic(), time.process_time())
        busy = (self._last[1] - before[1]) / max(1e-6, self._last[0] - before[0])
        self.add(int(time.time()), Strain(busy, late))

    def add(self, second: int, strain: Strain) -> None:
        self[second] = self.get(second, Strain()).maximum(strain)

    def take(self) -> list[tuple[int, float, float]]:
        """Return the new entries, encoded for the network, and forget them."""
        taken = [(second, *strain) for second, strain in self.items()]
        self.clear()
        return taken

    def worst(self) -> Strain:
        worst = Strain()
        for strain in self.values():
            worst = worst.maximum(strain)
        return worst


class Run:
    """`current` is the run in this process; there is one at a time.

    number: identifies the messages of this test
    process: the number of this load process
    consumes: whether published messages are delivered in this test
    https: URLs of nsqds, if there are users that need them
    """

    current: ClassVar["Run"]

    def __init__(
        self, options: Options, number: int, process: int = 0, *, consumes: bool = True
    ) -> None:
        self.https: list[str] = []
        self.options = options
        self.number = number
        self.consumes = consumes
        self.begun = time.time()
        self._seconds: float | None = None
        self._drained: float | None = None
        self.bodies = Bodies(number, options.sizes)
        self.ledger = Ledger()
        self.timeline = Timeline()
        self.quiet = Quiet()
        self.strains = Strains()
        self._publishers = process * PUBLISHERS

    # -- for this process

    def new_publisher(self) -> int:
        """Return a number that no other publisher of the test has."""
        self._publishers += 1
        return self._publishers

    def body(self, publisher: int, number: int, due: int, *, deferred: bool) -> bytes:
        return self.bodies.make(Stamp(publisher, number, due, deferred))

    def request(
        self,
        request_type: str,
        name: str,
        response_time: float | None,
        exception: BaseException | None = None,
        context: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record a request and its response, as locust reports them to its listeners."""
        self.timeline.add(
            int(time.time()),
            request_type,
            name,
            response_time,
            messages=(context or {}).get("messages", 1),
            failed=exception is not None,
        )

    def take(self) -> dict[str, Any]:
        """Return the new entries, encoded for the network."""
        return {
            "run": self.number,
            "ledger": self.ledger.take(),
            "timeline": self.timeline.take(),
            "strains": self.strains.take(),
            "quiet": (self.quiet.halted, self.quiet.waiting),
        }

    # -- for all processes

    @property
    def seconds(self) -> float:
        """Return the duration of the load."""
        return self._now() if self._seconds is None else self._seconds

    def ended(self) -> None:
        """Handle the end of publishing."""
        self._seconds = self._now()

    def drained(self) -> None:
        """Handle the end of deliveries: everything has been delivered, or time has run out."""
        self._drained = self._now()

    def _now(self) -> float:
        return max(1e-3, time.time() - self.begun)

    def rate(self, kind: str, messages: int) -> float:
        """Return messages per second; deliveries continue for a while after the last publish."""
        drained = self._drained if kind in DELIVERIES else None
        return messages / (drained or self.seconds)

    def merge(self, taken: dict[str, Any]) -> Quiet:
        """Merge the entries taken by another process. Return whether that process is quiet."""
        if taken["run"] == self.number:
            self.ledger.merge(taken["ledger"])
            self.timeline.merge(taken["timeline"])
            for second, busy, late in taken["strains"]:
                self.strains.add(second, Strain(busy, late))
        return Quiet(*taken["quiet"])

    def accounts(self) -> list[Account]:
        """Return the account of each channel; empty if there are no consumers."""
        return [self.ledger.account(each) for each in self.options.places] if self.consumes else []

    @property
    def is_drained(self) -> bool:
        return not any(each.lost for each in self.accounts())

    def step(self, users: int, since: float, until: float) -> Step:
        """Return the results between two times, in seconds since the test began."""
        totals = self.timeline.totals(self.begun + since, self.begun + until)
        requests = sum(cell.requests for cell in totals.values())
        failures = sum(cell.failures for cell in totals.values())
        sent = sum(c.messages for (kind, _), c in totals.items() if kind not in DELIVERIES)
        found = {
            kind: p99
            for (kind, _), cell in totals.items()
            if (p99 := cell.percentile(PERCENTILES["p99"])) is not None
        }
        worst = max(found, key=found.__getitem__, default="")
        return Step(
            users,
            rate=sent / max(1.0, until - since),
            p99=found.get(worst),
            worst=worst,
            failures=failures / requests if requests else 0.0,
        )

    def figure(self, threshold: Threshold) -> float | None:
        """Return the value for a threshold; None if it was not measured."""
        figure, of = threshold.figure, threshold.of
        if figure in COUNTS:
            accounts = self.accounts()
            return sum(getattr(each, figure) for each in accounts) if accounts else None
        found = {
            (kind, name): cell
            for (kind, name), cell in self.timeline.totals().items()
            if of in ("", kind, f"{kind} {name}")
        }
        if not found:
            return None
        if figure == RATE:
            return sum(self.rate(kind, cell.messages) for (kind, _), cell in found.items())
        whole = Cell()
        for cell in found.values():
            whole.merge(cell)
        if figure == FAILURES:
            return whole.failures / whole.requests
        return whole.percentile(PERCENTILES[figure])
