"""The common base class of pynsq's and gnsq's messages: whether and how a message was answered."""

from nsqcy import client


class Delivered:
    """A message that the client has delivered, or one that the program has created."""

    def __init__(self) -> None:
        self._delivered: client.Message | None = None
        self._is_async = False
        self._has_responded = False

    def enable_async(self) -> None:
        """Keep the message unanswered when its handler returns."""
        self._is_async = True

    def is_async(self) -> bool:
        return self._is_async

    def has_responded(self) -> bool:
        return self._has_responded
