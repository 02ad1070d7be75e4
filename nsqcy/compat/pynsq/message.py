"""A message with pynsq's interface for handlers."""

from typing import Any, Self

from nsqcy import client
from nsqcy.compat.delivered_message import Delivered
from nsqcy.compat.pynsq.event import FINISH, REQUEUE, TOUCH, EventedMixin


class Message(Delivered, EventedMixin):
    """Calls the listeners of `finish`, `requeue` and `touch` when it is finished, requeued and
    touched. A delivered message also sends the response to nsqd."""

    def __init__(self, id: bytes, body: bytes, timestamp: int, attempts: int) -> None:
        Delivered.__init__(self)
        EventedMixin.__init__(self)
        self.id = id
        self.body = body
        self.timestamp = timestamp
        self.attempts = attempts

    @classmethod
    def of(cls, delivered: client.Message) -> Self:
        """A message that the client has delivered."""
        message = cls(delivered.id, delivered.body, delivered.timestamp, delivered.attempts)
        message._delivered = delivered
        return message

    def finish(self) -> None:
        """Finish the message."""
        self._respond()
        if self._delivered is not None:
            self._delivered.finish()
        self.trigger(FINISH, message=self)

    def requeue(self, **kwargs: Any) -> None:
        """Requeue the message: nsqd redelivers it after `delay` seconds if that is an integer, or
        `time_ms` milliseconds, or the reader's delay for the message's attempts; `backoff=False`
        prevents backoff."""
        delay = kwargs.get("delay")
        if isinstance(delay, int) and delay >= 0:
            kwargs["time_ms"] = delay * 1000
        self._respond()
        if self._delivered is not None:
            time_ms = kwargs.get("time_ms", -1)
            self._delivered.requeue(
                time_ms=time_ms if time_ms >= 0 else None, backoff=kwargs.get("backoff", True)
            )
        self.trigger(REQUEUE, message=self, **kwargs)

    def touch(self) -> None:
        """Restart the message's timeout."""
        assert not self._has_responded
        if self._delivered is not None:
            self._delivered.touch()
        self.trigger(TOUCH, message=self)

    def _respond(self) -> None:
        assert not self._has_responded
        self._has_responded = True
