"""The limits of an nsqd for publishes, from its responses to IDENTIFY and LIMITS.

Decides which publishes exceed the limits, and creates nsqd's error for them. nsqd closes the
connection after such a refusal, so these publishes are not sent. Independent of connections.
"""

import math
from typing import Any

from nsqcy.client.codec import Publish
from nsqcy.client.errors import NsqdError

DEFERRED = b"D"[0]  # first byte of DPUB
COUNT = 4  # size, in bytes, of the count that precedes the messages of an MPUB
HEADERS_SIZE = 2  # size, in bytes, of the length field that precedes headers


class Limits:
    """Limits of one nsqd, or of one of its topics. A limit that is not announced is infinite.

    `harmless`: a PUB or MPUB whose body has at most this many bytes exceeds no limit
    """

    __slots__ = ("_body", "_defer", "_headers", "_message", "harmless")

    def __init__(self, announced: object, *, headers: bool) -> None:
        known = announced if isinstance(announced, dict) else {}
        self._message = _limit(known, "max_msg_size")
        self._body = _limit(known, "max_body_size")
        self._defer = _limit(known, "max_defer_timeout")  # milliseconds
        self._headers = headers
        self.harmless = min(self._message, self._body)

    def refusal(self, publish: Publish) -> NsqdError | None:
        """Return nsqd's error for this publish, or None if it exceeds no limit."""
        verb, *words = publish.head.decode().split()
        text = None
        if verb == "MPUB":
            text = self._fault_of_batch(publish.body)
        else:
            if verb == "DPUB":
                text = self._fault_of_delay(int(words[1]))
            text = text or self._fault_of_message(verb, publish.body, 0, len(publish.body))
        return None if text is None else NsqdError(text)

    def _fault_of_delay(self, milliseconds: int) -> str | None:
        if milliseconds < 0:
            return f"E_INVALID DPUB could not parse timeout {milliseconds}"
        if milliseconds > self._defer:
            return f"E_INVALID DPUB timeout {milliseconds} out of range 0-{self._defer}"
        return None

    def _fault_of_message(self, verb: str, data: bytes, at: int, size: int) -> str | None:
        if self._headers:  # headers do not count
            size -= HEADERS_SIZE + int.from_bytes(data[at : at + HEADERS_SIZE], "big")
        if size > self._message:
            return f"E_BAD_MESSAGE {verb} message too big {size} > {self._message}"
        return None

    def _fault_of_batch(self, data: bytes) -> str | None:
        if len(data) > self._body + COUNT:
            return f"E_BAD_BODY MPUB body too big {len(data)} > {self._body}"
        if len(data) <= self._message:
            return None
        at = COUNT
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            if (text := self._fault_of_message("MPUB", data, at + 4, size)) is not None:
                return text
            at += 4 + size
        return None


def _limit(announced: dict[str, Any], name: str) -> float:
    limit = announced.get(name)
    return limit if isinstance(limit, int) and limit > 0 else math.inf


UNLIMITED = Limits(None, headers=False)
