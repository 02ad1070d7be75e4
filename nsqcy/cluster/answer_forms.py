"""Forms of daemons' JSON responses: checks of whether a decoded value is a valid response. Pure. A
value of the expected form is used unchanged, so a form checks everything that may reach a page, a
header, another request or a terminal: identifiers, names, numbers, and lines of text.
"""

import re
from base64 import b64decode
from collections.abc import Callable
from math import isfinite
from typing import Any

from nsqcy.names import is_valid_name

Form = Callable[[Any], bool]

_LARGEST = 1 << 63
MAX_LINE = 1024  # characters
_ID = re.compile("[0-9a-f]{16}")
_PLACE = re.compile(r"-?[0-9]{1,20}\.[0-9]{1,20}")


def anything(value: Any) -> bool:
    return True


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_line(value: Any) -> bool:
    """Return whether the value is a short text without control characters."""
    return isinstance(value, str) and len(value) <= MAX_LINE and value.isprintable()


def is_name(value: Any) -> bool:
    """Return whether the value is a valid name of a topic or channel."""
    return isinstance(value, str) and is_valid_name(value)


def is_id(value: Any) -> bool:
    """Return whether the value is a message id."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def is_place(value: Any) -> bool:
    """Return whether the value is a position in a queue or log, where a page may start."""
    return isinstance(value, str) and _PLACE.fullmatch(value) is not None


def is_base64(value: Any) -> bool:
    try:
        b64decode(value, validate=True)
    except (TypeError, ValueError):
        return False
    return True


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether the value is a 64-bit integer."""
    return type(value) is int and -_LARGEST <= value < _LARGEST


def is_amount(value: Any) -> bool:
    """Return whether the value is a number; floats are finite."""
    return is_number(value) or (isinstance(value, float) and isfinite(value))


def or_null(form: Form) -> Form:
    return lambda value: value is None or form(value)


def list_of(form: Form) -> Form:
    """Match an array of this form."""
    return lambda value: isinstance(value, list) and all(map(form, value))


def by_name(form: Form) -> Form:
    """Match an object with arbitrary keys, whose values have this form."""
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))


def having(**forms: Form) -> Form:
    """Match an object that has at least these keys."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and form(value[name]) for name, form in forms.items())
    )


def perhaps(**forms: Form) -> Form:
    """Match an object in which these keys are optional."""
    return lambda value: (
        isinstance(value, dict)
        and all(form(value[name]) for name, form in forms.items() if name in value)
    )


def both(one: Form, other: Form) -> Form:
    return lambda value: one(value) and other(value)


# --- responses ----------------------------------------------------------------------------------

# A body that could not be read from disk has no known size.
_READABLE = having(size=is_number, body=is_base64)
_UNREADABLE = having(size=or_null(is_number), body=lambda value: value is None)

# Producers and consumers choose the headers and the client id, so these may be any text.
_MESSAGE = both(
    having(
        id=or_null(is_id),
        seq=is_number,
        timestamp=or_null(is_number),
        attempts=is_number,
        cut=is_flag,
        headers=by_name(is_text),
        start=is_place,
    ),
    perhaps(
        key=is_text,
        due=or_null(is_number),
        deadline=or_null(is_number),
        consumer=or_null(having(client_id=is_text, remote_address=is_line)),
    ),
)
PEEKED = both(
    having(
        messages=list_of(both(_MESSAGE, lambda value: _READABLE(value) or _UNREADABLE(value))),
        next=or_null(is_place),
    ),
    perhaps(previous=or_null(is_place)),
)

KEYS = having(
    keys=list_of(
        having(
            key=is_text,
            depth=is_number,
            held=is_number,
            blocked=is_flag,
            blocked_seconds=is_number,
            paused=is_flag,
        )
    ),
    complete=is_flag,
)

DEFERRED = having(
    deferred=list_of(
        having(
            id=or_null(is_id),
            seq=is_number,
            due=is_number,
            attempts=is_number,
            size=or_null(is_number),
        )
    ),
    next=or_null(is_place),
)

_CHANNEL = both(
    having(channel_name=is_name, depth=is_number),
    perhaps(in_flight_count=is_number, deferred_count=is_number),
)
_TOPIC = both(
    having(topic_name=is_name, depth=is_number, message_count=is_number),
    perhaps(channels=or_null(list_of(_CHANNEL))),
)
STATS = perhaps(topics=or_null(list_of(_TOPIC)))

# Of an nsqlookupd.
TOPICS = perhaps(topics=or_null(list_of(is_text)))
CHANNELS = perhaps(channels=or_null(list_of(is_text)))
NODES = perhaps(producers=or_null(list_of(having(broadcast_address=is_text))))
LOOKUP = both(CHANNELS, NODES)

_LEFT = having(
    depth=is_number,
    in_flight_count=is_number,
    deferred_count=is_number,
)
_LEFT_THERE = both(
    _LEFT,
    having(topic_name=is_name, channel_name=lambda value: value == "" or is_name(value)),
)
UPGRADE = having(
    version=is_line, python=is_line, under_way=is_flag, steps=list_of(is_line), error=is_line
)
DRAIN = having(
    draining=is_flag,
    left=or_null(both(_LEFT, having(messages=is_number, most=list_of(_LEFT_THERE)))),
)

_SETTING = having(**{"value": anything, "from": is_line})
POLICY = having(
    config=both(
        by_name(_SETTING),
        perhaps(dead_letter_topic=having(value=lambda value: value == "" or is_name(value))),
    )
)
