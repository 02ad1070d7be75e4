"""What a program that uses the client may have to catch; all of it is an Error."""

from nsqcy.client.codec import AlreadyAnswered, ProtocolError
from nsqcy.errors import NON_FATAL_CODES, NsqError

__all__ = [
    "AlreadyAnswered",
    "Closed",
    "ConnectionFailed",
    "Error",
    "NoConnection",
    "NsqdError",
    "ProtocolError",
    "PublishTimeout",
    "Requeue",
]

Error = NsqError

MAX_DELAY = 1e9  # seconds


class NsqdError(Error):
    """nsqd refused something: `code`, e.g. "E_BAD_TOPIC", and what it says about it. After a
    `fatal` one it closes the connection."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code, _, self.description = text.partition(" ")
        self.fatal = self.code not in NON_FATAL_CODES


class ConnectionFailed(Error):
    """A connection could not be made, or was lost. What was outstanding on it may or may not have
    been done."""


class NoConnection(Error):
    """There is no nsqd to publish to."""


class PublishTimeout(Error):
    """No OK in time. The message may or may not have been published."""


class Closed(Error):
    """The consumer or producer has been closed."""


class Requeue(Error):
    """Raised by a handler to have its message delivered again after `delay` seconds (by default
    the consumer's delay for its attempts), with or without backoff (by default as the consumer's
    backoff_on_requeue says)."""

    def __init__(self, delay: float | None = None, *, backoff: bool | None = None) -> None:
        if delay is not None and not 0 <= delay < MAX_DELAY:
            raise ValueError(f"a message cannot be requeued by {delay} s")
        super().__init__(delay)
        self.delay = delay
        self.backoff = backoff
