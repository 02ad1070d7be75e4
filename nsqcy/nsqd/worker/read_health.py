"""One line for topics whose files cannot be read: the same in /ping, /ready and /stats."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

SECOND = 1_000_000_000


def read_health(topics: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why topics cannot be read; None if all can be. The first topic is the one that failed
    first."""
    if not topics:
        return None
    first = topics[0]
    since = datetime.fromtimestamp(first["since"] // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    others = len(topics) - 1
    verb = "topic is" if others == 1 else "topics are"
    more = f"; {others} more {verb} unreadable" if others else ""
    return (
        f"topic {first['topic']} has been unreadable since {since}: {first['text']}"
        f" ({first['error']}){more}"
    )
