"""Flow control of one consumer: how its budget `max_in_flight` is distributed among its connections
as RDY, and how it backs off when messages fail.

A connection is visible here only as a `Lane`. This module uses no sockets or clocks: the caller
passes the time in and calls `tick` when it is `due`.

    NORMAL  --failure-->  level 1, RDY 0 everywhere, a wait              WAITING
    WAITING --time-->     RDY 1 on one lane                              TESTING
    TESTING --success-->  level - 1; 0: RDY everywhere                   NORMAL
                                     else RDY 0 everywhere, a wait       WAITING
    TESTING --failure-->  level + 1 up to the top, RDY 0, a wait         WAITING
    TESTING --neutral-->  the same level, RDY 0, a wait                  WAITING

Each state has a budget: `max_in_flight` in NORMAL, 0 in WAITING, 1 in TESTING. If the budget is
enough for all lanes, each lane has a share. Otherwise, some lanes have RDY 1, and lanes take turns:
every `rdy_redistribute_interval`, lanes that are idle or have long had RDY give it up to waiting
lanes.
"""

import math
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from random import Random
from typing import Literal, Protocol

from nsqcy.config.options import FLOAT, INT, STRING
from nsqcy.options.fields import MAX_WHOLE, declared, option
from nsqcy.options.option import Rule

STARVED = 0.85  # in-flight share of a lane's RDY above which the RDY may soon be exhausted


class Lane(Protocol):
    """A subscribed connection, as the flow control sees it. Lanes are compared by identity."""

    @property
    def ready(self) -> int:
        """The last RDY sent; initially 0."""

    @property
    def max_ready(self) -> int:
        """Return the server's limit; at least 1."""

    @property
    def in_flight(self) -> int: ...

    @property
    def delivered(self) -> int:
        """Return the number of messages so far, answered or not."""

    @property
    def last_message(self) -> float:
        """The time of the last message; initially, the time of the subscription."""

    def send_ready(self, count: int) -> None:
        """Write RDY and set `ready`. Must not call back: a failed connection is removed later."""


class State(Enum):
    NORMAL = "normal"
    WAITING = "waiting"
    TESTING = "testing"


