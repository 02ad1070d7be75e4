"""Log lines for topics whose files cannot be read, limited in number like those for writes.

The caller passes the time. Each worker has one ReadFailures.
"""

import errno

from nsqcy.storage.write_failures import WriteFailures, advice


class ReadFailures(WriteFailures):
    """A worker's log lines: one when a topic cannot be read, repeated after REPEAT if that goes on,
    and one when it can be read again."""

    def recovered(self, topic: str) -> None:
        """Log that a topic can be read again, if the log says that it could not be."""
        if topic in self._failing:
            super().recovered(topic)

    def _advice(self, error: int) -> str:
        if error == errno.ENOENT:
            return "restore the file, or restart nsqd to continue without it"
        return advice(error)

    def _say_failed(self, topic: str, verb: str, path: str, text: str, remedy: str) -> None:
        self._log.error(
            f"TOPIC({topic}): cannot {verb} {path}: {text}: {remedy}; {topic} is not delivered"
            " until a read succeeds; nothing is lost",
            event="read_failed",
            topic=topic,
            path=path,
            error=text,
        )

    def _say_recovered(self, topic: str) -> None:
        self._log.info(
            f"TOPIC({topic}): reads succeed again; {topic} is delivered",
            event="read_recovered",
            topic=topic,
        )
