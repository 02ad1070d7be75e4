"""Log lines for topics whose files cannot be read, limited in number like those for writes.

The caller passes the time. Each worker has one ReadFailures.
"""

import errno

from nsqcy.logging import events
from nsqcy.storage.write_failures import WriteFailures, advice


class ReadFailures(WriteFailures):
    """A worker's log lines: one when a topic cannot be read, repeated after REPEAT while the
    failure persists, and one when reads succeed again."""

    def recovered(self, topic: str) -> None:
        """Log that a topic can be read again, if its failure was logged."""
        if topic in self._failing:
            super().recovered(topic)

    def _advice(self, error: int) -> str:
        if error == errno.ENOENT:
            return "restore the file, or restart nsqd to continue without it"
        return advice(error)

    def _say_failed(self, topic: str, verb: str, path: str, text: str, remedy: str) -> None:
        events.read_failed(self._log, verb, remedy, topic=topic, path=path, error=text)

    def _say_recovered(self, topic: str) -> None:
        events.read_recovered(self._log, topic=topic)
