"""Filter of the messages page: a text, and a path into JSON bodies.

Pure. Filters the messages that nsqds have returned, so a truncated body is searched only up to its
end.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_STEP = re.compile(r"\.?([^.\[\]=\s]+)|\[(\d+)\]")


class Filter(NamedTuple):
    """text: part of the body, the id or a header, case-insensitive. steps: keys and indexes of a
    JSON value that must exist. wanted: text of that value; None permits any value."""

    text: str
    steps: Sequence[str | int]
    wanted: str | None


def parse(text: str, path: str) -> Filter:
    """Return a filter for a text and a path such as `$.items[0].sku` or `customer.id = 17`. Raises
    ValueError if the path is invalid."""
    place, equals, wanted = path.strip().partition("=")
    place = place.strip()
    rest = place.removeprefix("$")
    steps: list[str | int] = []
    while rest:
        found = _STEP.match(rest)
        if found is None:
            raise ValueError(f"invalid JSON path {place!r}: write $.key[0].key or key = value")
        key, index = found.groups()
        steps.append(key if index is None else int(index))
        rest = rest[found.end() :]
    if equals and not steps:
        raise ValueError("invalid JSON path: the key before = is missing")
    return Filter(text.strip().casefold(), steps, wanted.strip().strip('"') if equals else None)


def matches(wanted: Filter, id: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a message passes the filter."""
    return _has_text(wanted, id, headers, body) and _has_value(wanted, body)


def _has_text(wanted: Filter, id: str, headers: Mapping[str, str], body: bytes) -> bool:
    texts = [id, *headers, *headers.values(), body.decode("utf-8", "replace")]
    return not wanted.text or any(wanted.text in each.casefold() for each in texts)


def _has_value(wanted: Filter, body: bytes) -> bool:
    if not wanted.steps:
        return True
    try:
        value: Any = json.loads(body)
        for step in wanted.steps:
            value = value[step]
    except (ValueError, RecursionError, LookupError, TypeError):
        return False
    if wanted.wanted is None:
        return True
    return wanted.wanted == (value if isinstance(value, str) else json.dumps(value))
