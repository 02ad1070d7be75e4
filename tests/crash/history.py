"""Events of one run, as seen by clients of a daemon whose processes were killed.

Times are from one monotonic clock, in seconds. A message is identified by a text that no other
message of the run has.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Attempted(NamedTuple):
    """A publish was sent. No channel may deliver its message before `due`."""

    at: float
    topic: str
    message: str
    due: float = 0.0


class Answered(NamedTuple):
    """A publish was answered. The outcome for a message without this event is unknown."""

    at: float
    topic: str
    message: str
    accepted: bool = True


class Received(NamedTuple):
    """A message was delivered before `at`."""

    at: float
    topic: str
    channel: str
    message: str


class Finished(NamedTuple):
    """FIN was sent."""

    at: float
    topic: str
    channel: str
    message: str


class Requeued(NamedTuple):
    """REQ was sent. Unless a process dies, the message is not delivered again before `due`."""

    at: float
    topic: str
    channel: str
    message: str
    due: float = 0.0


class Refused(NamedTuple):
    """A FIN or REQ sent at `sent` arrived too late: the message was no longer in flight."""

    at: float
    topic: str
    channel: str
    message: str
    sent: float


class Created(NamedTuple):
    """A channel's creation was answered."""

    at: float
    topic: str
    channel: str


class Died(NamedTuple):
    """Processes ended between `began` and `at`. `topics` are the topics that they owned; `saved`
    means that they saved these topics first."""

    at: float
    began: float
    topics: frozenset[str]
    saved: bool = False


Event = Attempted | Answered | Received | Finished | Requeued | Refused | Created | Died


def story(events: Iterable[Event], topic: str, message: str) -> str:
    """Return all events of a message, and all deaths, as readable text."""
    told = [
        event
        for event in sorted(events, key=lambda event: event.at)
        if isinstance(event, Died)
        or (event.topic == topic and getattr(event, "message", message) == message)
    ]
    return "\n".join(f"  {event.at:.6f} {_words(event)}" for event in told)


def _words(event: Event) -> str:
    fields = event._asdict()
    del fields["at"]
    if isinstance(event, Died):
        fields["topics"] = sorted(event.topics)
    return f"{type(event).__name__} " + " ".join(f"{k}={v}" for k, v in fields.items())
