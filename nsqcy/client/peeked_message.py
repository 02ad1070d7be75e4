"""A message that a program views without consuming it. Pure: created from nsqd's JSON."""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PeekedMessage:
    """A message in a queue, in its state at the time of nsqd's response.

    - id: as `Message.id`, but a str; None if nsqd could not read the message from disk
    - timestamp: when it was published, in nanoseconds since 1970; None like `id`
    - attempts: deliveries so far
    - body: its first 512 KiB; empty if nsqd could not read the message
    - size: bytes of the whole body; None like `id`
    - headers: empty without headers. Those of a dead letter contain its origin and its attempts
      there
    - due: when a deferred message is delivered, in nanoseconds since 1970; otherwise None
    """

    id: str | None
    timestamp: int | None
    attempts: int
    body: bytes
    size: int | None
    headers: Mapping[str, str]
    due: int | None = None

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "PeekedMessage":
        """Create a message from an answer to /channel/peek."""
        return cls(
            answer["id"],
            answer["timestamp"],
            answer["attempts"],
            b64decode(answer["body"] or ""),
            answer["size"],
            answer["headers"] or {},
            answer.get("due"),
        )
