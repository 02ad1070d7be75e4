"""The forms of what our nsqds answer beyond NSQ's API, as far as pages rely on them.

Pure. An answer is used as it is, so whatever else is in it stays; one that has not the form that is
asked for is not used at all.
"""

from base64 import b64decode
from collections.abc import Callable
from typing import Any

Form = Callable[[Any], bool]

_LARGEST = 1 << 63


# --- parts --------------------------------------------------------------------------------------


def anything(value: Any) -> bool:
    return True


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_number(value: Any) -> bool:
    """A whole one, of 64 bits."""
    return type(value) is int and -_LARGEST <= value < _LARGEST


def or_null(form: Form) -> Form:
    return lambda value: value is None or form(value)


def each(form: Form) -> Form:
    """An array of these."""
    return lambda value: isinstance(value, list) and all(map(form, value))


def by_name(form: Form) -> Form:
    """An object, whatever its keys."""
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))


def having(**forms: Form) -> Form:
    """An object with these keys, and others."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and form(value[name]) for name, form in forms.items())
    )


def perhaps(**forms: Form) -> Form:
    """An object that may lack these keys."""
    return lambda value: (
        isinstance(value, dict)
        and all(form(value[name]) for name, form in forms.items() if name in value)
    )


def both(one: Form, other: Form) -> Form:
    return lambda value: one(value) and other(value)


# --- answers ------------------------------------------------------------------------------------


def _is_base64(value: Any) -> bool:
    try:
        b64decode(value, validate=True)
    except (TypeError, ValueError):
        return False
    return True


# A body that the disk does not give back has no size, either.
_READABLE = having(size=is_number, body=_is_base64)
_UNREADABLE = having(size=or_null(is_number), body=lambda value: value is None)

_MESSAGE = both(
    having(
        id=or_null(is_text),
        seq=is_number,
        timestamp=or_null(is_number),
        attempts=is_number,
        cut=is_flag,
        headers=by_name(is_text),
        start=is_text,
    ),
    perhaps(
        due=or_null(is_number),
        deadline=or_null(is_number),
        consumer=or_null(having(client_id=is_text, remote_address=is_text)),
    ),
)
PEEKED = having(
    messages=each(both(_MESSAGE, lambda value: _READABLE(value) or _UNREADABLE(value))),
    next=or_null(is_text),
)

_SETTING = having(**{"value": anything, "from": is_text})
POLICY = having(
    config=both(
        by_name(_SETTING),
        perhaps(dead_letter_topic=having(value=is_text)),
    )
)

LOG = both(having(channels=by_name(is_number), fanout_seq=is_number), perhaps(at=is_number))

DRAIN = both(
    having(draining=is_flag, left=or_null(having(messages=is_number, places=is_number))),
    perhaps(seconds_left=is_number),
)
