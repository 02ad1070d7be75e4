"""Positions in a topic's log as people write them: `yesterday`, `-24h`, `2026-11-24 08:00`.

nsqd accepts `earliest`, `latest`, a sequence number or a time in UTC. Times without a zone are
local. Pure, except for now().
"""

import re
from datetime import UTC, datetime, timedelta

from nsqcy.config.durations import MICROSECOND, parse_with_days

ALLOWED = (
    "earliest, latest, a sequence number, today, yesterday, a relative time such as -24h,"
    " or a time such as 2026-11-24T08:00"
)
_AGO = re.compile(r"-(\S+)|(\S+) +ago")


def now() -> datetime:
    """Return the current local time, with its zone."""
    return datetime.now().astimezone()


def place(text: str, now: datetime) -> str:
    """Return a position as nsqd accepts it. Raises ValueError.

    now: the current time in the user's zone
    """
    text = text.strip()
    if text in ("earliest", "latest") or text.isdecimal():
        return text
    return _utc(_moment(text, now))


def is_sequence(place: str) -> bool:
    """Return whether a position is a sequence number, which is valid on one node only."""
    return place.isdecimal()


def _moment(text: str, now: datetime) -> datetime:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text == "today":
        return midnight
    if text == "yesterday":
        return midnight - timedelta(days=1)
    if ago := _AGO.fullmatch(text):
        return now - _span(ago[1] or ago[2], text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a position ({ALLOWED})") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)


def _span(text: str, whole: str) -> timedelta:
    try:
        return timedelta(microseconds=parse_with_days(text) // MICROSECOND)
    except ValueError as error:
        raise ValueError(f"{whole!r} is not a relative time: {error}") from None


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
