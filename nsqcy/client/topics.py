"""The topics of one consumer: one or several by name, or all whose names match a pattern.

Owns the rules for the parameters `topic` and `topics_pattern`. Independent of existing topics.
"""

import re
from collections.abc import Iterable, Mapping

from nsqcy.names import is_ephemeral, is_valid_name, quote
from nsqcy.options.fields import refusal

MAX_NAMED = 3  # maximum number of topics in a consumer's name
TOPIC = "{topic}"  # placeholder for a message's topic in the name of its dead-letter topic

Given = str | Iterable[str]
Pattern = str | re.Pattern[str]


class Topics:
    """The topics that a consumer wants. Raises ValueError and TypeError."""

    def __init__(self, topic: Given, pattern: Pattern | None = None) -> None:
        self.names = _names(topic)  # empty if there is a pattern
        self.pattern = None if pattern is None else _compiled(pattern)
        self._dead_letters: str | None = None
        if self.pattern is None and not self.names:
            raise ValueError("a consumer needs a topic, several topics or topics_pattern")
        if self.pattern is not None and self.names:
            raise ValueError("topic and topics_pattern cannot be combined")

    @property
    def are_several(self) -> bool:
        """Return whether connections need a topic in their address."""
        return self.pattern is not None or len(self.names) > 1

    @property
    def only(self) -> str:
        """Return the only topic; empty if there are several."""
        return "" if self.are_several else self.names[0]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the topics by name, as in addresses."""
        return self.names if self.are_several else ("",)

    def require_names(self) -> None:
        """Raise ValueError if a pattern finds the topics, and with them the nsqds."""
        if self.pattern is not None:
            raise ValueError("a consumer with topics_pattern cannot use connect_to_nsqd()")

    def matches(self, topic: str) -> bool:
        """Return whether the pattern includes this topic."""
        if self.pattern is None or self.pattern.fullmatch(topic) is None or is_ephemeral(topic):
            return False
        return not self._has_dead_letters(topic)

    def exclude_dead_letters(self, given: str) -> None:
        """Exclude the topics of the consumer's own dead letters from the pattern."""
        self._dead_letters = given

    def _has_dead_letters(self, topic: str) -> bool:
        assert self.pattern is not None
        if self._dead_letters is None or TOPIC not in self._dead_letters:
            return topic == self._dead_letters
        before, _, after = self._dead_letters.partition(TOPIC)
        if not (topic.startswith(before) and topic.endswith(after)):
            return False
        origin = topic[len(before) : len(topic) - len(after)]
        return self.pattern.fullmatch(origin) is not None

    def __str__(self) -> str:
        if self.pattern is not None:
            return self.pattern.pattern
        more = len(self.names) - MAX_NAMED
        text = ",".join(self.names[:MAX_NAMED])
        return f"{text} and {more} more" if more > 0 else text


def _names(topic: Given) -> tuple[str, ...]:
    if isinstance(topic, bytes | Mapping) or not isinstance(topic, Iterable):
        raise TypeError(refusal("topic", topic, "str, or several"))
    names = (topic,) if isinstance(topic, str) else tuple(dict.fromkeys(topic))
    for each in names:
        if not isinstance(each, str):
            raise TypeError(f"a topic must be a str, not {type(each).__name__}")
        if not is_valid_name(each):
            raise ValueError(f"{quote(each)} is not a valid topic name")
    return names


def _compiled(pattern: Pattern) -> re.Pattern[str]:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str):
        raise TypeError(refusal("topics_pattern", pattern, "str or compiled str pattern"))
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"topics_pattern {pattern!r} is invalid: {error}") from None
