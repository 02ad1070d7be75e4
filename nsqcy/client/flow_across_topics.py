"""Flow control of a consumer of several topics: max_in_flight goes where the messages are.

Owns the distribution of RDY among the lanes of several topics. flow.py owns backoff, and everything
for a consumer of one topic, whose lanes have equal shares because producers spread one topic evenly
over its nsqds. Several topics are not alike: most may be idle while one has a backlog.

- A review, once a second, finds the *need* of each lane: it cannot have had more messages in flight
  than were in flight at the last review or have been delivered since. A lane that may have used all
  of its RDY needs more.
- The budget covers the needs first, evenly; an even share of the rest allows for bursts.
- If the needs of all lanes exceed the budget, busy lanes have about half of it, and the others take
  turns with RDY 1: a lane without messages passes it on at once. Busy lanes only take turns if they
  hold all RDY.
- Lowered RDY is not available to another lane until its messages have been answered. Messages may
  also be in transit, so it is withheld for a moment: max_in_flight is an upper bound for the sum of
  all messages in flight, not only for the sum of RDY.
"""

import math
from collections.abc import Collection, Set
from random import Random

from nsqcy.client.flow import STARVED, Flow, FlowSettings, Lane, State, shares

TRANSIT = 0.2  # seconds for RDY to reach nsqd, and for its messages to reach the client
REVIEW = 1.0  # seconds between reviews


