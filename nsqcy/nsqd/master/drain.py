"""Draining: nsqd rejects publishes, its consumers empty it, and it exits.

Owns the order of the steps and the counting. `DrainEffects` handles the workers and nsqlookupds.

    begin ──► unregister ──► reject publishes ──► count what is left
                                                    │            │
                           nothing, twice in a row ─┘            └─ time limit
                           exit 0                                   exit 3

With `hand_over`, nsqd does not wait for its consumers. It hands its copied topics over to the other
nodes that have copies, once none of the topics' messages are in flight. Messages of other topics
stay on disk.
"""

import time
from typing import Any, Protocol

import gevent
from gevent.lock import BoundedSemaphore

from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.process_messages.drain_remainder import Remains

EMPTY, NOT_EMPTY = 0, 3  # exit codes
LOOK_EVERY = 0.25  # seconds
TELL_EVERY = 10.0  # seconds between log lines


class DrainEffects(Protocol):
    """The master's actions; each method may wait."""

    def withdraw(self) -> None:
        """Make nsqlookupds stop sending clients here. Return once all have been notified."""

    def restore(self) -> None:
        """Make nsqlookupds send clients here again."""

    def refuse_publishes(self, refuse: bool) -> None:
        """Reject publishes in every worker, including workers that start later. Return when all
        workers reject them."""

    def remains(self) -> Remains | None:
        """Return the remaining messages; None if any worker does not answer."""

    def hand_over(self) -> int | None:
        """Hand the groups of copied topics over to other nodes; return the number of groups left,
        or None if any worker does not answer."""

    def keep(self) -> None:
        """Stop handing over."""

    def end(self, code: int) -> None:
        """Exit."""


class Drain:
    """One nsqd's draining."""

    def __init__(self, effects: DrainEffects, log: Lines) -> None:
        self.since = 0.0  # wall clock, s; 0: not draining
        self.left: Remains | None = None  # remaining messages, as of the latest count
        self._effects = effects
        self._log = log
        self._deadline = 0.0  # monotonic, s; 0 without a time limit
        self._turns = BoundedSemaphore()  # serialises begin and cancel
        self._greenlet: gevent.Greenlet | None = None
        self._hands_over = False

    @property
    def under_way(self) -> bool:
        return self.since > 0

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {"since": self.since, "deadline": self._deadline, "hands_over": self._hands_over}

    def take_over(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        self.since, self._deadline = dumped["since"], dumped["deadline"]
        self._hands_over = dumped["hands_over"]
        if self.under_way:
            self._greenlet = gevent.spawn(self._watch)

    def begin(self, limit: float | None, hand_over: bool = False) -> None:
        """Start draining; return once publishes are no longer accepted.

        `limit`: seconds after which nsqd exits in any case; None: the previous call's limit, if
        any. While draining, a call changes only the limit, and may begin to hand over.
        """
        with self._turns:
            if limit is not None:
                self._deadline = time.monotonic() + limit
            self._hands_over = self._hands_over or hand_over
            if self.under_way:
                return
            self.since = time.time()
            events.drain_begins(self._log)
            self._effects.withdraw()
            events.drain_refuses_publishes(self._log)
            self._effects.refuse_publishes(True)
            self._greenlet = gevent.spawn(self._watch)

    def cancel(self) -> None:
        """Stop draining and accept publishes again."""
        with self._turns:
            if not self.under_way:
                return
            self.stop()
            self._deadline = self.since = 0.0
            self.left = None
            if self._hands_over:
                self._hands_over = False
                self._effects.keep()
            self._effects.refuse_publishes(False)
            self._effects.restore()
            events.drain_cancelled(self._log)

    def stop(self) -> None:
        """Stop counting, because nsqd exits or resumes normal operation."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def state(self) -> dict[str, Any]:
        """Return the state that /config/drain shows."""
        shown: dict[str, Any] = {"draining": self.under_way}
        if self.under_way:
            shown["since"] = int(self.since)
            if self._deadline:
                shown["seconds_left"] = max(0, round(self._deadline - time.monotonic()))
        left = self._effects.remains()
        shown["left"] = None if left is None else _shown(left)
        return shown

    def reason(self) -> str:
        """Return why clients should not publish here."""
        if self.left is None:
            return "draining"
        if self.left.messages == 1:
            return "draining: 1 message is left"
        return f"draining: {self.left.messages} messages are left"

    def _watch(self) -> None:
        """Count until two consecutive counts are empty, because one count may miss a message that
        is moving between two workers' topics."""
        told_at = 0.0
        was_empty = False
        while True:
            gevent.sleep(LOOK_EVERY)
            self.left = left = self._effects.remains()
            if self._hands_over and self._effects.hand_over() == 0:
                events.drain_handed_over(self._log)
                self._effects.end(EMPTY)
                return
            empty = left is not None and left.messages == 0 and not self._hands_over
            if empty and was_empty:
                events.drain_done(self._log)
                self._effects.end(EMPTY)
                return
            was_empty = empty
            if self._deadline and time.monotonic() >= self._deadline:
                events.drain_over(
                    self._log, left or "messages", messages=left.messages if left else None
                )
                self._effects.end(NOT_EMPTY)
                return
            if left and not empty and time.monotonic() - told_at >= TELL_EVERY:
                told_at = time.monotonic()
                events.drain_left(self._log, left, messages=left.messages)


def _shown(left: Remains) -> dict[str, Any]:
    return {
        "messages": left.messages,
        "depth": left.waiting,
        "in_flight_count": left.in_flight,
        "deferred_count": left.deferred,
        "places": left.number,
        "most": [
            {
                "topic_name": each.topic,
                "channel_name": each.channel,
                "depth": each.waiting,
                "in_flight_count": each.in_flight,
                "deferred_count": each.deferred,
            }
            for each in left.places
        ],
    }
