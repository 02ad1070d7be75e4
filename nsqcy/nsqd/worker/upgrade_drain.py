"""The end of connections that a pump encodes (nsqd/worker/pump.py), some time after an upgrade.

Chooses the connections to close, and when: over a minute, so that their clients do not all connect
again at once. Owns no clock and no socket. A connection is closed when nothing on it is unanswered
or in flight; a consumer gets no more messages from then on. One that is not quiet after another
minute is closed as it is: what was executed is still answered, and messages in flight time out, as
when a client closes its connection.
"""

from collections.abc import Hashable
from typing import Protocol

SECOND = 1_000_000_000
SPREAD = 60 * SECOND
PATIENCE = 60 * SECOND
# Multiples of the golden ratio's fraction are spread evenly, for any number of connections.
_STEP = 0.6180339887498949


class Connection(Hashable, Protocol):
    """A session, or an HTTP connection."""

    @property
    def closed(self) -> bool: ...

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is unanswered, unsent or in flight."""

    def withdraw(self) -> None:
        """Send no more messages."""

    def end(self) -> None:
        """Execute nothing more, and close once everything is answered."""


class _Entry:
    def __init__(self, since: int, begin: int) -> None:
        self.since = since
        self.begin = begin
        self.has_begun = False


class UpgradeDrain:
    """The pumped connections of one worker. All times are in ns of CLOCK_MONOTONIC, which processes
    share."""

    def __init__(self, delay: int) -> None:
        """delay: from the first replacement of its worker to the end of a connection; 0: never"""
        self._delay = delay
        self._spread = min(SPREAD, delay)
        self._entries: dict[Connection, _Entry] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, connection: Connection, since: int) -> None:
        """Add a connection. since: when its worker was replaced first"""
        self._count += 1
        place = self._count * _STEP % 1
        begin = since + self._delay + int(place * self._spread)
        self._entries[connection] = _Entry(since, begin)

    def since(self, connection: Connection) -> int | None:
        """Return when a connection's worker was replaced first; None if it is not pumped."""
        entry = self._entries.get(connection)
        return None if entry is None else entry.since

    def look(self, now: int) -> int:
        """Close what is due; return the number of connections."""
        count = 0
        for connection, entry in list(self._entries.items()):
            if connection.closed:
                del self._entries[connection]
            elif self._delay and now >= entry.begin:
                count += self._try(connection, entry, now)
        return count

    def _try(self, connection: Connection, entry: _Entry, now: int) -> bool:
        if not entry.has_begun:
            entry.has_begun = True
            connection.withdraw()
        if not (connection.is_quiet or now >= entry.begin + PATIENCE):
            return False
        del self._entries[connection]
        connection.end()
        return True
