"""Keys, priorities and deduplication ids that a task framework's message names.

A retry of a task is a new message with the same options. It gets no deduplication id: nsqd would
not keep it.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

from nsqcy.client.keys import PRIORITIES

KEY = "key"
DEDUP_ID = "dedup_id"


class MessageKeys(TypedDict, total=False):
    """Keyword arguments of Producer.publish()."""

    key: str
    dedup_id: str
    priority: int


def message_keys(options: Mapping[str, Any], priority: Any, *, is_retry: bool) -> MessageKeys:
    """Return the key and the id in a message's options, and its priority.

    A priority below 0 counts as 0, and one above 9 as 9. Raises ValueError for other values than
    texts and numbers.
    """
    found = MessageKeys()
    if (key := options.get(KEY)) is not None:
        found["key"] = _text(KEY, key)
    if (dedup_id := options.get(DEDUP_ID)) is not None and not is_retry:
        found["dedup_id"] = _text(DEDUP_ID, dedup_id)
    if priority and (level := _level(priority)):
        found["priority"] = level
    return found


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{name} must be a text or a number, not {value!r}")


def _level(priority: Any) -> int:
    try:
        return min(max(int(priority), PRIORITIES.start), PRIORITIES.stop - 1)
    except (TypeError, ValueError):
        raise ValueError(f"priority must be a number, not {priority!r}") from None
