"""Parses daemons' JSON responses according to the rules of NSQ's own clients.

Pure functions. Any invalid input raises RequestError.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nsqcy.cluster.answer_forms import MAX_LINE
from nsqcy.cluster.budget import FREE, decoding
from nsqcy.errors import RequestError
from nsqcy.names import is_valid_name, one_line
from nsqcy.util import gojson

PLAIN = "nsq; version=1.0"  # value of X-NSQ-Content-Type for an unwrapped response


def read(
    body: bytes,
    headers: Mapping[str, str],
    fields: gojson.Fields,
    decode: Callable[[bytes, gojson.Fields], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the fields of a response. Names in `headers` are lower case.

    Before 1.0, responses were wrapped: `{"status_code": 200, "data": {...}}`.
    """
    if decode is None:
        decode = gojson.decode_large if len(body) > FREE else gojson.decode
    try:
        with decoding(body):
            if headers.get("x-nsq-content-type") == PLAIN:
                return decode(body, fields)
            found = decode(body, {**fields, "data": (gojson.structure(fields), None)})
    except ValueError as error:
        raise RequestError(f"the response cannot be read: {error}", 200, body) from None
    wrapped: dict[str, Any] | None = found.pop("data")
    return found if wrapped is None else wrapped


def line(value: Any) -> str:
    """Parse a short text. Clients choose such texts (client id, user agent), so a text that is
    too long or contains control characters must not hide the response: it is truncated and
    cleaned."""
    text = gojson.text(value)
    if len(text) <= MAX_LINE and text.isprintable():
        return text
    return one_line(text[:MAX_LINE])


def name(value: Any) -> str:
    """Parse the name of a topic or channel."""
    text = gojson.text(value)
    if not is_valid_name(text):
        raise ValueError("not a valid name")
    return text


def name_or_none(value: Any) -> str:
    """Parse a name that may be empty."""
    return name(value) if value != "" else ""
