"""What one nsqd answers to a request that goes beyond NSQ's API: its form, and what it means.

Pure. An answer is used as it is, so whatever else is in it stays; one without the form that is
expected is not used at all. Tells an nsqd without the feature from one that refuses.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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


# A body that could not be read from disk has no size, either.
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


MAX_ANSWER = 8 << 20  # bytes of an answer

TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND = "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"
NODE_NOT_FOUND = "NODE_NOT_FOUND"  # nsqadmin's own

# Refusals of an nsqd that has the feature but not the named target.
_OF_NAMES = frozenset((TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND, "MESSAGE_NOT_FOUND"))
NOT_SUPPORTED = "this nsqd has no such thing"


@dataclass(frozen=True)
class NodeAnswer:
    """`value` is the answer of an nsqd that did as requested; else `message` says why not."""

    node: str
    status: int
    value: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""

    @property
    def is_done(self) -> bool:
        return self.status == 200

    @property
    def is_missing(self) -> bool:
        """Whether this nsqd is NSQ's, or older than the feature."""
        if self.status == 400:
            return self.message == "INVALID_OPTION"
        return self.status in (404, 405) and self.message not in _OF_NAMES

    @property
    def unknown(self) -> str:
        """The code of the topic or channel that this nsqd does not have; or empty."""
        is_code = self.message in (TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND)
        return self.message if self.status == 404 and is_code else ""

    @property
    def reason(self) -> str:
        return NOT_SUPPORTED if self.is_missing else self.message


def read_answer(node: str, answer: Answer, form: Form = anything) -> NodeAnswer:
    """An answer that cannot be read, or is done and has another form, counts as refused."""
    value = _parse(answer.body)
    if not isinstance(value, dict) or (answer.status == 200 and not form(value)):
        status = 502 if answer.status == 200 else answer.status
        return NodeAnswer(
            node, status, message=f"got response {answer.status}, which cannot be read"
        )
    if answer.status == 200:
        return NodeAnswer(node, 200, value)
    message = value.get("message")
    shown = message if isinstance(message, str) else f"got response {answer.status}"
    return NodeAnswer(node, answer.status, message=shown)


def _parse(body: bytes) -> Any:
    """None: not JSON, or with half a character, which no page can show."""
    try:
        value = json.loads(body) if body else {}
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


@dataclass(frozen=True)
class SeekEffect:
    """The effect of a seek on one node, in messages: `again` are delivered once more, `skipped`
    never, and `dropped` is all that the channel has now."""

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
    """The effects on the nodes that have the channel and know the position."""
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
