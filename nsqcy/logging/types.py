"""The log type: the log of nsqcy.logging.logger, or a test's own."""

from typing import Protocol


class Lines(Protocol):
    """Receives log lines. Logs without structured output ignore keyword fields."""

    def info(self, text: str, /, **fields: object) -> object: ...
    def warn(self, text: str, /, **fields: object) -> object: ...
    def error(self, text: str, /, **fields: object) -> object: ...


class DetailedLines(Lines, Protocol):
    """Receives debug lines as well."""

    def debug(self, text: str, /, **fields: object) -> object: ...


class FatalLines(Lines, Protocol):
    """Receives the last line of a process that fails as well."""

    def fatal(self, text: str, /, **fields: object) -> object: ...
