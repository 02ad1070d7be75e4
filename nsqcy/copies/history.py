"""Epochs of the records of a log, and the end of the part that two copies have in common.

Owns no records: a history only says which records were appended in which epoch.
"""

from bisect import bisect_right
from collections.abc import Iterable

Mark = tuple[int, int]
"""An epoch, and the sequence number of its first record."""


class History:
    """Epochs of a log's records, as ascending marks.

    A record is identified by its sequence number and its epoch: an epoch has one owner, which
    appends each sequence number at most once.
    """

    __slots__ = ("marks",)

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self.marks = list(marks)

    def begin(self, epoch: int, seq: int) -> None:
        """Append the records from `seq` on in `epoch`."""
        if self.marks and self.marks[-1][0] == epoch:
            return
        self.cut(seq)
        self.marks.append((epoch, seq))

    def cut(self, end: int) -> None:
        """Forget the epochs of the records from `end` on."""
        while self.marks and self.marks[-1][1] >= end:
            self.marks.pop()

    def common_end(self, end: int, other: "History", other_end: int) -> int:
        """Return the sequence number before which both copies have the same records.

        The copies end before `end` and `other_end`. If a record is the same in both, so are all
        records before it, because a copy accepts the records of an epoch only after it has cut
        what the epoch's owner did not have.
        """
        common = min(end, other_end)
        while common > 0:
            epoch, first = self._mark_before(common)
            other_epoch, other_first = other._mark_before(common)
            if epoch == other_epoch:
                return common
            common = first if epoch > other_epoch else other_first
        return 0

    def _mark_before(self, seq: int) -> Mark:
        index = bisect_right(self.marks, seq - 1, key=lambda mark: mark[1])
        return self.marks[index - 1] if index else (0, 0)
