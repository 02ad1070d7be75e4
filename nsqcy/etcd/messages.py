"""Requests and responses of etcd's JSON gateway, version 3, without I/O.

The format is documented at https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/: keys and values
are base64, integers are decimal strings, and fields with default values are absent.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsqcy.errors import NsqError

# gRPC codes that the client distinguishes.
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
UNAVAILABLE = 14
UNAUTHENTICATED = 16


class EtcdError(NsqError):
    """Failed request. `code` is the gRPC code, or 0 if etcd did not respond."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code

    @property
    def wants_authentication(self) -> bool:
        """Whether a new token may help. A token also becomes invalid when a user or a role changes;
        etcd reports that as an invalid argument."""
        if self.code == INVALID_ARGUMENT:
            return "auth store is old" in str(self)
        return self.code == UNAUTHENTICATED


class Compacted(EtcdError):
    """The watch cannot continue, because etcd has discarded changes that it had not sent yet."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    revision: int
    """Revision of the last change."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a key."""

    key: str
    value: bytes | None
    """None if the key was deleted."""
    revision: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Condition for a transaction: the value that a key must have, or None if it must not exist."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the keys with a prefix."""

    found: list[KeyValue]
    revision: int
    """Store revision at which all pages of a listing are read."""
    more: bool


# -- requests


def listing(prefix: str, *, after: str = "", limit: int, revision: int = 0) -> dict[str, Any]:
    """Request at most `limit` keys with a prefix, beginning after the key `after`."""
    first = after.encode() + b"\0" if after else prefix.encode()
    return {
        "key": _encoded(first),
        "range_end": _encoded(_end_of(prefix)),
        "limit": str(limit),
        "revision": str(revision),
        "sort_target": "KEY",
        "sort_order": "ASCEND",
    }


def transaction(
    expected: Sequence[Expected], puts: Sequence[Put], deletes: Sequence[str]
) -> dict[str, Any]:
    return {
        "compare": [_comparison(each) for each in expected],
        "success": [
            *(
                {
                    "request_put": {
                        "key": _text(put.key),
                        "value": _encoded(put.value),
                        "lease": str(put.lease),
                    }
                }
                for put in puts
            ),
            *({"request_delete_range": {"key": _text(key)}} for key in deletes),
        ],
    }


def watch(prefix: str, revision: int) -> dict[str, Any]:
    """Request all changes to keys with a prefix, starting at a revision."""
    return {
        "create_request": {
            "key": _text(prefix),
            "range_end": _encoded(_end_of(prefix)),
            "start_revision": str(revision),
        }
    }


def _comparison(expected: Expected) -> dict[str, Any]:
    if expected.value is None:
        return {"key": _text(expected.key), "target": "CREATE", "create_revision": "0"}
    return {"key": _text(expected.key), "target": "VALUE", "value": _encoded(expected.value)}


def _end_of(prefix: str) -> bytes:
    """Return the first key after all keys with a prefix. The prefix must not be empty."""
    data = prefix.encode()
    return data[:-1] + bytes([data[-1] + 1])  # byte 255 never occurs in UTF-8


def _text(text: str) -> str:
    return _encoded(text.encode())


def _encoded(data: bytes) -> str:
    return b64encode(data).decode()


# -- responses. These functions raise EtcdError if a response is not understood.


def parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise EtcdError("response is not JSON") from None
    return _object(value)


def failure(body: bytes, status: int) -> EtcdError:
    """Return the error in a response with a status other than 200."""
    try:
        return _failure(parsed(body), f"status {status}")
    except EtcdError:
        return EtcdError(f"status {status}")


def revision(response: dict[str, Any]) -> int:
    return integer(_object(response.get("header", {})), "revision")


def page(response: dict[str, Any]) -> Page:
    found = [_key_value(each) for each in _objects(response.get("kvs", []))]
    return Page(found, revision(response), response.get("more") is True)


def streamed(line: bytes) -> dict[str, Any]:
    """Return the result in one line of a streamed response."""
    response = parsed(line)
    if "error" in response:
        error = response["error"]
        raise _failure(error if isinstance(error, dict) else response, "stream failed")
    return _object(response.get("result"))


def changes(line: bytes) -> list[Change]:
    """Return the changes in one line of a watch. Raises Compacted, or EtcdError if the watch has
    ended."""
    result = streamed(line)
    if result.get("canceled"):
        if integer(result, "compact_revision"):
            raise Compacted("changes were compacted")
        raise EtcdError(f"watch canceled: {result.get('cancel_reason', 'no reason')}"[:300])
    found = []
    for event in _objects(result.get("events", [])):
        pair = _key_value(_object(event.get("kv")))
        is_deleted = event.get("type") == "DELETE"
        found.append(Change(pair.key, None if is_deleted else pair.value, pair.revision))
    return found


def integer(response: dict[str, Any], name: str) -> int:
    try:
        return int(response.get(name, 0))
    except (TypeError, ValueError, OverflowError):
        raise EtcdError(f"{name} in the response is not a number") from None


def _failure(response: dict[str, Any], default: str) -> EtcdError:
    text = response.get("message") or response.get("error") or default
    code = response.get("code", response.get("grpc_code", 0))
    return EtcdError(str(text)[:300], code if isinstance(code, int) else 0)


def _key_value(value: dict[str, Any]) -> KeyValue:
    try:
        key = b64decode(value.get("key", ""), validate=True).decode()
        data = b64decode(value.get("value", ""), validate=True)
    except (TypeError, ValueError):
        raise EtcdError("key or value in the response is not base64") from None
    return KeyValue(key, data, integer(value, "mod_revision"))


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise EtcdError("response has an unexpected form")
    return [_object(each) for each in value]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EtcdError("response has an unexpected form")
    return value