class SharedFlow(Flow):
    """Flow control of one consumer of several topics."""

    def __init__(self, settings: FlowSettings, random: Random | None = None) -> None:
        super().__init__(settings, random)
        self._needs: dict[Lane, int] = {}  # needs of lanes that had more RDY than they could use
        self._answered: dict[Lane, int] = {}  # number of messages at the last review
        self._lowered: dict[Lane, tuple[int, float]] = {}  # withheld RDY, and until when
        self._review_at = math.inf
        self._turn = min(settings.low_rdy_timeout, settings.rdy_redistribute_interval)
        self._patience = min(settings.low_rdy_idle_timeout, TRANSIT)

    @property
    def is_starved(self) -> bool:
        # A quiet lane with a single message does not end a batch that a busy lane can fill.
        having = [lane for lane in self.lanes if lane.in_flight]
        ready = sum(lane.ready for lane in having)
        return sum(lane.in_flight for lane in having) >= max(1, int(ready * STARVED))

    def add(self, lane: Lane, now: float) -> None:
        self._answered[lane] = _answered(lane)
        self._review_at = min(self._review_at, now + REVIEW)
        super().add(lane, now)

    def remove(self, lane: Lane, now: float) -> None:
        for known in (self._needs, self._answered, self._lowered):
            known.pop(lane, None)
        super().remove(lane, now)

    def tick(self, now: float) -> None:
        if now < self.due:
            return
        if self.state is State.WAITING:
            self.state = State.TESTING
        elif now >= self._review_at:
            self._review(now)
        self._spread(now)

    def _review(self, now: float) -> None:
        """Find the need of each lane since the last review."""
        for lane in self.lanes:
            peak = lane.delivered - self._answered[lane]
            self._answered[lane] = _answered(lane)
            if self.state is not State.NORMAL:
                continue  # RDY does not reflect the need
            if lane.ready and peak >= lane.ready:
                self._needs.pop(lane, None)
            elif lane.ready or peak:
                # A power of two, because each change costs a command.
                self._needs[lane] = 1 << peak.bit_length()
        self._review_at = now + REVIEW

    def _spread(self, now: float, leaving: Set[Lane] = frozenset()) -> None:
        budget = self._budget()
        contested = self._is_contested(budget)
        seated = self._seated(budget, now) if contested else self.lanes
        targets = self._targets(seated, budget, now)
        is_done = self._move(targets, now)
        if self.state is State.WAITING:
            self.due = self._resume_at
        elif not (budget and self.lanes):
            self.due = math.inf
        else:
            waits = contested or not is_done or any(self._is_new(each, now) for each in self.lanes)
            soon = now + TRANSIT if waits else math.inf
            self._review_at = max(self._review_at, math.nextafter(now, math.inf))
            self.due = min(soon, self._review_at)

    def _is_contested(self, budget: int) -> bool:
        """Return whether some lanes must wait for RDY."""
        count = len(self.lanes)
        if count > budget:
            return True
        if 2 * count <= budget:  # half of the budget is enough for RDY 1 everywhere
            return False
        return sum(min(self._needs.get(lane, budget), budget) for lane in self.lanes) > budget

    def _seated(self, budget: int, now: float) -> list[Lane]:
        """Return the lanes that have RDY now, while others wait for it."""
        quiet: list[Lane] = []
        busy: list[Lane] = []
        waiting: list[Lane] = []
        leaving = 0  # lanes whose RDY or messages are not free yet
        for lane in self.lanes:
            if lane.ready:
                (quiet if self._is_quiet(lane, now) else busy).append(lane)
            elif self._held(lane, now):
                leaving += 1
            else:
                waiting.append(lane)
        holders = len(quiet) + len(busy)
        seats = min(len(self.lanes), budget, 1 + (budget + len(busy)) // 2)
        if len(busy) >= seats:
            over = [lane for lane in busy if now >= self._since[lane] + self._turn]
            for lane in over[:1]:  # only one: the waiting lanes may have no messages
                busy.remove(lane)
        for lane in quiet[: len(waiting)]:
            self._needs[lane] = 1
        kept = (busy + quiet[len(waiting) :])[:seats]
        leaving += holders - len(kept)
        return kept + waiting[: max(0, seats - len(kept) - leaving)]

    def _is_quiet(self, lane: Lane, now: float) -> bool:
        since = max(self._since[lane], lane.last_message)
        return not lane.in_flight and now >= since + self._patience

    def _targets(self, lanes: Collection[Lane], budget: int, now: float) -> dict[Lane, int]:
        """Divide the budget: first what the lanes need, then the rest."""
        if not lanes:
            return {}
        limits = {lane: 1 if self._is_new(lane, now) else lane.max_ready for lane in lanes}
        needs = {lane: min(self._needs.get(lane, budget), limits[lane]) for lane in lanes}
        found = shares(lanes, budget, needs.__getitem__)
        rest = shares(lanes, budget - sum(found.values()), lambda lane: limits[lane] - found[lane])
        return {lane: count + rest[lane] for lane, count in found.items()}

    def _is_new(self, lane: Lane, now: float) -> bool:
        """Return whether a lane begins with RDY 1. Otherwise, the first of many connections would
        fetch as many messages as all of them together may have in flight."""
        return not lane.ready or now < self._since[lane] + TRANSIT

    def _move(self, targets: dict[Lane, int], now: float) -> bool:
        """Set the lanes to their targets as far as RDY is free. Return whether all lanes have
        reached them."""
        moved: dict[Lane, None] = {}  # in order
        for lane in self.lanes:
            if (count := targets.get(lane, 0)) < lane.ready:
                self._lowered[lane] = self._held(lane, now), now + TRANSIT
                lane.send_ready(count)
                if not count:
                    moved[lane] = None
        free = self.max_in_flight - sum(self._held(lane, now) for lane in self.lanes)
        is_done = True
        for lane in sorted(targets, key=_ready):  # lanes without RDY come first
            held = self._held(lane, now)
            count = min(targets[lane], held + max(0, free))
            if count > lane.ready:
                if not lane.ready:
                    moved[lane] = None
                    self._since[lane] = now
                free -= max(0, count - held)
                lane.send_ready(count)
            is_done = is_done and lane.ready == targets[lane]
        if moved:
            self.lanes = [lane for lane in self.lanes if lane not in moved] + [*moved]
        return is_done

    def _held(self, lane: Lane, now: float) -> int:
        """Return the number of messages that the lane may have in flight."""
        lowered, until = self._lowered.get(lane, (0, -math.inf))
        if now >= until:
            self._lowered.pop(lane, None)
            lowered = 0
        return max(lane.ready, lane.in_flight, lowered)


def _ready(lane: Lane) -> int:
    return lane.ready


def _answered(lane: Lane) -> int:
    return lane.delivered - lane.in_flight
