"""Sentences for error codes, as pages show them. The API returns the codes alone.

Pure. A code with its own text, such as `INVALID_LIMIT (allowed: ...)`, needs no sentence.
"""

import re

_NAME = "name has 1 to 64 of the characters a-z A-Z 0-9 . _ -, and may end with #ephemeral"
_TEXTS = {
    "BODY_TOO_BIG": "The request is larger than the daemon accepts",
    "CHANNEL_NOT_FOUND": "The channel does not exist",
    "FORBIDDEN": "You are not permitted to do this, or another site sent the request",
    "INTERNAL_ERROR": "The request failed; the log has the reason",
    "INVALID_ACTION": "This page has no such action",
    "INVALID_CHANNEL": f"A channel's {_NAME}",
    "INVALID_DEFER": "The delay is negative, or longer than the topic's max_defer_timeout or "
    "nsqd's --max-defer-timeout",
    "INVALID_TOPIC": f"A topic's {_NAME}",
    "MESSAGE_NOT_FOUND": "The message is no longer there",
    "MSG_EMPTY": "A message needs a body",
    "MSG_TOO_BIG": "The message is larger than the topic's max_msg_size or nsqd's --max-msg-size",
    "NODE_NOT_FOUND": "There is no such nsqd",
    "NOT_A_DEAD_LETTER": "The message did not come from another channel",
    "NO_KEY_RULES": "The channel's policy has no rules for keys",
    "REDRIVE_UNDER_WAY": "Messages of the channel are already being redriven or deleted",
    "TOO_MANY_EMPTIED_KEYS": "nsqd is still dropping the messages of 1,000 keys of the channel",
    "TOO_MANY_PAUSED_KEYS": "1,000 keys of the channel are paused, which is the maximum",
    "TOO_MANY_MESSAGES": "The queue is too long to be searched for one message",
    "TOO_MANY_TOPICS": "nsqd has as many topics as its --max-topics permits",
    "TOPIC_NOT_FOUND": "The topic does not exist",
    "TOO_MANY_OPEN_FILES": "nsqd has no file descriptors left: raise its limit on open files",
    "UNREACHABLE": "One of nsqd's processes does not answer; try again",
}
_CODE = re.compile(r"(^|: )([A-Z_]+)$", re.MULTILINE)


def explained(text: str) -> str:
    """Insert sentences before the codes of an error. Each line is a code or another text, possibly
    after an nsqd's address."""

    def explain(found: re.Match[str]) -> str:
        start, code = found.groups()
        return f"{start}{_TEXTS[code]} ({code})" if code in _TEXTS else found[0]

    return _CODE.sub(explain, text)
