"""Labels of tasks that this package reads and sets."""

import math
from collections.abc import Mapping
from typing import Any

from nsqcy.integrations.message_keys import MessageKeys, message_keys

DELAY = "delay"  # seconds after the publish; also set by taskiq's SmartRetryMiddleware
DUE = "nsqcy_due"  # seconds since 1970, set by NsqScheduleSource
QUEUE = "queue_name"
PRIORITY = "priority"
RETRIES = ("_retries", "X-Taskiq-requeue")  # set by taskiq when it publishes a task again
SCHEDULE = "schedule_id"  # label that taskiq's own scheduler also sets


def delay_of(labels: Mapping[str, Any], published: float) -> float:
    """Return the seconds from a task's publish until it may run.

    A task keeps its labels when it is retried: a due time before the publish no longer applies.
    Raises ValueError if a label is not a number.
    """
    left = _number(labels, DUE) - published
    return left if left > 0 else _number(labels, DELAY)


def keys_of(labels: Mapping[str, Any]) -> MessageKeys:
    """Return the key, the deduplication id and the priority of a task. Raises ValueError."""
    is_retry = any(_number(labels, name) for name in RETRIES)
    return message_keys(labels, labels.get(PRIORITY), is_retry=is_retry)


def _number(labels: Mapping[str, Any], name: str) -> float:
    given = labels.get(name) or 0
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"label {name!r} must be a number of seconds, not {given!r}")
    return number
