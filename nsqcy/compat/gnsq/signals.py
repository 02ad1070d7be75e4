"""Signals with blinker's interface, which gnsq programs use."""

from collections.abc import Callable
from typing import Any, TypeVar

from nsqcy.client.common_interface import refuse_coroutine_functions

Receiver = Callable[..., Any]
R = TypeVar("R", bound=Receiver)
ANY: Any = object()  # any sender


class Signal:
    """Calls its receivers. The signal keeps its receivers, even `weak` ones without other
    references."""

    def __init__(self, doc: str | None = None) -> None:
        self._connected: list[tuple[Receiver, Any]] = []
        self.__doc__ = doc or type(self).__doc__

    def connect(self, receiver: R, sender: Any = ANY, weak: bool = True) -> R:
        """Call the receiver for all senders, or only for this one; may be used as a decorator.
        Raises TypeError for a coroutine function."""
        refuse_coroutine_functions(receiver=receiver)
        if (receiver, sender) not in self._connected:
            self._connected.append((receiver, sender))
        return receiver

    def disconnect(self, receiver: Receiver, sender: Any = ANY) -> None:
        self._connected = [
            (each, of)
            for each, of in self._connected
            if each != receiver or (sender is not ANY and of is not sender)
        ]

    def receivers_for(self, sender: Any) -> list[Receiver]:
        return [each for each, of in self._connected if of is ANY or sender is ANY or of is sender]

    def send(self, sender: Any = None, **about: Any) -> list[tuple[Receiver, Any]]:
        """Call the receivers; return the result of each."""
        return [(each, each(sender, **about)) for each in self.receivers_for(sender)]
