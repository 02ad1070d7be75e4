"""Named cursors: who reads a topic's log, from which record on.

Owns their names, positions and ages. Knows no log: a topic asks what they hold, and says which
records there are.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from nsqcy.errors import NsqError
from nsqcy.journal import NamedCursor

CURSORS_MOST = 1000  # of a topic
SECOND = 1_000_000_000


class TooManyCursors(NsqError):
    """A topic has as many named cursors as it may."""


class NamedCursors:
    """Those of one topic, in the order of last use."""

    def __init__(self, cursors: Iterable[NamedCursor] = ()) -> None:
        self._cursors = OrderedDict((one.name, one) for one in cursors)

    def __len__(self) -> int:
        return len(self._cursors)

    def __contains__(self, name: str) -> bool:
        return name in self._cursors

    def set(self, cursor: NamedCursor) -> None:
        if cursor.name not in self._cursors and len(self._cursors) >= CURSORS_MOST:
            raise TooManyCursors(f"a topic has at most {CURSORS_MOST} named cursors")
        self._cursors[cursor.name] = cursor
        self._cursors.move_to_end(cursor.name)

    def use(self, name: str, now: int) -> NamedCursor | None:
        """The cursor, whose owner has just asked for it; None if there is none."""
        cursor = self._cursors.get(name)
        if cursor is not None:
            cursor = NamedCursor(name, cursor.log_id, cursor.seq, now)
            self.set(cursor)
        return cursor

    def delete(self, name: str) -> NamedCursor | None:
        return self._cursors.pop(name, None)

    def expire(self, before: int) -> list[NamedCursor]:
        """Take out those that were not used since."""
        gone = []
        while self._cursors and next(iter(self._cursors.values())).used < before:
            gone.append(self._cursors.popitem(last=False)[1])
        return gone

    def end_at(self, log_id: bytes, seq: int) -> None:
        """Records from `seq` on belong to the incarnation `log_id`, and to no other."""
        for name, one in self._cursors.items():
            if one.log_id != log_id and one.seq > seq:
                self._cursors[name] = NamedCursor(name, one.log_id, seq, one.used)

    def held(self, first_seq: int) -> int | None:
        """The first record that some cursor has still to read, out of those from `first_seq` on;
        None: of these none is needed."""
        return min((one.seq for one in self._cursors.values() if one.seq >= first_seq), default=None)

    def state(self) -> tuple[NamedCursor, ...]:
        return tuple(self._cursors.values())

    def facts(self, first_seq: int, next_seq: int, now: int) -> list[dict[str, Any]]:
        """What an operator sees of them, by name. Overrun is one whose records are gone."""
        return [
            {
                "name": one.name,
                "log_id": one.log_id.hex(),
                "seq": one.seq,
                "lag": max(0, next_seq - max(one.seq, first_seq)),
                "age": max(0, now - one.used) // SECOND,
                "overrun": one.seq < first_seq,
            }
            for one in sorted(self._cursors.values(), key=lambda one: one.name)
        ]
