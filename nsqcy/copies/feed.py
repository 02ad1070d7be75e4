"""The stream to one holder, as its owner sees it: what the holder lacks, and what it confirmed."""

from enum import IntEnum

from nsqcy.copies.history import History
from nsqcy.copies.messages import Align, Extent, Filled, Offer, Records
from nsqcy.copies.ports import Copy, Host, Limits


class Status(IntEnum):
    CLOSED = 0
    OPENING = 1
    OFFERED = 2
    FILLING = 3
    LIVE = 4


class Feed:
    """Stream to a holder. Fills the copy first; then it carries each entry as it is appended."""

    __slots__ = (
        "confirmed",
        "cursors",
        "filling_since",
        "heard",
        "node",
        "progress",
        "refused",
        "status",
        "unacknowledged",
    )

    def __init__(self, node: str, now: float) -> None:
        self.node = node
        self.status = Status.CLOSED
        self.confirmed = -1
        self.heard = now
        self.progress = now
        """Time of the last progress: a confirmation, or being up to date."""
        self.filling_since = now
        self.refused = ""
        """Reason for which the holder left."""
        self.cursors: dict[str, int] = {}
        self.unacknowledged = 0

    def open(self, group_id: str, host: Host) -> None:
        self.status = Status.OPENING
        host.open(self.node, group_id)

    def opened(self, group_id: str, epoch: int, host: Host, now: float) -> None:
        self.status = Status.OFFERED
        self.heard = now
        host.send(self.node, group_id, Offer(epoch))

    def closed(self, now: float) -> None:
        if self.status >= Status.FILLING:
            self.progress = now
        self.status = Status.CLOSED

    def align(
        self, group_id: str, copy: Copy, theirs: dict[str, Extent], host: Host, now: float
    ) -> None:
        """Cut what the holder must not have, and begin to send what it lacks."""
        self.status = Status.FILLING
        self.progress = self.filling_since = now
        self.refused = ""
        self.cursors = {}
        self.unacknowledged = 0
        for log, mine in copy.logs().items():
            end = mine.first
            extent = theirs.get(log)
            if extent is not None:
                common = History(mine.marks).common_end(mine.end, History(extent.marks), extent.end)
                end = max(end, common)
            host.send(self.node, group_id, Align(log, mine.first, end))
            self.cursors[log] = end

    def fill(self, group_id: str, copy: Copy, position: int, host: Host, limits: Limits) -> None:
        """Send records within the window, or make the feed live if the holder lacks none."""
        logs = copy.logs()
        while self.unacknowledged < limits.fill_window:
            for log, extent in logs.items():
                cursor = max(self.cursors.get(log, extent.first), extent.first)
                if cursor < extent.end:
                    break
            else:
                self._finish(group_id, copy, position, host)
                return
            if log not in self.cursors:
                host.send(self.node, group_id, Align(log, extent.first, cursor))
            epoch, records = copy.read(log, cursor, limits.fill_records)
            host.send(self.node, group_id, Records(log, epoch, cursor, records, -1))
            self.cursors[log] = cursor + len(records)
            self.unacknowledged += 1

    def _finish(self, group_id: str, copy: Copy, position: int, host: Host) -> None:
        if self.unacknowledged:
            return
        self.status = Status.LIVE
        host.send(self.node, group_id, Filled(copy.states(), position))

    def has_failed(self, position: int, now: float, limits: Limits) -> bool:
        """Whether the others should stop waiting for the holder."""
        if self.refused in ("full", "failing"):
            return True
        if self.status == Status.FILLING and now - self.filling_since > limits.fill_timeout:
            return True
        if self.status == Status.LIVE and self.confirmed == position:
            return False
        return now - self.progress > limits.copy_timeout
