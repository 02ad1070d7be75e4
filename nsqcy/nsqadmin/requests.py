"""Parses requests' path segments, query parameters, forms and JSON bodies.

Pure functions. They raise HttpError for a malformed request.
"""

import json
from typing import Any

from nsqcy.errors import HttpError
from nsqcy.http.parser import Fault, parse_query
from nsqcy.http.router import Request
from nsqcy.util import gojson


def segments(request: Request, count: int) -> list[str]:
    """Return the last segments of the path, which are the route's variables."""
    return [readable(each) for each in request.head.path.rsplit("/", count)[1:]]


def readable(text: str) -> str:
    """Replace invalid UTF-8 in text from a URL or a form, so that it can be forwarded."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def params(request: Request) -> dict[str, str]:
    """Return a page's query parameters; none if the query is malformed, so that the page is still
    shown."""
    return {name: readable(value) for name, value in (request.head.params or {}).items()}


def read_form(request: Request) -> dict[str, str]:
    body = request.body
    fields = parse_query(bytes(body.data).decode("latin-1"))
    if body.fault is not Fault.NONE or fields is None:
        raise HttpError(400, "INVALID_BODY")
    return {name: readable(value) for name, value in fields.items()}


def read_body(request: Request, *names: str) -> list[str]:
    """Return the named strings from a JSON object; a missing string is empty."""
    try:
        found = gojson.decode(_bytes(request), dict.fromkeys(names, (gojson.text, "")))
    except ValueError as error:
        raise HttpError(400, f"the body cannot be read: {error}") from None
    return [found[name] for name in names]


def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body."""
    try:
        found = json.loads(_bytes(request))
    except (ValueError, RecursionError):
        raise HttpError(400, "the body cannot be read: not JSON") from None
    if not isinstance(found, dict):
        raise HttpError(400, "the body cannot be read: not an object")
    return found


def _bytes(request: Request) -> bytes:
    body = request.body
    if body.fault is not Fault.NONE:
        raise HttpError(413 if body.fault is Fault.TOO_BIG else 400, "INVALID_BODY")
    if not body.data:
        raise HttpError(400, "EOF")
    return bytes(body.data)
