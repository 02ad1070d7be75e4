"""The first messages of a queue or log, read page by page.

Owns the limits of a page. Does not know which queue it is.
"""

from collections.abc import Callable
from typing import Any

PAGE = 100  # messages per request; nsqd's limit
MAX_BODY = 512 << 10  # bytes of a body; nsqd's limit

Page = Callable[[int, str | None], dict[str, Any]]  # at most N messages from a `start` on


def first_messages(page: Page, count: int) -> list[dict[str, Any]]:
    """Return the first `count` messages, or all if there are fewer."""
    found: list[dict[str, Any]] = []
    start = None
    while len(found) < count:
        answer = page(min(PAGE, count - len(found)), start)
        found += answer["messages"]
        start = answer["next"]
        if start is None:
            break
    return found
