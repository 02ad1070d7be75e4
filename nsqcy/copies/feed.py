"""The stream to one holder, as its owner sees it: what the holder lacks and has confirmed."""

from collections.abc import Mapping
from enum import IntEnum

from nsqcy.copies.messages import Align, Change, Delete, Extent, Filled, Offer, Rename, Write
from nsqcy.copies.ports import Copy, Host, Limits

FAILURES = frozenset({"full", "failing", "leaving"})
"""Reasons for which a holder is replaced at once."""


class Status(IntEnum):
    CLOSED = 0
    OPENING = 1
    OFFERED = 2
    FILLING = 3
    LIVE = 4


class Feed:
    """Stream to a holder. It first fills the copy, then carries each change as it is made."""

    __slots__ = (
        "confirmed",
        "filling_since",
        "group_id",
        "heard",
        "host",
        "node",
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
        self.refused = ""
        """Why the holder left; empty once it confirms again."""
        self.unfilled: dict[str, None] = {}
        """Files that the holder may have only in part."""
        self.sent: dict[str, int] = {}
        """Size up to which the holder has a file, or will have it once it has received what was
        sent."""
        self.unacknowledged = 0

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

    def align(self, copy: Copy, theirs: Mapping[str, Extent], now: float) -> None:
        """Truncate the holder's files to the part in common, and begin to send what it lacks."""
        self.status = Status.FILLING
        self.progress = self.filling_since = now
        self.unacknowledged = 0
        self.unfilled = {}
        self.sent = {}
        for path, mine in copy.files().items():
            common = 0
            extent = theirs.get(path)
            if extent is not None and mine.identity is not None:
                common = min(mine.size, extent.size) if extent.identity == mine.identity else 0
            self._restart(path, common)

    def changed(self, change: Change) -> None:
        """Send a change, or note that a file must be filled again."""
        if self.status == Status.LIVE:
            self._send(change)
        elif self.status == Status.FILLING:
            self._refill(change)

    def fill(self, copy: Copy, position: int, limits: Limits) -> None:
        """Send data within the window, or make the feed live if nothing is missing."""
        while self.unfilled and self.unacknowledged < limits.fill_window:
            path = next(iter(self.unfilled))
            if path not in self.sent:
                self._restart(path, 0)
            size, begin = copy.size(path), self.sent[path]
            if begin >= size:
                del self.unfilled[path]
                continue
            data, end = copy.read(path, begin, limits.fill_bytes)
            self._send(Write(path, begin, data, -1))
            self.sent[path] = end
            self.unacknowledged += 1
        if not self.unfilled and not self.unacknowledged:
            self._finish(position)

    def has_failed(self, position: int, now: float, limits: Limits) -> bool:
        """Whether the other nodes should stop waiting for the holder."""
        if self.refused in FAILURES:
            return True
        if self.status == Status.FILLING and now - self.filling_since > limits.fill_timeout:
            return True
        if self.status == Status.LIVE and self.confirmed == position:
            return False
        return now - self.progress > limits.copy_timeout

    # -- inside

    def _send(self, message: Offer | Align | Change | Filled) -> None:
        self.host.send(self.node, self.group_id, message)

    def _restart(self, path: str, size: int) -> None:
        """Fill a file from this size on."""
        self._send(Align(path, size))
        self.sent[path] = size
        self.unfilled[path] = None

    def _refill(self, change: Change) -> None:
        path = change.path
        match change:
            case Write(offset=offset):
                # Only data beyond the sent size has yet to be read.
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
        self._send(Filled(list(self.sent), position))
        self.sent = {}
