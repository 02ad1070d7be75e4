"""A consumer's dead letters: messages that have used up their attempts, or that the program has
rejected, in a separate topic.

Owns the rules for the option `dead_letter_topic`, and the headers of a dead letter, which are those
that nsqd itself writes. Does not publish: each interface has its own producer.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from nsqcy.client.codec import Message, headered_body
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.options import PRODUCER_PARTS
from nsqcy.client.topics import TOPIC
from nsqcy.names import is_valid_name, printable, quote
from nsqcy.options.fields import refusal
from nsqcy.util.one_line import one_line

MAX_TEXT = 512  # maximum bytes of a reason, as in nsqd
TTL = "ttl"  # the header does not apply to the dead letter, so it is renamed


def keep_dead_letters(core: ConsumerCore, topic: str, on_giving_up: object) -> None:
    """Make a consumer publish its dead letters. Raises ValueError if this topic is not allowed."""
    if not isinstance(topic, str):
        raise TypeError(refusal("dead_letter_topic", topic, "str"))
    for name in core.topics.names or ("t",):
        if not is_valid_name(topic_of_dead_letter(topic, name)):
            raise ValueError(f"dead_letter_topic {quote(topic)} is not a valid topic name")
    if any(topic_of_dead_letter(topic, name) in core.topics.names for name in core.topics.names):
        raise ValueError("dead_letter_topic cannot be the consumer's own topic")
    if core.options.max_tries == 0:
        raise ValueError("dead_letter_topic requires max_tries above 0")
    if on_giving_up is not None:
        raise ValueError("dead_letter_topic and on_giving_up cannot be combined")
    core.keeps_dead_letters = True
    core.topics.exclude_dead_letters(topic)


def topic_of_dead_letter(given: str, topic: str) -> str:
    """Return the topic for the dead letters of `topic`; `given` may contain TOPIC."""
    return given.replace(TOPIC, topic)


def producer_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a consumer that its producer also needs, such as those for TLS."""
    names = {each.name for part in PRODUCER_PARTS for each in fields(part)}
    return {name: value for name, value in options.items() if name in names}


def dead_letter_headers(core: ConsumerCore, message: Message) -> dict[str, str] | None:
    """Return the headers of a dead letter: its origin, and the message's own headers if they fit.
    None if the consumer has no headers."""
    if not core.connection_options.headers:
        return None
    text = core.rejected.get(message)
    origin = {
        "origin-topic": message.topic,
        "origin-channel": core.channel,
        "origin-id": printable(message.id),
        "attempts": str(message.attempts),
        "first-time": str(message.timestamp),
        "reason": "attempts" if text is None else "rejected",
    }
    if text:
        origin["reason-text"] = one_line(text, MAX_TEXT)
    own = {f"origin-{TTL}" if name == TTL else name: v for name, v in message.headers.items()}
    headers = origin | {name: value for name, value in own.items() if name not in origin}
    try:
        headered_body(message.body, headers)
    except ValueError:  # too many, or too long
        return origin | {"headers-dropped": "true"}
    return headers
