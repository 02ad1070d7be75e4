"""Where in a topic's log a channel is to begin or to go on: what `start=` and `to=` say.

Pure: reads a text and knows no topic. What it means there is the topic's business.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

ALLOWED = "earliest, latest, a sequence number, or a time such as 2026-01-31T12:00:00Z"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_POSITION = (1 << 63) - 1


class Place(NamedTuple):
    """A record: the one of a sequence number, or else the first that was published at a time (ns
    since 1970) or later."""

    seq: int = 0
    time: int | None = None


EARLIEST = Place(0)
LATEST = Place(_MAX_POSITION)


def parse(text: str) -> Place:
    """ValueError if it is none of those that are allowed."""
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if text.isascii() and text.isdigit() and len(text) < 20:
        return Place(min(int(text), _MAX_POSITION))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without its zone")
    return Place(time=(moment - _EPOCH) // timedelta(microseconds=1) * 1000)
