"""Log lines for failed writes to topic files, limited in number no matter how many writes fail.

The caller passes the time. Each worker has one WriteFailures.
"""

import errno
import os

from nsqcy.logging import events
from nsqcy.logging.types import Lines

PERIOD = 60_000_000_000  # ns
REPEAT = 60 * PERIOD  # time between two lines about a persistent failure
LINES = 10  # maximum lines that a worker logs per period

_ADVICE = {
    errno.ENOSPC: "free disk space or enlarge the file system",
    errno.EDQUOT: "free disk space or raise the quota",
    errno.EROFS: "remount the file system read-write",
    errno.EIO: "check the disk and the kernel log",
    errno.EACCES: "check the owner and mode of the data path",
    errno.EPERM: "check the owner and mode of the data path",
    errno.EMFILE: "raise the limit on open files",
    errno.ENFILE: "raise the limit on open files",
    errno.EFBIG: "raise the file size limit",
}


UNWRITABLE = frozenset(_ADVICE)
"""Errors of a disk that permits no writes at the moment. Other errors mean that the path is
wrong."""


def advice(error: int) -> str:
    """Return the remedy for an errno."""
    return _ADVICE.get(error, "check the data path")


class WriteFailures:
    """A worker's log lines: one when a topic's writes begin to fail, repeated after REPEAT, and one
    when they succeed again.

    If writes alternately fail and succeed, the limits are one error per topic per PERIOD, and LINES
    errors per PERIOD.
    """

    def __init__(self, log: Lines) -> None:
        self._log = log
        self._ends = 0  # end of the period
        self._lines = 0  # lines logged in the period
        self._logged: dict[str, int] = {}  # time of the last logged error of each topic
        self._failing: set[str] = set()  # topics whose last line is an error

    def failed(self, now: int, topic: str, verb: str, path: str, error: int) -> bool:
        """Log a failed write, unless the limit is reached; return whether the write was logged.

        ESTALE does not come from the disk: the files now belong to another process.
        """
        if error == errno.ESTALE:
            return False
        if now >= self._ends:
            self._begin(now)
        if self._lines == LINES or self._is_known(now, topic):
            return False
        self._lines += 1
        self._logged[topic] = now
        self._failing.add(topic)
        text = os.strerror(error).lower()
        self._say_failed(topic, verb, path, text, self._advice(error))
        return True

    def recovered(self, topic: str) -> None:
        """Log that writes to a topic succeed again after a logged failure."""
        self._failing.discard(topic)
        self._say_recovered(topic)

    def _advice(self, error: int) -> str:
        return advice(error)

    def _say_failed(self, topic: str, verb: str, path: str, text: str, remedy: str) -> None:
        events.write_failed(self._log, verb, remedy, topic=topic, path=path, error=text)

    def _say_recovered(self, topic: str) -> None:
        events.write_recovered(self._log, topic=topic)

    def _is_known(self, now: int, topic: str) -> bool:
        logged = self._logged.get(topic)
        return logged is not None and now < logged + self._quiet_time(topic)

    def _quiet_time(self, topic: str) -> int:
        return REPEAT if topic in self._failing else PERIOD

    def _begin(self, now: int) -> None:
        self._ends = now + PERIOD
        self._lines = 0
        # This also forgets topics that have been deleted.
        self._logged = {
            topic: at for topic, at in self._logged.items() if self._is_known(now, topic)
        }
        self._failing &= self._logged.keys()
