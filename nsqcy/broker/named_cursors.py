"""Named cursors: readers of a topic's log and their positions.

Owns the cursors' names, positions and ages, but not the log: the topic finds out here which records
the cursors retain, and reports which records exist.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from nsqcy.errors import NsqError
from nsqcy.storage.journal import NamedCursor

MAX_CURSORS = 1000  # per topic
SECOND = 1_000_000_000


class TooManyCursors(NsqError):
    """Error: the topic already has the maximum number of named cursors."""


class NamedCursors:
    """One topic's named cursors, ordered by last use."""

    def __init__(self, cursors: Iterable[NamedCursor] = ()) -> None:
        self._cursors = OrderedDict((one.name, one) for one in cursors)
        self._overrun: set[str] = set()  # cursors that no longer retain anything

    def __len__(self) -> int:
        return len(self._cursors)

    def __contains__(self, name: str) -> bool:
        return name in self._cursors

    def set(self, cursor: NamedCursor) -> None:
        if cursor.name not in self._cursors and len(self._cursors) >= MAX_CURSORS:
            raise TooManyCursors(f"a topic has at most {MAX_CURSORS} named cursors")
        self._cursors[cursor.name] = cursor
        self._cursors.move_to_end(cursor.name)
        self._overrun.discard(cursor.name)

    def use(self, name: str, now: int) -> NamedCursor | None:
        """Return the cursor and record its use; None if it does not exist."""
        cursor = self._cursors.get(name)
        if cursor is not None:
            cursor = self._cursors[name] = NamedCursor(name, cursor.log_id, cursor.seq, now)
            self._cursors.move_to_end(name)
        return cursor

    def delete(self, name: str) -> NamedCursor | None:
        self._overrun.discard(name)
        return self._cursors.pop(name, None)

    def expire(self, before: int) -> list[NamedCursor]:
        """Remove and return the cursors that have not been used since `before`."""
        gone = []
        while self._cursors and next(iter(self._cursors.values())).used < before:
            gone.append(self._cursors.popitem(last=False)[1])
            self._overrun.discard(gone[-1].name)
        return gone

    def end_at(self, log_id: bytes, seq: int) -> None:
        """Record that records from `seq` on are only in the log `log_id`."""
        for name, one in self._cursors.items():
            if one.log_id != log_id and one.seq > seq:
                self._cursors[name] = NamedCursor(name, one.log_id, seq, one.used)

    def held(self, first_seq: int) -> int | None:
        """Return the first record, at or after `first_seq`, that a cursor retains; None if no
        cursor retains one."""
        held = (
            one.seq
            for one in self._cursors.values()
            if one.seq >= first_seq and one.name not in self._overrun
        )
        return min(held, default=None)

    def overrun(self, seq: int) -> list[str]:
        """Enforce the retention limit: cursors no longer retain records before `seq`.
        Return the names of the cursors that lose records."""
        names = [
            one.name
            for one in self._cursors.values()
            if one.seq < seq and one.name not in self._overrun
        ]
        self._overrun.update(names)
        return names

    def state(self) -> tuple[NamedCursor, ...]:
        return tuple(self._cursors.values())

    def facts(self, first_seq: int, next_seq: int, now: int) -> list[dict[str, Any]]:
        """Return descriptions of the cursors for operators, sorted by name."""
        return [
            {
                "name": one.name,
                "log_id": one.log_id.hex(),
                "seq": one.seq,
                "lag": max(0, next_seq - max(one.seq, first_seq)),
                "age": max(0, now - one.used) // SECOND,
                "overrun": one.seq < first_seq or one.name in self._overrun,
            }
            for one in sorted(self._cursors.values(), key=lambda one: one.name)
        ]
