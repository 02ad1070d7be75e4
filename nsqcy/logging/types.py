"""The type of a log: nsqcy.logging.logger's, or a test's own."""

from typing import Protocol


class Lines(Protocol):
    """Where lines go. Keyword fields are for logs that have a place for them."""

    def info(self, text: str, /, **fields: object) -> object: ...
    def warn(self, text: str, /, **fields: object) -> object: ...
    def error(self, text: str, /, **fields: object) -> object: ...
