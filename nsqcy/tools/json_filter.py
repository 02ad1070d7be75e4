"""Filter for JSON messages and their fields.

Owns the rules for --require-json-field, --require-json-value and --whitelist-json-field.
Independent of the source and destination of messages.
"""

import enum
import json
import math
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from nsqcy.config.options import parse_float
from nsqcy.names import printable
from nsqcy.util.gotext import json_bytes

SHOWN = 2048  # maximum characters of a message in the log


class Verdict(enum.Enum):
    PASS = "pass"
    DROP = "drop"  # finish the message
    REQUEUE = "requeue"  # redeliver the message; the consumer backs off


class Filtered(NamedTuple):
    """A verdict, the body to pass on, and text for the log."""

    verdict: Verdict
    body: bytes = b""
    complaint: str = ""


DROP = Filtered(Verdict.DROP)


class JsonFilter:
    """Filter for JSON messages. An empty setting disables its rule."""

    def __init__(self, field: str, value: str, whitelist: Collection[str]) -> None:
        self._field = field
        self._value = value
        self._number = _number(value)
        self._whitelist = frozenset(whitelist)
        self.active = bool(field or whitelist)

    def apply(self, body: bytes) -> Filtered:
        if not self.active:
            return Filtered(Verdict.PASS, body)
        try:
            return self._judge(_decode(body), body)
        except (ValueError, RecursionError):
            shown = body[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN]
            return Filtered(
                Verdict.DROP, complaint=f"ERROR: Unable to decode json: {printable(shown)}"
            )

    def _judge(self, found: dict[str, Any], body: bytes) -> Filtered:
        if self._field and self._field not in found:
            if self._value:
                complaint = "ERROR: missing field to check required value"
                return Filtered(Verdict.REQUEUE, complaint=complaint)
            return DROP
        if self._field and self._value and not self._is_the_value(found[self._field]):
            return DROP
        return Filtered(Verdict.PASS, self._cut(found) if self._whitelist else body)

    def _is_the_value(self, found: object) -> bool:
        if isinstance(found, str):
            return found == self._value
        if isinstance(found, int | float) and not isinstance(found, bool):
            return found == self._number
        return False

    def _cut(self, found: dict[str, Any]) -> bytes:
        return json_bytes({key: found[key] for key in found if key in self._whitelist})


def _number(text: str) -> int | float | None:
    if re.fullmatch("[+-]?[0-9]{1,1000}", text):
        return int(text)
    try:
        return parse_float(text)
    except ValueError:
        return None


def _decode(body: bytes) -> dict[str, Any]:
    value = _DECODER.decode(body.decode("utf-8", "replace"))
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _sorted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(sorted(dict(pairs).items()))


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("out of range")
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


# Integers keep all digits; numbers with a fraction or an exponent are doubles.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_sorted, parse_float=_finite, parse_constant=_refuse_constant
)
