"""What one nsqd says to a request that NSQ's know nothing of.

Pure. Tells an nsqd that has no such thing from one that refuses.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsqcy.cluster.web_client import Answer
from nsqcy.nsqadmin.answer_forms import Form, anything

SAID_MOST = 8 << 20  # bytes of an answer

TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND = "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"
NODE_NOT_FOUND = "NODE_NOT_FOUND"  # which nsqadmin itself says

# What our nsqd refuses with where it has the thing and not what it is asked for.
_OF_NAMES = frozenset((TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND, "MESSAGE_NOT_FOUND"))
NO_SUCH_THING = "this nsqd has no such thing"


@dataclass(frozen=True)
class Said:
    """`value` is what it answered, if it did as asked; else `message` says why not."""

    node: str
    status: int
    value: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""

    @property
    def is_done(self) -> bool:
        return self.status == 200

    @property
    def is_missing(self) -> bool:
        """Whether this nsqd is NSQ's, or older than the thing."""
        if self.status == 400:
            return self.message == "INVALID_OPTION"
        return self.status in (404, 405) and self.message not in _OF_NAMES

    @property
    def unknown(self) -> str:
        """Which of a topic and a channel this nsqd does not have, by its code; or empty."""
        is_code = self.message in (TOPIC_NOT_FOUND, CHANNEL_NOT_FOUND)
        return self.message if self.status == 404 and is_code else ""

    @property
    def reason(self) -> str:
        return NO_SUCH_THING if self.is_missing else self.message


def read(node: str, answer: Answer, form: Form = anything) -> Said:
    """An answer that makes no sense, or is done and has another form, is a refusal."""
    value = _parse(answer.body)
    if not isinstance(value, dict) or (answer.status == 200 and not form(value)):
        status = 502 if answer.status == 200 else answer.status
        return Said(node, status, message=f"got response {answer.status}, which cannot be read")
    if answer.status == 200:
        return Said(node, 200, value)
    message = value.get("message")
    shown = message if isinstance(message, str) else f"got response {answer.status}"
    return Said(node, answer.status, message=shown)


def _parse(body: bytes) -> Any:
    """None: it is no JSON, or has what no page can show: half a character."""
    try:
        value = json.loads(body) if body else {}
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value
