"""What is promised about the messages of which topic: durability and retention, by name.

Owns the matching of topic names with patterns. Reads no file (config.py does) and enforces nothing:
a worker asks once for each topic that it makes.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nsqcy.names import MAX_NAME_LENGTH, is_ephemeral

DURABILITIES = ("memory", "os", "fsync")

PATTERN_ALLOWED = "a topic's name, in which * ? [abc] and [!abc] stand for other characters"

_ATOM = r"[.a-zA-Z0-9_?-]|\[!?[.a-zA-Z0-9_-]+\]"


class TopicPolicy(NamedTuple):
    """durability       when a publish is answered: at once, when the log has written it to the page
                     cache ("os"), or when it is synced ("fsync")
    retention_time   ns for which messages are kept although every channel is done with them
    retention_bytes  bytes of such messages that are kept; with both 0 none are
    """

    durability: str = "memory"
    retention_time: int = 0
    retention_bytes: int = 0


EPHEMERAL = TopicPolicy()  # it has no log to keep a promise with


class Policies:
    """The policy of every topic there may be: of all sections that match its name, in their order,
    the last word on each key."""

    def __init__(
        self,
        default: TopicPolicy = EPHEMERAL,
        sections: Iterable[tuple[str, Mapping[str, Any]]] = (),
    ) -> None:
        self._default = default
        self._sections = tuple((pattern, dict(values)) for pattern, values in sections)

    def topic(self, name: str) -> TopicPolicy:
        if is_ephemeral(name):
            return EPHEMERAL
        policy = self._default
        for pattern, values in self._sections:
            if fnmatch.fnmatchcase(name, pattern):
                policy = policy._replace(**values)
        return policy

    def to_json(self) -> dict[str, Any]:
        """For json.dumps; from_json() reads it back in another process."""
        return {"default": self._default._asdict(), "sections": self._sections}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Policies":
        return cls(TopicPolicy(**data["default"]), data["sections"])


def can_match(pattern: str) -> bool:
    """Whether there are topics with a log that the pattern can be meant for."""
    if not re.fullmatch(rf"(?:{_ATOM}|\*)+", pattern):
        return False
    shortest = len(re.findall(_ATOM, pattern))
    impossible = "(?!)"  # what an empty range such as [z-a] becomes
    return shortest <= MAX_NAME_LENGTH and impossible not in fnmatch.translate(pattern)
