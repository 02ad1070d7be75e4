"""The form that publishes a message: its texts become a body, headers and a delay.

Pure. Raises HttpError for texts that cannot be sent; nsqd validates the rest.
"""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from nsqcy.errors import HttpError

_NAME = re.compile(r"[a-zA-Z0-9!#$%&'*+.^_`|~-]+")


class Draft(NamedTuple):
    """A message to publish. defer: milliseconds; empty if it is not deferred."""

    body: bytes
    defer: str
    headers: Mapping[str, str]


def read(fields: Mapping[str, str]) -> Draft:
    """Return the message in a form. Browsers end lines with CRLF; the body has LF."""
    body = fields.get("body", "").replace("\r\n", "\n").encode("utf-8", "replace")
    return Draft(body, _defer(fields.get("defer", "")), _headers(fields.get("headers", "")))


def _defer(text: str) -> str:
    if not text.strip():
        return ""
    try:
        return str(int(Decimal(text) * 1000))
    except (InvalidOperation, ValueError, OverflowError):
        raise HttpError(400, f"invalid delay {text}: enter a number of seconds") from None


def _headers(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or not _NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise HttpError(400, f"invalid header {line}: write name: value, in ASCII")
        found[name] = value
    return found
