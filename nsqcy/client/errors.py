"""The client's exceptions, all subclasses of Error."""

from nsqcy.client.arguments import check_arguments
from nsqcy.client.codec import AlreadyAnswered, ProtocolError
from nsqcy.client.times import Duration, seconds
from nsqcy.errors import NON_FATAL_CODES, NsqError, RequestError
from nsqcy.names import printable

__all__ = [
    "AlreadyAnswered",
    "Closed",
    "ConnectionFailed",
    "DeadLetter",
    "DecodeError",
    "Error",
    "NoConnection",
    "NsqdError",
    "ProtocolError",
    "PublishTimeout",
    "RequestError",
    "Requeue",
]

Error = NsqError

# Remedies, keyed by words in nsqd's error description.
_LIMITS = {
    "DPUB timeout": "nsqd's options --max-defer-timeout and --max-req-timeout limit the delay; "
    "max_defer_timeout in a topic's policy overrides them",
    "message too big": "nsqd's option --max-msg-size limits a message; "
    "max_msg_size in a topic's policy overrides it",
    "body too big": "nsqd's option --max-body-size limits a command with all its messages",
}


class NsqdError(Error):
    """An error response from nsqd.

    `code` is its error code, e.g. "E_BAD_TOPIC", and `description` the text after the code. If
    `fatal` is true, nsqd closes the connection. If a limit is exceeded, a note mentions the option
    that sets it.
    """

    def __init__(self, text: str | bytes) -> None:
        text = printable(text)
        super().__init__(text)
        self.code, _, self.description = text.partition(" ")
        self.fatal = self.code not in NON_FATAL_CODES
        for words, advice in _LIMITS.items():
            if words in self.description:
                self.add_note(advice)


class ConnectionFailed(Error):
    """A connection could not be established, or was lost.

    nsqd may or may not have executed the commands to which it had not responded.
    """


class NoConnection(ConnectionFailed):
    """No nsqd could be reached, so nothing was published."""


class PublishTimeout(Error):
    """nsqd did not respond in time. The message may or may not have been published."""


class Closed(Error):
    """The consumer or producer has been closed."""


class DecodeError(Error):
    """The codec cannot decode a body, or it is not of the type that the handler declares.

    `__cause__` is the codec's own exception.
    """


class Verdict(Error):
    """Raised by a handler to choose the answer to its message.

    If it is raised because of another exception (`raise Requeue() from error`, or inside an
    `except` block), that exception counts as the failure: it is logged, and recorded in the
    message's span. With `from None`, there is no failure.
    """

    @property
    def failure(self) -> BaseException | None:
        """Return the exception that led to this one, if any."""
        if self.__suppress_context__:
            return self.__cause__
        return self.__context__


class DeadLetter(Verdict):
    """Raised by a handler to move its message to the dead-letter topic at once.

    nsqd moves the message to the `dead_letter_topic` of the channel's policy. If the consumer has
    the option `dead_letter_topic`, it publishes the message there and then finishes it. Without
    either, the message is requeued, and the client logs why. `reason` becomes a header of the dead
    letter; the default is the exception that led to this one.
    """

    def __init__(self, reason: str = "") -> None:
        check_arguments(reason=reason)
        super().__init__(reason)
        self._reason = reason

    @property
    def reason(self) -> str:
        """Return the text for the header."""
        if self._reason or self.failure is None:
            return self._reason
        return f"{type(self.failure).__name__}: {self.failure}"


class Requeue(Verdict):
    """Raised by a handler to requeue its message.

    nsqd redelivers the message after `delay`, in seconds or as a timedelta; the default is the
    consumer's delay for the message's number of attempts. `backoff` decides whether
    the consumer backs off; the default is the `backoff_on_requeue` option. Raises ValueError for an
    invalid `delay`.
    """

    def __init__(self, delay: Duration | None = None, *, backoff: bool | None = None) -> None:
        check_arguments(backoff=backoff)
        delay = seconds(delay, "delay")
        super().__init__(delay)
        self.delay = delay
        self.backoff = backoff
