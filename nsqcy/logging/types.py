"""The log type: the log of nsqcy.logging.logger, or a test's own."""

from typing import Protocol


class Lines(Protocol):
    """Log that receives lines. Logs without structured output ignore keyword fields."""

    def info(self, text: str, /, **fields: object) -> object: ...
    def warn(self, text: str, /, **fields: object) -> object: ...
    def error(self, text: str, /, **fields: object) -> object: ...


class DetailedLines(Lines, Protocol):
    """Log that also receives debug lines."""

    def debug(self, text: str, /, **fields: object) -> object: ...


class FatalLines(Lines, Protocol):
    """Log that also receives the last line of a process that fails."""

    def fatal(self, text: str, /, **fields: object) -> object: ...
