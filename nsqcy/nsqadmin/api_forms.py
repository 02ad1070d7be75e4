"""What all of the API has in common: what it reads, and the forms of its answers."""

import json
from typing import Any

from nsqcy.errors import HttpError
from nsqcy.http.parser import Fault
from nsqcy.http.router import Handler, Request, Route
from nsqcy.nsqadmin.gathering import Gathering
from nsqcy.nsqadmin.surroundings import body_limit, guarded
from nsqcy.util import gojson

Json = dict[str, Any]


def read_body(request: Request, *names: str) -> list[str]:
    """These texts of an object of JSON; those that it does not have are empty."""
    try:
        found = gojson.decode(_bytes(request), dict.fromkeys(names, (gojson.text, "")))
    except ValueError as error:
        raise HttpError(400, f"the body cannot be read: {error}") from None
    return [found[name] for name in names]


def read_object(request: Request) -> Json:
    """An object of JSON as it is."""
    try:
        found = json.loads(_bytes(request))
    except (ValueError, RecursionError):
        raise HttpError(400, "the body cannot be read: not JSON") from None
    if not isinstance(found, dict):
        raise HttpError(400, "the body cannot be read: no object")
    return found


def _bytes(request: Request) -> bytes:
    body = request.body
    if body.fault is not Fault.NONE:
        raise HttpError(413 if body.fault is Fault.TOO_BIG else 400, "INVALID_BODY")
    if not body.data:
        raise HttpError(400, "EOF")
    return bytes(body.data)


def shown(value: Json, gathering: Gathering) -> Json:
    """An answer, with what went wrong meanwhile."""
    return value | {"message": gathering.warning("; ")}


def done(gathering: Gathering) -> Json:
    """What was done, with what went wrong."""
    return {"message": gathering.warning("\n")}


def post(path: str, handler: Handler) -> Route:
    return Route("POST", path, guarded(handler), body=body_limit)
