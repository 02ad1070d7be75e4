"""Listeners for named events."""

from collections.abc import Callable
from typing import Any

__all__ = [
    "AUTH",
    "AUTH_RESPONSE",
    "BACKOFF",
    "CLOSE",
    "CONNECT",
    "CONTINUE",
    "DATA",
    "ERROR",
    "FINISH",
    "HEARTBEAT",
    "IDENTIFY",
    "IDENTIFY_RESPONSE",
    "MESSAGE",
    "READY",
    "REQUEUE",
    "RESPONSE",
    "RESUME",
    "TOUCH",
    "DuplicateListenerError",
    "EventedMixin",
    "InvalidListenerError",
]

CONNECT, CLOSE, DATA, ERROR, IDENTIFY = "connect", "close", "data", "error", "identify"
READY, RESPONSE, MESSAGE, HEARTBEAT = "ready", "response", "message", "heartbeat"
BACKOFF, CONTINUE, RESUME = "backoff", "continue", "resume"
REQUEUE, TOUCH, FINISH = "requeue", "touch", "finish"
AUTH, AUTH_RESPONSE, IDENTIFY_RESPONSE = "auth", "auth_response", "identify_response"


class DuplicateListenerError(Exception):
    """The listener is already registered."""


class InvalidListenerError(Exception):
    """The listener is not registered."""


class EventedMixin:
    """Has listeners."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[..., object]]] = {}

    def on(self, name: str, callback: Callable[..., object]) -> None:
        """Call the listener whenever this event occurs."""
        assert callable(callback), "callback is not callable"
        listeners = self._listeners.setdefault(name, [])
        if callback in listeners:
            raise DuplicateListenerError
        listeners.append(callback)

    def off(self, name: str, callback: Callable[..., object]) -> None:
        """Stop calling the listener."""
        if callback not in self._listeners.get(name, ()):
            raise InvalidListenerError
        self._listeners[name].remove(callback)

    def trigger(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Call the listeners for this event."""
        for listener in list(self._listeners.get(name, ())):
            listener(*args, **kwargs)
