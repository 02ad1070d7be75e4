"""A message with gnsq's interface for handlers."""

from functools import cached_property
from typing import Self

from nsqcy import client
from nsqcy.compat.delivered_message import Delivered
from nsqcy.compat.gnsq.errors import NSQException
from nsqcy.compat.gnsq.signals import Signal


class Message(Delivered):
    """Sends on_finish, on_requeue(timeout, backoff) and on_touch when it is finished, requeued and
    touched. A delivered message also sends the response to nsqd."""

    def __init__(self, timestamp: int, attempts: int, id: bytes, body: bytes) -> None:
        super().__init__()
        self.timestamp = timestamp
        self.attempts = attempts
        self.id = id
        self.body = body

    @classmethod
    def of(cls, delivered: client.Message) -> Self:
        """A message that the client has delivered."""
        message = cls(delivered.timestamp, delivered.attempts, delivered.id, delivered.body)
        message._delivered = delivered
        return message

    @cached_property
    def on_finish(self) -> Signal:
        return Signal("Sent when the message has been finished.")

    @cached_property
    def on_requeue(self) -> Signal:
        return Signal("Sent when the message has been requeued.")

    @cached_property
    def on_touch(self) -> Signal:
        return Signal("Sent when the message has been touched.")

    def finish(self) -> None:
        """Finish the message."""
        self._respond()
        if self._delivered is not None:
            self._delivered.finish()
        self.on_finish.send(self)

    def requeue(self, time_ms: int = 0, backoff: bool = True) -> None:
        """Requeue the message: nsqd redelivers it after `time_ms` milliseconds."""
        self._respond()
        if self._delivered is not None:
            self._delivered.requeue(time_ms=time_ms, backoff=backoff)
        self.on_requeue.send(self, timeout=time_ms, backoff=backoff)

    def touch(self) -> None:
        """Restart the message's timeout."""
        self._check()
        if self._delivered is not None:
            self._delivered.touch()
        self.on_touch.send(self)

    def _respond(self) -> None:
        self._check()
        self._has_responded = True

    def _check(self) -> None:
        if self._has_responded:
            raise NSQException("already responded")
