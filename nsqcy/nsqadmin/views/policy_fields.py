"""Form fields of policy keys: selects for choices, and numbers with units for sizes and durations.

Pure. Converts between a key's JSON value and the texts of its field. nsqds validate values, so a
text that is not a number becomes a value that they reject.
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from nsqcy.config.durations import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, parse_duration
from nsqcy.config.options import BOOL, DURATION, FLOAT, INT
from nsqcy.config.policies import CHANNEL_KEYS, DURABILITIES, ON_FULL, TOPIC_KEYS
from nsqcy.options.option import Option

DAY = 24 * HOUR
_CHOICES = {"durability": DURABILITIES, "on_full": ON_FULL}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SPANS = {
    "ns": 1,
    "µs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "min": MINUTE,
    "h": HOUR,
    "d": DAY,
}
# Prefixes of the names of a key's value, unit, previous value and reset box in the form.
VALUE, UNIT, BEFORE, RESET = "value.", "unit.", "before.", "reset."


class Field(NamedTuple):
    """A key's field. choices and units are empty if it has none. before: the value as JSON, or
    empty if the nodes differ."""

    text: str
    unit: str
    choices: Sequence[str]
    units: Sequence[str]
    is_number: bool
    is_reset: bool
    before: str


def field(channel: str, key: str, value: Any, form: Mapping[str, str]) -> Field:
    """Return a key's field. value: the value on all nodes, or None if they differ. form: the fields
    of a rejected form, which take precedence."""
    option = _option(channel, key)
    units = _units(key, option)
    text, unit = ("", next(iter(units), "")) if value is None else _split(value, option, units)
    choices = ("false", "true") if option and option.kind is BOOL else _CHOICES.get(key, ())
    if choices and value is None:
        choices = ("", *choices)
    return Field(
        form.get(VALUE + key, text),
        form.get(UNIT + key, unit),
        choices,
        list(units),
        bool(units) or bool(option and option.kind in (INT, FLOAT)),
        RESET + key in form,
        form.get(BEFORE + key, "" if value is None else json.dumps(value)),
    )


def changes(channel: str, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the changed values of a form; None for a key to reset."""
    found: dict[str, Any] = {}
    for name, text in form.items():
        if not name.startswith(VALUE):
            continue
        key = name.removeprefix(VALUE)
        before = form.get(BEFORE + key, "")
        if RESET + key in form:
            found[key] = None
        elif before or text:
            value = _value(channel, key, text, form.get(UNIT + key, ""))
            if not _is_same(_option(channel, key), value, before):
                found[key] = value
    return found


def _option(channel: str, key: str) -> Option | None:
    return (CHANNEL_KEYS if channel else TOPIC_KEYS).get(key)


def _units(key: str, option: Option | None) -> Mapping[str, int]:
    if option is not None and option.kind is DURATION:
        return _SPANS
    return _BYTES if key.endswith(("_bytes", "_msg_size")) else {}


def _split(value: Any, option: Option | None, units: Mapping[str, int]) -> tuple[str, str]:
    """Return a value as a number of its largest exact unit. Zero gets the most common unit."""
    try:
        amount = parse_duration(value) if units is _SPANS else int(value) if units else 0
    except (TypeError, ValueError):
        return _text(value), next(iter(units))
    if not units:
        return _text(value), ""
    if not amount:
        return "0", "s" if units is _SPANS else "B"
    unit = max((each for each in units if not amount % units[each]), key=units.__getitem__)
    return str(amount // units[unit]), unit


def _value(channel: str, key: str, text: str, unit: str) -> Any:
    """Return the JSON value of a field."""
    text, option = text.strip(), _option(channel, key)
    units = _units(key, option)
    if unit in units:
        try:
            amount = Decimal(text) * units[unit]
        except InvalidOperation:
            return text
        if not amount.is_finite() or amount != int(amount):
            return f"{text} {unit}"
        return f"{int(amount)}ns" if units is _SPANS else int(amount)
    if option is None or option.kind not in (INT, FLOAT, BOOL):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, int | float) else text


def _is_same(option: Option | None, value: Any, before: str) -> bool:
    try:
        old = json.loads(before)
        if option is not None and option.kind is DURATION:
            return parse_duration(value) == parse_duration(old)
    except (TypeError, ValueError, RecursionError):
        return False
    return bool(type(value) is type(old) and value == old) or (
        isinstance(value, int | float) and isinstance(old, int | float) and value == old
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
