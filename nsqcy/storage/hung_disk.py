"""Detects an operation of the I/O threads that does not return.

Owns the ages of the operations, and the log lines. The caller passes the time and the
operations, and decides how a hung disk affects publishes and an exit.
"""

from collections.abc import Iterable
from typing import NamedTuple

from nsqcy.logging import events
from nsqcy.logging.types import Lines

SECOND = 1_000_000_000
HUNG_AFTER = 5 * SECOND
REPEAT = 60 * SECOND  # time between two lines about the same operation


class Operation(NamedTuple):
    """An operation that a thread has begun: see IoThread.under_way()."""

    lane: str
    number: int
    verb: str
    path: str


class Wait(NamedTuple):
    """The oldest operation, and the seconds since it began."""

    verb: str
    path: str
    seconds: int


class _Seen(NamedTuple):
    operation: Operation
    since: int


class HungDisk:
    """A worker's oldest operation. Call `look` about once a second."""

    def __init__(self, log: Lines) -> None:
        self._log = log
        self._seen: dict[str, _Seen] = {}  # by lane
        self._oldest: _Seen | None = None
        self._hung: _Seen | None = None
        self._now = 0
        self._logged = 0

    def look(self, now: int, under_way: Iterable[tuple[str, int, str, str]]) -> bool:
        """Compare the operations in progress with those of the last call; return whether one of
        them hangs. now: monotonic clock, ns."""
        seen = {}
        for operation in map(Operation._make, under_way):
            last = self._seen.get(operation.lane)
            is_same = last is not None and last.operation.number == operation.number
            seen[operation.lane] = last if last and is_same else _Seen(operation, now)
        self._seen = seen
        self._now = now
        oldest = min(seen.values(), key=lambda each: each.since, default=None)
        self._oldest = oldest
        self._turn_to(oldest if oldest and now - oldest.since >= HUNG_AFTER else None)
        return self._hung is not None

    @property
    def waits(self) -> Wait | None:
        """The oldest operation, if it takes a second or more."""
        if self._oldest is None or self._now - self._oldest.since < SECOND:
            return None
        _, _, verb, path = self._oldest.operation
        return Wait(verb, path, (self._now - self._oldest.since) // SECOND)

    @property
    def age(self) -> int:
        """Nanoseconds since the oldest operation began; 0 if the disk does not hang."""
        return 0 if self._hung is None else self._now - self._hung.since

    @property
    def reason(self) -> str | None:
        """The operation that hangs, and its duration; None if the disk does not hang."""
        if self._hung is None:
            return None
        _, _, verb, path = self._hung.operation
        return f"disk hangs: {verb} {path} has not returned for {self.age // SECOND} s"

    def _turn_to(self, found: _Seen | None) -> None:
        before, self._hung = self._hung, found
        if found is None:
            if before is not None:
                self._log_end(before)
            return
        if before is None or before.operation != found.operation:
            self._logged = 0
        if not self._logged or self._now >= self._logged + REPEAT:
            self._logged = self._now
            _, _, verb, path = found.operation
            events.disk_hung(
                self._log, str(self.reason), operation=verb, path=path, seconds=self.age // SECOND
            )

    def _log_end(self, before: _Seen) -> None:
        _, _, verb, path = before.operation
        seconds = (self._now - before.since) // SECOND
        events.disk_responds(self._log, operation=verb, path=path, seconds=seconds)
