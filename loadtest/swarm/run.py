"""What one process knows of the test that goes on in it.

A process that makes load writes down here what it does; from time to time `take` hands what is new
to whoever puts everything together, the master of a distributed run. In a run of one process that
is the same, and nothing is handed over. Knows no locust.
"""

import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from loadtest.swarm.bodies import Bodies, Stamp
from loadtest.swarm.ledger import Account, Ledger
from loadtest.swarm.options import Options
from loadtest.swarm.stages import Step
from loadtest.swarm.thresholds import COUNTS, FAILURES, PERCENTILES, RATE, Threshold
from loadtest.swarm.timeline import Cell, Timeline

DELIVER, DEFERRED = "deliver", "deferred"  # types of requests: what came, and how late
DELIVERIES = (DELIVER, DEFERRED)
PUBLISHERS = 1 << 16  # of one process


@dataclass
class Quiet:
    """Whether a process publishes nothing more, and has had all answers."""

    halted: bool = False
    waiting: int = 0  # publishes without an answer

    @property
    def is_so(self) -> bool:
        return self.halted and not self.waiting


class Strain(NamedTuple):
    """What a process that makes load had to bear, at most."""

    busy: float = 0.0  # share of the time it was running
    late: float = 0.0  # milliseconds that it came too late for something that was due

    def maximum(self, other: "Strain") -> "Strain":
        return Strain(max(self.busy, other.busy), max(self.late, other.late))


class Strains(dict[int, Strain]):
    """By second; of all processes together."""

    def __init__(self) -> None:
        super().__init__()
        self._last = time.monotonic(), time.process_time()

    def note(self, late: float) -> None:
        """What this process has borne since the last note, of some time before now."""
        before, self._last = self._last, (time.monotonic(), time.process_time())
        busy = (self._last[1] - before[1]) / max(1e-6, self._last[0] - before[0])
        self.add(int(time.time()), Strain(busy, late))

    def add(self, second: int, strain: Strain) -> None:
        self[second] = self.get(second, Strain()).maximum(strain)

    def take(self) -> list[tuple[int, float, float]]:
        """What is new, for the wire; it is forgotten here."""
        taken = [(second, *strain) for second, strain in self.items()]
        self.clear()
        return taken

    def worst(self) -> Strain:
        worst = Strain()
        for strain in self.values():
            worst = worst.maximum(strain)
        return worst


class Run:
    """`current` is the one of this process; there is one at a time.

    number: tells the messages of this test from those of another
    process: which of the processes that make load this is
    consumes: whether what is published is to be delivered in this test
    https: URLs of nsqds, if there are users who need them
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
        self.bodies = Bodies(options.sizes)
        self.ledger = Ledger()
        self.timeline = Timeline()
        self.quiet = Quiet()
        self.strains = Strains()
        self._publishers = process * PUBLISHERS

    # -- of this process

    def new_publisher(self) -> int:
        """A number that no other publisher of the test has."""
        self._publishers += 1
        return self._publishers

    def body(self, publisher: int, number: int, due: int, *, deferred: bool) -> bytes:
        return self.bodies.make(Stamp(due, self.number, publisher, number, deferred))

    def request(
        self,
        request_type: str,
        name: str,
        response_time: float | None,
        exception: BaseException | None = None,
        context: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Something was asked and answered: what locust tells its listeners."""
        self.timeline.add(
            int(time.time()),
            request_type,
            name,
            response_time,
            messages=(context or {}).get("messages", 1),
            failed=exception is not None,
        )

    def take(self) -> dict[str, Any]:
        """What is new, for the wire."""
        return {
            "run": self.number,
            "ledger": self.ledger.take(),
            "timeline": self.timeline.take(),
            "strains": self.strains.take(),
            "quiet": (self.quiet.halted, self.quiet.waiting),
        }

    # -- of all

    @property
    def seconds(self) -> float:
        """How long there was load."""
        return self._now() if self._seconds is None else self._seconds

    def ended(self) -> None:
        """Nothing is published from now on."""
        self._seconds = self._now()

    def drained(self) -> None:
        """All is delivered, or there was no more time for it."""
        self._drained = self._now()

    def _now(self) -> float:
        return max(1e-3, time.time() - self.begun)

    def rate(self, kind: str, messages: int) -> float:
        """Messages a second; deliveries go on for a while after the last publish."""
        drained = self._drained if kind in DELIVERIES else None
        return messages / (drained or self.seconds)

    def merge(self, taken: dict[str, Any]) -> Quiet:
        """What another process has taken. Tells whether that one is quiet."""
        if taken["run"] == self.number:
            self.ledger.merge(taken["ledger"])
            self.timeline.merge(taken["timeline"])
            for second, busy, late in taken["strains"]:
                self.strains.add(second, Strain(busy, late))
        return Quiet(*taken["quiet"])

    def accounts(self) -> list[Account]:
        """Of each channel; none where nobody consumes."""
        return [self.ledger.account(each) for each in self.options.places] if self.consumes else []

    @property
    def is_drained(self) -> bool:
        return not any(each.lost for each in self.accounts())

    def step(self, users: int, since: float, until: float) -> Step:
        """What happened between two moments, in seconds since the test began."""
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
        """What a threshold is compared with; None if nothing of that was measured."""
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
