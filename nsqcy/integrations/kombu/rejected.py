"""Messages that a program has received but not answered, and their dead letters.

Owns the names of the headers of a dead letter. They are nsqd's headers, so `redrive` can return a
dead letter to the channel that it came from.
"""

from dataclasses import dataclass

from nsqcy.client import Message
from nsqcy.integrations.kombu.payloads import encoded, payload_of
from nsqcy.integrations.kombu.topics import Source
from nsqcy.names import printable

ERROR_HEADER = "nsqcy_error"  # reason why a task failed


@dataclass(frozen=True, slots=True)
class Unacked:
    """An unanswered message, and its source."""

    message: Message
    queue: str
    source: Source

    def dead_letter(self, error: str | None) -> bytes:
        """Return the message's body, with the error in the headers of its task."""
        if error is None:
            return self.message.body
        payload = payload_of(self.message)
        payload["headers"] = (payload.get("headers") or {}) | {ERROR_HEADER: error}
        return encoded(payload)

    def headers(self, error: str | None) -> dict[str, str]:
        """Return the headers with which nsqd describes its own dead letters, the error, and the
        message's key and priority."""
        own = self.message.headers
        found = {name: own[name] for name in ("key", "priority") if name in own} | {
            "origin-topic": self.source.topic,
            "origin-channel": self.source.channel,
            "origin-id": printable(self.message.id),
            "attempts": str(self.message.attempts),
            "first-time": str(self.message.timestamp),
            "reason": "rejected",
        }
        return found if error is None else found | {"error": error}
