"""Arguments of the client's public classes and methods, other than the options of options.py.

Owns the allowed values of each argument, regardless of the method. Checks them on each call, so
that an invalid value does not cause a failure elsewhere later.
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from numbers import Real
from typing import Any, NamedTuple

from nsqcy.errors import InvalidName
from nsqcy.names import is_valid_name, quote
from nsqcy.options.fields import MAX_NUMBER, MAX_WHOLE, refusal

Test = Callable[[Any], bool]


class Argument(NamedTuple):
    """The allowed values of an argument. `is_type` fails with TypeError, `holds` with
    ValueError."""

    allowed: str
    is_type: Test
    holds: Test = lambda value: True


def _of(*types: type) -> Test:
    """Return whether a value has one of these types. A bool is not a number."""
    return lambda value: isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _is_duration(value: Any) -> bool:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    return bool(0 <= number <= MAX_NUMBER)


def or_none(argument: Argument) -> Argument:
    allowed, is_type, holds = argument
    return Argument(
        f"{allowed}, or None",
        lambda value: value is None or is_type(value),
        lambda value: value is None or holds(value),
    )


DURATION = Argument(
    f"seconds from 0 to {MAX_NUMBER:.0f}, or a timedelta", _of(Real, timedelta), _is_duration
)
LIMIT = Argument(
    f"seconds above 0, up to {MAX_NUMBER:.0f}, or a timedelta",
    _of(Real, timedelta),
    lambda value: _is_duration(value) and bool(value),
)
COUNT = Argument("whole numbers from 1", _of(int), lambda value: 1 <= value <= MAX_WHOLE)
NUMBER = Argument("whole numbers from 0", _of(int), lambda value: 0 <= value <= MAX_WHOLE)
PORT = Argument("1 to 65535", _of(int), lambda value: 0 < value < 65536)
FLAG = Argument("True or False", _of(bool))
TEXT = Argument("text without control characters", _of(str), str.isprintable)
NAMED = Argument(
    "non-empty text without control characters",
    _of(str),
    lambda value: value != "" and value.isprintable(),
)
MESSAGE_ID = Argument(
    "16 hexadecimal digits in lower case",
    _of(str),
    lambda value: re.fullmatch("[0-9a-f]{16}", value) is not None,
)
FUNCTION = or_none(Argument("a function", callable))
POSITION = Argument(
    "earliest, latest, a sequence number or a datetime",
    _of(str, int, datetime),
    lambda value: not isinstance(value, str) or (value != "" and value.isprintable()),
)

ARGUMENTS = {
    "auth_secret": or_none(TEXT),
    "backoff": or_none(FLAG),
    "batch_bytes": COUNT,
    "batch_messages": COUNT,
    "block": FLAG,
    "concurrency": or_none(COUNT),
    "count": NUMBER,
    "delay": or_none(DURATION),
    "graceful": FLAG,
    "header": NAMED,
    "host": NAMED,
    "id": or_none(MESSAGE_ID),
    "limit": or_none(COUNT),
    "max_messages": COUNT,
    "message_handler": FUNCTION,
    "name": or_none(TEXT),
    "nsqd_http_address": NAMED,
    "on_error": FUNCTION,
    "on_exception": FUNCTION,
    "on_giving_up": FUNCTION,
    "on_heartbeat": FUNCTION,
    "on_ready": FUNCTION,
    "on_retry": FUNCTION,
    "port": PORT,
    "reason": Argument("text", _of(str)),
    "state": NAMED,
    "timeout": or_none(DURATION),
    "to": POSITION,
    "wait": FLAG,
    "within": DURATION,
}


def check_arguments(**given: object) -> None:
    """Raise TypeError or ValueError for the first argument whose value is not allowed."""
    for name, value in given.items():
        check_argument(name, value, ARGUMENTS[name])


def check_argument(name: str, value: object, argument: Argument) -> None:
    """Raise TypeError or ValueError unless an argument may have this value."""
    if not argument.is_type(value):
        raise TypeError(refusal(name, value, argument.allowed))
    if not argument.holds(value):
        raise ValueError(refusal(name, value, argument.allowed))


def check_names(**names: object) -> None:
    """Raise TypeError or ValueError for the first name of a topic or channel that is not valid."""
    for kind, name in names.items():
        if not isinstance(name, str):
            raise TypeError(refusal(kind, name, "str"))
        if not is_valid_name(name):
            raise InvalidName(f"{quote(name)} is not a valid {kind} name")
