"""The owner's end of the stream to one holder. Tracks which changes the holder lacks, and which it
has confirmed."""

from collections.abc import Callable, Mapping
from enum import IntEnum

from nsqcy.copies.messages import Align, Change, Delete, Extent, Filled, Offer, Rename, Write
from nsqcy.copies.ports import Copy, Host, Limits

FAILURES = frozenset({"full", "failing", "leaving"})
"""Reasons to replace a holder immediately."""
REPLACED = "replaced"
"""The reason of a holder that will be back, because another process takes its place."""


class Status(IntEnum):
    CLOSED = 0
    OPENING = 1
    OFFERED = 2
    FILLING = 3
    LIVE = 4


class Feed:
    """Stream to a holder. It first fills the copy, then carries each change as it is made."""

    __slots__ = (
        "answers",
        "begun",
        "confirmed",
        "filling_since",
        "group_id",
        "heard",
        "host",
        "is_expected",
        "mended",
        "mending",
        "mends",
        "node",
        "postponed",
        "progress",
        "refused",
        "sent",
        "status",
        "unacknowledged",
        "unfilled",
    )

    def __init__(self, node: str, group_id: str, host: Host, now: float) -> None:
        self.node = node
        self.group_id = group_id
        self.host = host
        self.status = Status.CLOSED
        self.confirmed = -1
        self.heard = now
        self.progress = now
        """Time of the last progress: a confirmation, or being up to date."""
        self.filling_since = now
        self.answers = False
        """Whether the holder answers a Fetch."""
        self.refused = ""
        """Why the holder left; empty once it confirms again."""
        self.is_expected = False
        """Whether the holder counts as responding until it is back, because its process is being
        replaced."""
        self.unfilled: dict[str, None] = {}
        """Files that the holder may have only in part."""
        self.sent: dict[str, int] = {}
        """Size up to which the holder has a file, or will have it once it has received what was
        sent."""
        self.begun: dict[str, int] = {}
        """Size of the part of each file that the holder had before the fill."""
        self.unacknowledged = 0
        self.mends: dict[str, int] = {}
        """For each file, the number of local repairs before sending began."""
        self.mending: set[str] = set()
        """Files that are being verified after they were sent."""
        self.mended: set[str] = set()
        self.postponed: set[str] = set()
        """Files whose only intact copy may be on a node that does not respond."""

    def open(self) -> None:
        self.status = Status.OPENING
        self.host.open(self.node, self.group_id)

    def opened(self, epoch: int, now: float) -> None:
        self.status = Status.OFFERED
        self.heard = now
        self._send(Offer(epoch))

    def closed(self, now: float) -> None:
        if self.status >= Status.FILLING:
            self.progress = now
        self.status = Status.CLOSED
        self.answers = False
        self.mending = set()
        self.postponed = set()

    def align(self, copy: Copy, theirs: Mapping[str, Extent], now: float) -> None:
        """Truncate the holder's files to the common part, and begin to send the rest."""
        self.status = Status.FILLING
        self.progress = self.filling_since = now
        self.unacknowledged = 0
        self.unfilled = {}
        self.sent = {}
        self.begun = {}
        self.mends = {}
        self.mending = set()
        self.mended = set()
        self.postponed = set()
        for path, mine in copy.files().items():
            common = 0
            extent = theirs.get(path)
            if extent is not None and mine.identity is not None:
                common = min(mine.size, extent.size) if extent.identity == mine.identity else 0
            self._restart(path, common, copy)

    def changed(self, change: Change) -> None:
        """Send a change, or record that a file must be filled again."""
        if self.status == Status.LIVE:
            self.host.send(self.node, self.group_id, change)
        elif self.status == Status.FILLING:
            self._refill(change)

    def fill(
        self, copy: Copy, position: int, limits: Limits, may_use: Callable[[bool], bool]
    ) -> None:
        """Send data within the window, or make the feed live if nothing is missing.

        A file is verified after it was sent, so that damage does not spread: if a part had to be
        repaired, the file is sent again. may_use: called after each attempt, with True if it is
        final; returns whether the holder may use the file.
        """
        while max(self.unacknowledged, len(self.mending)) < limits.fill_window:
            waiting = self.mending | self.postponed
            path = next((path for path in self.unfilled if path not in waiting), None)
            if path is None:
                break
            self._fill_file(path, copy, limits, may_use)
        if not self.unfilled and not self.unacknowledged:
            self._finish(position)

    def _fill_file(
        self, path: str, copy: Copy, limits: Limits, may_use: Callable[[bool], bool]
    ) -> None:
        if path not in self.sent:
            self._restart(path, 0, copy)
        while self.unacknowledged < limits.fill_window:
            size, begin = copy.size(path), self.sent[path]
            if begin >= size:
                if path in self.mended or begin == self.begun[path]:
                    del self.unfilled[path]
                else:
                    self._mend(path, copy, may_use)
                return
            data, end = copy.read(path, begin, limits.fill_bytes)
            self._send(Write(path, begin, data, -1))
            self.sent[path] = end
            self.unacknowledged += 1

    def has_failed(self, position: int, now: float, limits: Limits) -> bool:
        """Return whether the other nodes should stop waiting for the holder."""
        if self.refused in FAILURES:
            return True
        if self.status == Status.FILLING and now - self.filling_since > limits.fill_timeout:
            return True
        if self.status == Status.LIVE and self.confirmed == position:
            return False
        return not self.mending and now - self.progress > limits.copy_timeout

    # -- inside

    def _mend(self, path: str, copy: Copy, may_use: Callable[[bool], bool]) -> None:
        fill = self.mending
        fill.add(path)

        def done(is_final: bool) -> None:
            if self.mending is not fill:
                return
            fill.discard(path)
            if path not in self.sent:
                return
            if copy.mends(path) != self.mends[path]:
                self._restart(path, self.begun[path], copy)
            elif may_use(is_final):
                self.mended.add(path)
                self._send(Align(path, self.sent[path]))
            else:
                self.postponed.add(path)

        copy.mend(path, done)

    def _send(self, message: Offer | Align | Change | Filled) -> None:
        self.host.send(self.node, self.group_id, message)

    def _restart(self, path: str, size: int, copy: Copy) -> None:
        """Fill a file from this size on."""
        self._send(Align(path, size))
        self.sent[path] = self.begun[path] = size
        self.mends[path] = copy.mends(path)
        self.mended.discard(path)
        self.unfilled[path] = None

    def _refill(self, change: Change) -> None:
        path = change.path
        match change:
            case Write(offset=offset):
                # Only data beyond the sent size still has to be read.
                if offset < self.sent.get(path, 0):
                    del self.sent[path]
                self.unfilled[path] = None
            case Rename(to=to):
                self._forget(path)
                self.sent.pop(to, None)
                self.unfilled[to] = None
            case Delete():
                self._forget(path)
            case _:
                self.sent.pop(path, None)
                self.unfilled[path] = None

    def _forget(self, path: str) -> None:
        self.sent.pop(path, None)
        self.unfilled.pop(path, None)

    def _finish(self, position: int) -> None:
        self.status = Status.LIVE
        self.is_expected = False
        self._send(Filled(list(self.sent), position))
        self.sent = {}
