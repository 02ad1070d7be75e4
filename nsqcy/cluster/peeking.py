"""Peeks at messages, which does not consume them.

Iterates over the pages of any queue or log, limits their sizes, and reads a message's attempts.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nsqcy.errors import RequestError

PAGE = 100  # maximum messages per request, as in nsqd
MAX_BODY = 512 << 10  # maximum bytes of a body; nsqd's limit
MAX_EMPTY = 1000  # maximum consecutive pages without messages

Page = Callable[[int, str | None], dict[str, Any]]  # at most N messages from a `start` on


def messages(page: Page, count: int = sys.maxsize) -> Iterator[dict[str, Any]]:
    """Iterate over the first `count` messages, by default over all. Raises RequestError for pages
    that never end."""
    start, empty = None, 0
    while count > 0:
        answer = page(min(PAGE, count), start)
        found = answer["messages"]
        empty = 0 if found else empty + 1
        if answer["next"] == start is not None or empty > MAX_EMPTY:
            raise RequestError("nsqd returns pages of messages without end", 200)
        yield from found
        count -= len(found)
        start = answer["next"]
        if start is None:
            return


def attempts(message: Mapping[str, Any]) -> int:
    """Return a message's attempts; for a dead letter, the attempts after which it was moved."""
    headers = message["headers"] or {}
    before = headers.get("attempts", "") if "origin-channel" in headers else ""
    return int(before) if before.isdecimal() and len(before) < 10 else message["attempts"]
