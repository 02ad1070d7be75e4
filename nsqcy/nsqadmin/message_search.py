"""Search of messages: reads a queue or a log page by page until enough messages pass a filter.

Owns the limits of a search. Independent of how pages are fetched or shown.
"""

import time
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

from nsqcy.errors import HttpError
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.message_filter import Filter, matches

MAX_EXAMINED = 2000  # maximum messages to examine per node
SECONDS = 2.0  # time limit for fetching pages, in seconds

Following = Callable[[str, str], list[NodeAnswer]]  # fetches a page from a `start`


def search(
    wanted: Filter,
    first: Sequence[NodeAnswer],
    following: Following,
    enough: int,
    clock: Callable[[], float] = time.monotonic,
) -> list[NodeAnswer]:
    """Return the matching messages of each node, beginning with its first page. `examined` is the
    number of messages read, and `next` the position at which to continue. enough: number of matches
    per node that end the search."""
    end = clock() + SECONDS
    return [
        _of_node(wanted, each, following, enough, lambda: clock() < end) if each.is_done else each
        for each in first
    ]


def _of_node(
    wanted: Filter,
    first: NodeAnswer,
    following: Following,
    enough: int,
    has_time: Callable[[], bool],
) -> NodeAnswer:
    found: list[Any] = []
    examined = 0
    page: NodeAnswer | None = first
    start = None
    while page is not None:
        messages, start = page.value["messages"], page.value["next"]
        examined += len(messages)
        found += [each for each in messages if _passes(wanted, each)]
        is_over = start is None or len(found) >= enough or examined >= MAX_EXAMINED
        page = None if is_over or not has_time() else _next_page(following, first.node, start)
    value = {**first.value, "messages": found, "next": start, "examined": examined}
    return NodeAnswer(first.node, first.status, value)


def _next_page(following: Following, node: str, start: str) -> NodeAnswer | None:
    """Return a page; None if the node does not answer, which ends the search there."""
    try:
        return next((each for each in following(node, start) if each.is_done), None)
    except HttpError:
        return None


def _passes(wanted: Filter, message: Any) -> bool:
    body = b64decode(message["body"] or "")
    return matches(wanted, message["id"] or "", message["headers"], body)
