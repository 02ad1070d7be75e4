"""Parses daemons' JSON responses according to the rules of NSQ's own clients.

Pure functions. Any invalid input raises RequestError.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nsqcy.errors import RequestError
from nsqcy.util import gojson

PLAIN = "nsq; version=1.0"  # value of X-NSQ-Content-Type for an unwrapped response


def read(
    body: bytes,
    headers: Mapping[str, str],
    fields: gojson.Fields,
    decode: Callable[[bytes, gojson.Fields], dict[str, Any]] = gojson.decode,
) -> dict[str, Any]:
    """Return the fields of a response. Names in `headers` are lower case.

    Before 1.0, responses were wrapped: `{"status_code": 200, "data": {...}}`.
    """
    try:
        if headers.get("x-nsq-content-type") == PLAIN:
            return decode(body, fields)
        found = decode(body, {**fields, "data": (gojson.structure(fields), None)})
    except ValueError as error:
        raise RequestError(f"the response cannot be read: {error}", 200, body) from None
    wrapped: dict[str, Any] | None = found.pop("data")
    return found if wrapped is None else wrapped


def port(value: Any) -> int:
    """Parse a port number; 0 means none."""
    number: int = gojson.int32(value)
    if not 0 <= number < 65536:
        raise ValueError("not a port")
    return number