def _finite(text: str, holds: Callable[[float], bool]) -> Rule:
    def is_allowed(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and holds(value)

    return Rule(text, is_allowed)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WHOLE


POSITIVE = _finite("a number above 0", lambda value: value > 0)
MAX_IN_FLIGHT = Rule("a whole number, 0 or more", _is_whole)
STRATEGIES = ("exponential", "full_jitter")


def demand(name: str, value: object, rule: Rule) -> None:
    if not rule.holds(value):
        raise ValueError(f"{name} must be {rule.text}, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """Flow control options. A wait lasts `backoff_multiplier` * 2 ** level seconds, or a random
    part of that."""

    max_in_flight: int = option(
        1,
        INT,
        "maximum messages in flight, across all connections; default: concurrency",
        MAX_IN_FLIGHT,
    )
    low_rdy_idle_timeout: float = option(
        10.0, FLOAT, "seconds without a message after which a connection loses its RDY", POSITIVE
    )
    low_rdy_timeout: float = option(
        30.0,
        FLOAT,
        "seconds after which a connection loses its RDY even if messages are arriving",
        POSITIVE,
    )
    rdy_redistribute_interval: float = option(
        5.0,
        FLOAT,
        "seconds between checks of low_rdy_idle_timeout and low_rdy_timeout, if max_in_flight is "
        "less than the number of connections; with several topics, the length of a busy "
        "connection's turn",
        _finite("at least 0.001 seconds", lambda value: value >= 0.001),
    )
    max_backoff_duration: float = option(
        0.0,
        FLOAT,
        "maximum backoff of the entire consumer after failures, in seconds; if less than the first "
        "wait, there is no backoff",
        _finite("0 or more", lambda value: value >= 0),
    )
    backoff_multiplier: float = option(
        1.0,
        FLOAT,
        "base wait in seconds; multiplied by two to the power of the backoff level",
        POSITIVE,
    )
    backoff_strategy: Literal["exponential", "full_jitter"] = option(
        "exponential",
        STRING,
        "exponential: the full wait; full_jitter: a random part of it",
        Rule(" or ".join(STRATEGIES), STRATEGIES.__contains__),
    )

    def __post_init__(self) -> None:
        for each in declared(FlowSettings):
            if each.rule:
                demand(each.name, getattr(self, each.name), each.rule)

    @property
    def top_level(self) -> int:
        """Return the highest level whose wait is at most `max_backoff_duration`."""
        level = 0
        wait = self.backoff_multiplier * 2
        while wait <= self.max_backoff_duration:
            level += 1
            wait *= 2
        return level


def shares(
    lanes: Collection[Lane], budget: int, limit: Callable[[Lane], int] = attrgetter("max_ready")
) -> dict[Lane, int]:
    """Divide the budget as evenly as the lanes' limits allow."""
    found = {}
    left = len(lanes)
    # Lanes with the smallest limits come first, so that the others can use the rest of the budget.
    for lane in sorted(lanes, key=limit):
        found[lane] = min(limit(lane), budget // left)
        budget -= found[lane]
        left -= 1
    return found


class Flow:
    """Flow control of one consumer.

    The sum of the lanes' RDY never exceeds `max_in_flight`, not even between two commands. A
    message's result is reported before its FIN or REQ is written, so that RDY is sent first.
    """

    def __init__(self, settings: FlowSettings, random: Random | None = None) -> None:
        self.settings = settings
        self.random = random or Random()
        self.state = State.NORMAL
        self.calm = True  # a success would have no effect
        self.backoff_level = 0
        self.due = math.inf
        # The next lane is the one whose RDY least recently changed to or from 0.
        self.lanes: list[Lane] = []
        self.on_backoff: Callable[[int, float], object] | None = None
        self.on_resume: Callable[[], object] | None = None
        self.max_in_flight = settings.max_in_flight
        self._top_level = settings.top_level
        self._since: dict[Lane, float] = {}  # time at which the lane's RDY last rose from 0
        self._resume_at = math.inf
        self._next_turns = math.inf

    @property
    def total_ready(self) -> int:
        return sum(lane.ready for lane in self.lanes)

    @property
    def total_in_flight(self) -> int:
        return sum(lane.in_flight for lane in self.lanes)

    @property
    def is_starved(self) -> bool:
        """Return whether a lane cannot receive more messages until some are answered, in which case
        a batch should end now."""
        return any(lane.in_flight >= max(1, int(lane.ready * STARVED)) for lane in self.lanes)

    def add(self, lane: Lane, now: float) -> None:
        """Add a connection that has subscribed; its `ready` is 0."""
        # Many consumers find the same lanes in the same order; without a random position, they
        # would move in lockstep.
        self.lanes.insert(self.random.randint(0, len(self.lanes)), lane)
        self._since[lane] = now
        self._spread(now)

    def remove(self, lane: Lane, now: float) -> None:
        """Remove a lost connection, with its RDY and its messages in flight. Does nothing if it has
        never subscribed."""
        if self._since.pop(lane, None) is not None:
            self.lanes.remove(lane)
            self._spread(now)

    def set_max_in_flight(self, count: int, now: float) -> None:
        """0 pauses."""
        demand("max_in_flight", count, MAX_IN_FLIGHT)
        self.max_in_flight = count
        self._spread(now)

    def success(self, now: float) -> None:
        if self.state is not State.TESTING:
            return
        self.backoff_level -= 1
        if self.backoff_level:
            self._wait(now)
            return
        self.state = State.NORMAL
        self.calm = True
        self._spread(now)
        if self.on_resume:
            self.on_resume()

    def failure(self, now: float) -> None:
        # Ignore results of messages that were in flight when the wait began.
        if self.state is State.WAITING or not self._top_level:
            return
        self.backoff_level = min(self.backoff_level + 1, self._top_level)
        self._wait(now)

    def neutral(self, now: float) -> None:
        if self.state is State.TESTING:
            self._wait(now)

    def tick(self, now: float) -> None:
        """Do what is due: end a wait, or rotate the lanes."""
        if now < self.due:
            return
        if self.state is State.WAITING:
            self.state = State.TESTING
            self._spread(now)
        else:
            self._next_turns = math.inf
            self._spread(now, self._leaving(now))

    def _wait(self, now: float) -> None:
        wait = math.ldexp(self.settings.backoff_multiplier, self.backoff_level)
        if self.settings.backoff_strategy == "full_jitter":
            wait *= self.random.random()
        self.state = State.WAITING
        self.calm = False
        self._resume_at = now + wait
        self._spread(now)
        if self.on_backoff:
            self.on_backoff(self.backoff_level, wait)

    def _budget(self) -> int:
        if self.state is State.WAITING:
            return 0
        return min(self.max_in_flight, 1) if self.state is State.TESTING else self.max_in_flight

    def _spread(self, now: float, leaving: Set[Lane] = frozenset()) -> None:
        """Send the RDYs that must change; the turn of `leaving` lanes is over."""
        budget = self._budget()
        if len(self.lanes) <= budget:
            self._send(shares(self.lanes, budget), now)
            self._next_turns = math.inf
        else:
            self._send(self._turns(budget, leaving), now)
            interval = self.settings.rdy_redistribute_interval
            self._next_turns = min(self._next_turns, now + interval) if budget else math.inf
        self.due = self._resume_at if self.state is State.WAITING else self._next_turns

    def _turns(self, budget: int, leaving: Set[Lane]) -> dict[Lane, int]:
        """Give RDY 1 to the lanes that keep their RDY, then to as many waiting lanes as
        possible."""
        holders = [lane for lane in self.lanes if lane.ready and lane not in leaving]
        waiting = [lane for lane in self.lanes if not lane.ready]
        kept = holders[:budget]
        return dict.fromkeys(kept + waiting[: budget - len(kept)], 1)

    def _leaving(self, now: float) -> set[Lane]:
        """Return the lanes that have finished their turn, at most one per lane waiting for RDY."""
        waiting = sum(not lane.ready for lane in self.lanes)
        over = [lane for lane in self.lanes if lane.ready and self._is_over(lane, now)]
        return set(over[:waiting])

    def _is_over(self, lane: Lane, now: float) -> bool:
        since = self._since[lane]
        if now < since + self.settings.rdy_redistribute_interval:
            return False  # messages may be in transit
        if now >= since + self.settings.low_rdy_timeout:
            return True
        # A lane that is busy with a message is never idle, no matter how long it takes.
        idle = now >= lane.last_message + self.settings.low_rdy_idle_timeout
        return idle and not lane.in_flight

    def _send(self, targets: dict[Lane, int], now: float) -> None:
        """Set all lanes to their targets, or to 0 if they have none: first decrease, then
        increase."""
        lost: list[Lane] = []
        got: list[Lane] = []
        for lane in self.lanes:
            count = targets.get(lane, 0)
            if count < lane.ready:
                if not count:
                    lost.append(lane)
                lane.send_ready(count)
        for lane in self.lanes:
            count = targets.get(lane, 0)
            if count > lane.ready:
                if not lane.ready:
                    got.append(lane)
                    self._since[lane] = now
                lane.send_ready(count)
        if lost or got:
            self.random.shuffle(lost)  # the lanes changed at the same time, so they have no order
            moved = {*lost, *got}
            self.lanes = [lane for lane in self.lanes if lane not in moved] + lost + got
