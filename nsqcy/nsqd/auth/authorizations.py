"""Auth server responses: what a client may do, and for how long.

This module only parses responses and decides; client.py sends the queries. No text in this module,
including error texts, contains a client's secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import re2

from nsqcy.errors import NsqError
from nsqcy.ipc.core import Quota
from nsqcy.util import gojson

MAX_ANSWER = 1 << 20  # maximum bytes per response
MAX_EXPRESSIONS = 2000  # maximum expressions per response; bounds the time for a decision
MAX_EXPRESSION = 64 << 10  # maximum bytes per compiled expression
MAX_STEPS = 100_000  # maximum total size of a response's compiled expressions; bounds memory
MAX_DECISIONS = 1000  # maximum cached decisions per response
MAX_TTL = 10 * 365 * 86400  # seconds; longer than any connection lasts
PERMISSIONS = frozenset({"subscribe", "publish"})


class AuthFailure(NsqError):
    """The client's permissions are unknown. The text is for the log and contains no secret."""


class Covers(Protocol):
    """A client permission."""

    def covers(self, permission: str, topic: str, channel: str) -> bool: ...


class Grant(NamedTuple):
    """One of the authorizations in a response."""

    topic: Any  # compiled expressions; each may match anywhere in a name
    channels: tuple[Any, ...]
    permissions: frozenset[str]

    def covers(self, permission: str, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.search(topic) is not None
            and any(each.search(channel) is not None for each in self.channels)
        )


@dataclass(eq=False, slots=True, weakref_slot=True)
class Authorization:
    """The content of a response. Several connections may share it."""

    source: bytes = field(repr=False)
    ttl: int  # seconds
    identity: str
    identity_url: str
    grants: Sequence[Covers] = field(repr=False)
    quota: Quota | None = field(default=None, repr=False)
    _decisions: dict[tuple[str, str, str], bool] = field(default_factory=dict, repr=False)

    def permits(self, topic: str, channel: str) -> bool:
        """Return whether the client may subscribe to the channel or, if no channel is given,
        publish to the topic."""
        return self._allows("subscribe" if channel else "publish", topic, channel)

    def permits_log(self, topic: str) -> bool:
        """Return whether the client may read the topic's log, which contains the messages of all
        channels."""
        return self._allows("subscribe", topic, "")

    def _allows(self, permission: str, topic: str, channel: str) -> bool:
        known = self._decisions.get((permission, topic, channel))
        if known is None:
            known = any(grant.covers(permission, topic, channel) for grant in self.grants)
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[permission, topic, channel] = known
        return known

    @property
    def response(self) -> bytes:
        """Return the response to the client's AUTH."""
        return gojson.encode(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": len(self.grants),
            }
        )


_TEXTS = gojson.array(gojson.text, "")
_GRANT: gojson.Fields = {
    "topic": (gojson.text, None),
    "channels": (_TEXTS, []),
    "permissions": (_TEXTS, []),
}
_ANSWER: gojson.Fields = {
    "ttl": (gojson.int64, 0),
    "identity": (gojson.text, ""),
    "identity_url": (gojson.text, ""),
    "authorizations": (gojson.array(gojson.structure(_GRANT), gojson.EMPTY), []),
}


def parse(body: bytes) -> Authorization:
    """Parse a response body. Raises AuthFailure."""
    if len(body) > MAX_ANSWER:
        raise AuthFailure(f"the response has more than {MAX_ANSWER} bytes")
    try:
        answer = gojson.decode(body, _ANSWER)
    except ValueError as error:
        raise AuthFailure(f"the response cannot be read: {error}") from None
    if answer["ttl"] <= 0:
        raise AuthFailure(f"invalid TTL {answer['ttl']} (must be > 0)")
    left = MAX_EXPRESSIONS
    steps = 0
    grants = []
    for each in answer["authorizations"]:
        if not PERMISSIONS.issuperset(each["permissions"]):
            raise AuthFailure("unknown permission (allowed: subscribe, publish)")
        if each["topic"] is None and each["channels"] and each["permissions"]:
            raise AuthFailure("an authorization has no topic")
        left -= 1 + len(each["channels"])
        if left < 0:
            raise AuthFailure(f"more than {MAX_EXPRESSIONS} expressions")
        topic, *channels = (_compile(text) for text in (each["topic"] or "", *each["channels"]))
        steps += sum(expression.programsize for expression in (topic, *channels))
        if steps > MAX_STEPS:
            raise AuthFailure("expressions too large in total")
        grants.append(Grant(topic, tuple(channels), frozenset(each["permissions"])))
    return Authorization(
        source=body,
        ttl=min(answer["ttl"], MAX_TTL),
        identity=answer["identity"],
        identity_url=answer["identity_url"],
        grants=tuple(grants),
    )


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_EXPRESSION
    return options


_OPTIONS = _options()


def _compile(text: str) -> Any:
    # RE2, as in NSQ. `re` accepts more expressions, which would surprise NSQ users, and some of
    # them take hours to match twenty characters.
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        reason = error.args[0]
        # After the colon, the error quotes the expression, which may contain anything that the
        # server has echoed.
        shown = str(reason, "utf-8", "replace").partition(":")[0]
        raise AuthFailure(f"invalid expression: {shown}") from None
