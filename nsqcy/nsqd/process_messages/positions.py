"""Positions in a topic's log at which a channel begins or continues: `start=` and `to=`.

A pure module: it parses text, and the topic decides the meaning of a position.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

ALLOWED = "earliest, latest, a sequence number, or a time such as 2026-01-31T12:00:00Z"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_POSITION = (1 << 63) - 1


class Place(NamedTuple):
    """A record in the log: the record with a sequence number, or the first record published at or
    after a time (ns since 1970)."""

    seq: int = 0
    time: int | None = None


EARLIEST = Place(0)
LATEST = Place(_MAX_POSITION)


def parse(text: str) -> Place:
    """Parse a position. Raises ValueError for any other text."""
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if text.isascii() and text.isdigit() and len(text) < 20:
        return Place(min(int(text), _MAX_POSITION))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a time zone")
    return Place(time=(moment - _EPOCH) // timedelta(microseconds=1) * 1000)
