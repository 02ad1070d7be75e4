"""Log lines for failed writes to topic files, limited in number no matter how many writes fail.

The caller passes the time. Each worker has one WriteFailures.
"""

import errno
import os

from nsqcy.logging.types import Lines

PERIOD = 60_000_000_000  # ns
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


class WriteFailures:
    """A worker's log lines: at most one per topic and PERIOD, and LINES in total per PERIOD."""

    def __init__(self, log: Lines) -> None:
        self._log = log
        self._ends = 0  # end of the period
        self._lines = 0  # lines logged in the period
        self._quiet: dict[str, int] = {}  # when a topic may log its next line

    def failed(self, now: int, topic: str, verb: str, path: str, error: int) -> bool:
        """Log a failed write, unless the limit is reached; return whether the write was logged.

        ESTALE is not the disk's error: the files belong to another process now.
        """
        if error == errno.ESTALE:
            return False
        if now >= self._ends:
            self._begin(now)
        if self._lines == LINES or now < self._quiet.get(topic, 0):
            return False
        self._lines += 1
        self._quiet[topic] = now + PERIOD
        text = os.strerror(error).lower()
        advice = _ADVICE.get(error, "check the data path")
        self._log.error(
            f"TOPIC({topic}): cannot {verb} {path}: {text}: {advice}",
            event="write_failed",
            topic=topic,
            path=path,
            error=text,
        )
        return True

    def recovered(self, topic: str) -> None:
        """Log that writes to a topic succeed again after a logged failure."""
        self._log.info(
            f"TOPIC({topic}): writes succeed again", event="write_recovered", topic=topic
        )

    def _begin(self, now: int) -> None:
        self._ends = now + PERIOD
        self._lines = 0
        self._quiet = {topic: due for topic, due in self._quiet.items() if due > now}
