"""The JSON object that kombu writes as a message: body, headers and properties of a task.

Uses kombu's JSON, as its other transports do: headers and ids may be datetimes, UUIDs, Decimals,
bytes and types that the program has registered with kombu.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kombu.utils import json

from nsqcy.client import Message
from nsqcy.integrations.message_keys import MessageKeys, message_keys


def encoded(payload: Mapping[str, Any]) -> bytes:
    """Return a payload as the body of a message. Raises TypeError for a value that kombu cannot
    encode."""
    return json.dumps(payload).encode()


def _decoded(body: bytes) -> Any:
    """Return the JSON value of a body. Raises ValueError and TypeError."""
    return json.loads(body, object_hook=_restored)


def _restored(found: dict[str, Any]) -> Any:
    """Return the value that kombu has written as an object; other objects are returned
    unchanged."""
    try:
        return json.object_hook(found)
    except Exception:  # an unknown type, or an object that kombu did not write
        return found


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


def keys_of(payload: Mapping[str, Any]) -> MessageKeys:
    """Return the key and the deduplication id in the headers of a task, and its priority. Raises
    ValueError."""
    headers = payload.get("headers") or {}
    priority = payload["properties"].get("priority")
    return message_keys(headers, priority, is_retry=bool(headers.get("retries")))


def payload_of(message: Message) -> dict[str, Any]:
    """Return kombu's payload. A body that kombu did not write becomes a message of an unknown
    content type, which the program rejects."""
    try:
        payload = _decoded(message.body)
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
        found = _decoded(body)["properties"]["correlation_id"]
    except (ValueError, TypeError, KeyError):
        return None
    return None if found is None else str(found)
