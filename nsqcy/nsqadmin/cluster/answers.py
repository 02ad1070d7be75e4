"""An nsqd's responses to requests beyond NSQ's API: validation and interpretation.

Pure. A response of the expected form is used unchanged, including unknown keys; any other response
is rejected. Distinguishes an nsqd without the feature from one that refuses.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from nsqcy.cluster.stats import ChannelStats
from nsqcy.cluster.web_client import Answer

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
    """Return whether the value is a 64-bit integer."""
    return type(value) is int and -_LARGEST <= value < _LARGEST


def is_amount(value: Any) -> bool:
    """Return whether the value is a number; floats are finite."""
    return is_number(value) or (isinstance(value, float) and isfinite(value))


def or_null(form: Form) -> Form:
    return lambda value: value is None or form(value)


def each(form: Form) -> Form:
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


# --- answers ------------------------------------------------------------------------------------


def _is_base64(value: Any) -> bool:
    try:
        b64decode(value, validate=True)
    except (TypeError, ValueError):
        return False
    return True


# A body that could not be read from disk has no known size.
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

_WORKER = both(
    having(worker=is_number, up=is_flag, restarts=is_number),
    perhaps(
        tcp=is_number,
        failing=is_number,
        memory=is_number,
        memory_limit=is_number,
        resident=is_number,
        cpu=is_amount,
    ),
)
NODE = having(
    nsqcy=is_text,
    start_time=is_number,
    refusing_publishes=each(is_text),
    disk=having(size=is_number, free=is_number),
    master=having(resident=is_number, cpu=is_amount),
    workers=each(_WORKER),
    lookupds=by_name(is_flag),
)

_GROUP = both(
    having(
        group=is_text,
        role=is_text,
        owner=is_text,
        members=each(is_text),
        epoch=is_number,
        copies=is_number,
        min_copies=is_number,
        durability=is_text,
        closed=is_flag,
        topics=each(is_text),
    ),
    perhaps(bytes=is_number, whole=is_flag, responding=is_number, accepts=is_flag, joining=is_text),
)
COPIES = having(
    workers=each(
        both(
            having(node=is_text, etcd=is_flag, groups=each(_GROUP)),
            perhaps(ready=is_flag, sessions=each(is_text)),
        )
    )
)


MAX_ANSWER = 8 << 20  # maximum bytes of a response

TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND = "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"
NODE_NOT_FOUND = "NODE_NOT_FOUND"  # nsqadmin's own

# Refusals by an nsqd that has the feature but not the named target.
_OF_NAMES = frozenset((TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND, "MESSAGE_NOT_FOUND"))
NOT_SUPPORTED = "not supported by this nsqd version"


@dataclass(frozen=True)
class NodeAnswer:
    """One nsqd's response: `value` on success, else the error in `message`."""

    node: str
    status: int
    value: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""

    @property
    def is_done(self) -> bool:
        return self.status == 200

    @property
    def is_missing(self) -> bool:
        """Whether this nsqd lacks the feature: it is NSQ's, or an older version of nsqcy."""
        if self.status == 400:
            return self.message == "INVALID_OPTION"
        return self.status in (404, 405) and self.message not in _OF_NAMES

    @property
    def unknown(self) -> str:
        """The error code if this nsqd does not have the topic or channel; else empty."""
        is_code = self.message in (TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND)
        return self.message if self.status == 404 and is_code else ""

    @property
    def reason(self) -> str:
        return NOT_SUPPORTED if self.is_missing else self.message


def read_answer(node: str, answer: Answer, form: Form = anything) -> NodeAnswer:
    """Return the parsed response. Malformed responses, and successes of a different form, count as
    refusals."""
    value = _parse(answer.body)
    if not isinstance(value, dict) or (answer.status == 200 and not form(value)):
        status = 502 if answer.status == 200 else answer.status
        return NodeAnswer(node, status, message=f"unreadable response with status {answer.status}")
    if answer.status == 200:
        return NodeAnswer(node, 200, value)
    message = value.get("message")
    shown = message if isinstance(message, str) else f"got response {answer.status}"
    return NodeAnswer(node, answer.status, message=shown)


def _parse(body: bytes) -> Any:
    """Parse JSON; None if it is invalid or has lone surrogates, which no page can show."""
    try:
        value = json.loads(body) if body else {}
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


@dataclass(frozen=True)
class SeekEffect:
    """The effect of a seek on one node, in messages: `again` are redelivered, `skipped` are never
    delivered, and `dropped` are all messages that the channel has now."""

    node: str
    now: int
    then: int
    again: int
    skipped: int
    waiting: int
    dropped: int


def seek_effects(
    channel: str, answers: Iterable[NodeAnswer], rows: Iterable[ChannelStats]
) -> list[SeekEffect]:
    """Return the effects on the nodes that have the channel and know the position."""
    held = {
        row.node: row.figures.depth + row.figures.in_flight_count + row.figures.deferred_count
        for row in rows
    }
    found = []
    for each in answers:
        if not each.is_done or "at" not in each.value or channel not in each.value["channels"]:
            continue
        now, then, end = each.value["channels"][channel], each.value["at"], each.value["fanout_seq"]
        ways = max(0, now - then), max(0, then - now)
        found.append(SeekEffect(each.node, now, then, *ways, end - then, held.get(each.node, 0)))
    return found
