"""Durations that a program passes to the client: numbers or timedeltas.

Owns their conversion to numbers. Independent of the values that an option allows.
"""

from collections.abc import Mapping
from datetime import timedelta
from numbers import Integral
from typing import Any, overload

from nsqcy.client.arguments import check_arguments
from nsqcy.options.fields import MAX_NUMBER, declared

Duration = float | timedelta  # a number is in seconds, unless the parameter specifies milliseconds
Milliseconds = int | timedelta

# Options in milliseconds, as in NSQ's IDENTIFY.
_IN_MILLISECONDS = frozenset({"output_buffer_timeout"})


@overload
def seconds(value: Duration, name: str = "timeout") -> float: ...
@overload
def seconds(value: None, name: str = "timeout") -> None: ...
def seconds(value: Duration | None, name: str = "timeout") -> float | None:
    """Return a duration in seconds. name: the argument's name. Raises TypeError and ValueError."""
    if type(value) is float and 0.0 <= value <= MAX_NUMBER:  # fast path, often taken per message
        return value
    check_arguments(**{name: value})
    return value.total_seconds() if isinstance(value, timedelta) else value


def milliseconds(value: Milliseconds) -> int:
    """Return a duration in milliseconds; a timedelta is rounded. Raises TypeError."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a duration (allowed: whole milliseconds or a timedelta)")
    return int(value)


def without_timedeltas(options: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """Return a part's options with each timedelta as a number. Raises TypeError if the option is
    not a duration."""
    return {
        name: _number(name, value, part) if isinstance(value, timedelta) else value
        for name, value in options.items()
    }


def _number(name: str, value: timedelta, part: Any) -> float:
    if name in _IN_MILLISECONDS:
        return milliseconds(value)
    kinds = {each.name: each.kind.typed for each in declared(part)}
    if kinds.get(name) != "float":
        raise TypeError(f"{name} cannot be {value!r} (it is not a duration)")
    return value.total_seconds()
