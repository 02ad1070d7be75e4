"""The client's log lines on stderr, in the format of NSQ's tools."""

import logging

from nsqcy.tools.common import say

LEVELS = {
    logging.DEBUG: "DBG",
    logging.INFO: "INF",
    logging.WARNING: "WRN",
    logging.ERROR: "ERR",
}


class ClientLines(logging.Handler):
    """Log handler that prints the level, the consumer's number and the text, as NSQ's tools do."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._log = logging.getLogger("nsqcy.client")
        self._names: list[str] = []

    def introduce(self, name: str) -> None:
        """Assign the next number to this consumer or producer."""
        self._names.append(name)

    def attach(self) -> None:
        """Send the client's log records only to this handler from now on."""
        self._log.addHandler(self)
        self._log.propagate = False

    def detach(self) -> None:
        self._log.removeHandler(self)
        self._log.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        name = text[1:].partition("]")[0]
        number = self._names.index(name) + 1 if name in self._names else 0
        self.tell(record.levelno, number, text)

    @staticmethod
    def tell(level: int, number: int, text: str) -> None:
        say(f"{LEVELS.get(level, 'ERR'):<4} {number:3d} {text}")
