"""An nsqd's responses to requests beyond NSQ's API: validation and interpretation.

Pure. A response of the expected form is used unchanged, including unknown keys; any other response
is rejected. Distinguishes an nsqd without the feature from one that refuses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nsqcy.cluster.answer_forms import (
    Form,
    anything,
    both,
    by_name,
    having,
    is_amount,
    is_flag,
    is_line,
    is_name,
    is_number,
    list_of,
    or_null,
    perhaps,
)
from nsqcy.cluster.budget import decoding
from nsqcy.cluster.stats import ChannelStats
from nsqcy.cluster.web_client import MAX_SHOWN, Answer
from nsqcy.names import one_line
from nsqcy.util import gojson

# --- answers ------------------------------------------------------------------------------------


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
        nsqcy=is_line,
    ),
)
NODE = having(
    nsqcy=is_line,
    start_time=is_number,
    refusing_publishes=list_of(is_line),
    disk=having(size=is_number, free=is_number),
    master=having(resident=is_number, cpu=is_amount),
    workers=list_of(_WORKER),
    lookupds=by_name(is_flag),
)

_GROUP = both(
    having(
        group=is_line,
        role=is_line,
        owner=is_line,
        members=list_of(is_line),
        epoch=is_number,
        copies=is_number,
        min_copies=is_number,
        durability=is_line,
        closed=is_flag,
        topics=list_of(is_name),
    ),
    perhaps(
        bytes=is_number,
        whole=is_flag,
        responding=is_number,
        accepts=is_flag,
        joining=is_line,
        damaged=list_of(is_line),
        unreadable=list_of(is_line),
    ),
)
COPIES = having(
    workers=list_of(
        both(
            having(node=is_line, etcd=is_flag, groups=list_of(_GROUP)),
            perhaps(
                ready=is_flag,
                sessions=list_of(is_line),
                registry=is_line,
                unregistered=list_of(is_line),
                mended=is_number,
            ),
        )
    )
)


MAX_ANSWER = 8 << 20  # maximum bytes of a response

TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND = "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"
NODE_NOT_FOUND = "NODE_NOT_FOUND"  # nsqadmin's own

# Refusals by an nsqd that supports the feature but does not have the target.
_OF_NAMES = frozenset((TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND, "MESSAGE_NOT_FOUND"))
NOT_SUPPORTED = "not supported by this nsqd version"


@dataclass(frozen=True)
class NodeAnswer:
    """One nsqd's response: `value` on success, otherwise the error in `message`."""

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
        """The error code if this nsqd does not have the topic or channel; otherwise empty."""
        is_code = self.message in (TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND)
        return self.message if self.status == 404 and is_code else ""

    @property
    def reason(self) -> str:
        return NOT_SUPPORTED if self.is_missing else self.message


def read_answer(node: str, answer: Answer, form: Form = anything) -> NodeAnswer:
    """Return the parsed response. Malformed responses, and successes of a different form, count as
    refusals."""
    try:
        with decoding(answer.body):
            value = gojson.decode_any(answer.body or b"{}")
    except ValueError:
        value = None
    # A status below 400 does not describe a refusal, and would change the framing of nsqadmin's own
    # response if it were passed on.
    status = answer.status if 400 <= answer.status < 600 else 502
    if not isinstance(value, dict) or (answer.status == 200 and not form(value)):
        return NodeAnswer(node, status, message=f"unreadable response with status {answer.status}")
    if answer.status == 200:
        return NodeAnswer(node, 200, value)
    message = value.get("message")
    shown = message if isinstance(message, str) else f"got response {answer.status}"
    return NodeAnswer(node, status, message=one_line(shown[:MAX_SHOWN]))


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
    """Return the effects on the nodes that have the channel and the position."""
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
