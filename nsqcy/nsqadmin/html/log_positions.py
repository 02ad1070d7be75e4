"""Positions in a topic's log, as given in forms: times picked in UTC, and links to common times.

Pure.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from nsqcy.nsqadmin.html.formatting import instant

_HOUR, _DAY = 3600, 86400  # seconds
_PICKED = re.compile(r"\d{4,}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?(?:\.\d+)?")


class Shortcut(NamedTuple):
    """A link to a position."""

    text: str
    to: str


def with_picked_time(params: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the parameters with position `name` from the picker's field `at`, which is in UTC. Any
    other text is passed on, so that nsqds reject it."""
    at = params.get("at", "")
    if not at:
        return dict(params)
    seconds = ":00" if at.count(":") == 1 else ""
    return {**params, name: f"{at}{seconds}Z" if _PICKED.fullmatch(at) else at}


def picked(position: str) -> str:
    """Return the value of the picker's field for a position; empty if it is not a time."""
    time = position.removesuffix("Z")
    return time if _PICKED.fullmatch(time) else ""


def shortcuts(now: float) -> list[Shortcut]:
    """Return links to commonly used times. now: seconds since 1970."""
    today = int(now) // _DAY * _DAY
    times = {
        "1 h ago": int(now) - _HOUR,
        "24 h ago": int(now) - _DAY,
        "Today 00:00 UTC": today,
        "Yesterday 00:00 UTC": today - _DAY,
    }
    return [Shortcut(text, instant(time)) for text, time in times.items()]
