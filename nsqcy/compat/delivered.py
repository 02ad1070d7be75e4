"""What messages of pynsq and of gnsq have in common: whether and by whom one is answered."""

from nsqcy import client


class Delivered:
    """A message that the client has delivered, or that nobody has."""

    def __init__(self) -> None:
        self._delivered: client.Message | None = None
        self._is_async = False
        self._has_responded = False

    def enable_async(self) -> None:
        """It is answered later, and not by its handler's end."""
        self._is_async = True

    def is_async(self) -> bool:
        return self._is_async

    def has_responded(self) -> bool:
        return self._has_responded
