"""The JSON object that kombu writes as a message: body, headers and properties of a task."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nsqcy.client import Message


def seconds_until(payload: Mapping[str, Any], now: float) -> float:
    """Return the seconds until a task's ETA, or 0 if it is due or has none."""
    headers = payload.get("headers")
    eta = headers.get("eta") if isinstance(headers, Mapping) else None
    if not eta:
        return 0.0
    try:
        due = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta))
    except ValueError:
        return 0.0
    if due.tzinfo is None:  # only the worker knows the time zone: it waits for the ETA itself
        return 0.0
    return max(0.0, (due - datetime.fromtimestamp(now, UTC)).total_seconds())


def payload_of(message: Message) -> dict[str, Any]:
    """Return kombu's payload. A body that kombu has not written becomes a message of an unknown
    content type, which the program rejects."""
    try:
        payload = json.loads(message.body)
        if isinstance(payload["properties"]["delivery_info"], dict) and "body" in payload:
            return payload
    except (ValueError, TypeError, KeyError):
        pass
    return {
        "body": message.body,
        "content-type": "application/octet-stream",
        "content-encoding": "binary",
        "headers": {},
        "properties": {"delivery_info": {"exchange": "", "routing_key": ""}},
    }


def task_of(body: bytes) -> str | None:
    """Return the id of a message's task."""
    try:
        found = json.loads(body)["properties"]["correlation_id"]
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None
