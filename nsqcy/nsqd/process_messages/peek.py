"""Pages of messages to view: the request, and the format of the response.

Owns the parameters and the JSON of /channel/peek and /topic/peek, and the order of waiting
messages. broker/peek.pyx finds the messages; this module does not depend on topics or workers.
"""

import re
from base64 import b64encode
from typing import Any, NamedTuple

from nsqcy.base.core import decode_headers
from nsqcy.broker.core import Peek, PeekedMessage
from nsqcy.errors import HttpError
from nsqcy.nsqd.process_messages import positions
from nsqcy.nsqd.process_messages.positions import Place
from nsqcy.util.gotext import json_bytes

# messages that are not in any channel yet; all messages that the topic retains
BACKLOG, LOG = TOPIC_STATES = ("backlog", "log")
QUEUED, IN_FLIGHT, DEFERRED = CHANNEL_STATES = ("queued", "in_flight", "deferred")
COUNT, MAX_COUNT = 20, 100
BYTES, MAX_BYTES = 64 << 10, 512 << 10  # per body
MAX_KEY = 255  # bytes
MAX_ANSWER = 1 << 20

_NUMBER = re.compile(r"[0-9]{1,6}", re.ASCII)
_PLACE = re.compile(r"(-?[0-9]{1,19})\.([0-9]{1,19})", re.ASCII)
_FROM_END = re.compile(r"-[0-9]{1,6}", re.ASCII)


Placed = tuple[str, PeekedMessage]  # a page's `start`, and its first message


class Look(NamedTuple):
    """A request for up to `maximum` messages after a place, with up to `max_body` bytes per
    body.

    place: starting point in a log; a negative sequence number counts from its end. first: the
    oldest message of the log. key: only messages with this key; "": all.
    """

    state: str
    maximum: int
    start: tuple[int, int] | None
    max_body: int
    place: Place | None = None
    first: int = 0
    key: str = ""

    @property
    def key_bytes(self) -> bytes:
        return self.key.encode("utf-8", "surrogateescape")


def parse(params: dict[str, str], *, of_channel: bool) -> Look:
    """Raises HttpError."""
    states = CHANNEL_STATES if of_channel else TOPIC_STATES
    state = params.get("state", states[0])
    if state not in states:
        raise HttpError(400, f"INVALID_STATE (allowed: {', '.join(states)})")
    count = _number(params, "count", COUNT, 1, MAX_COUNT)
    size = _number(params, "bytes", BYTES, 0, MAX_BYTES)
    start = None
    if "start" in params:
        place = _PLACE.fullmatch(params["start"])
        start = (int(place[1]), int(place[2])) if place else (1 << 64, 0)
        if max(map(abs, start)) >> 63:
            raise HttpError(400, "INVALID_START (allowed: the value of next in a response)")
    key = params.get("key", "")
    if "key" in params and not 1 <= len(key.encode("utf-8", "surrogateescape")) <= MAX_KEY:
        raise HttpError(400, f"INVALID_KEY (allowed: 1 to {MAX_KEY} bytes)")
    return Look(state, count, start, size, _log_place(params, state), key=key)


def _log_place(params: dict[str, str], state: str) -> Place | None:
    if "from" not in params:
        return None
    if state != LOG or "start" in params:
        raise HttpError(400, "INVALID_FROM (allowed with state=log, and without start)")
    if _FROM_END.fullmatch(params["from"]):
        return Place(int(params["from"]))
    try:
        return positions.parse(params["from"])
    except ValueError:
        raise HttpError(
            400, f"INVALID_FROM (allowed: {positions.ALLOWED}, or -20 for the last 20)"
        ) from None


def in_log(look: Look, seq: int, first: int, end: int) -> Look:
    """Return the request with its starting point in a log that contains the messages from `first`
    up to, but not including, `end`. seq: the requested sequence number."""
    begin = look.start[0] if look.start else seq if seq >= 0 else end + seq
    return look._replace(start=(max(begin, first), 0), first=first)


def _number(params: dict[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    text = params.get(name)
    if text is None:
        return default
    found = _NUMBER.fullmatch(text)
    if found is None or not minimum <= int(text) <= maximum:
        raise HttpError(400, f"INVALID_{name.upper()} (allowed: {minimum} to {maximum})")
    return int(text)


def after(look: Look) -> tuple[int, int] | None:
    """Return the place after which to start, in Peek's form."""
    if look.state in (IN_FLIGHT, DEFERRED):
        return look.start
    seq, passed = look.start or (0, 0)
    return max(seq, 0), passed


def page(look: Look, peek: Peek) -> bytes:
    """The answer."""
    found, following = (_by_time if look.state in (IN_FLIGHT, DEFERRED) else _waiting)(look, peek)
    messages = [
        {"start": start} | _shown(each, look.state)
        for start, each in found
        if not look.key or each.key == look.key_bytes
    ]
    shown = {"state": look.state, "messages": messages, "next": following}
    if look.state == LOG:
        shown["previous"] = _previous(look, peek)
    return json_bytes(shown)


def _previous(look: Look, peek: Peek) -> str | None:
    """Return the place of the previous page of the same size; None at the beginning of the log."""
    begin = min(look.start[0] if look.start else 0, peek.next_seq)
    return None if begin <= look.first else f"{max(begin - look.maximum, look.first)}.0"


def _by_time(look: Look, peek: Peek) -> tuple[list[Placed], str | None]:
    """Return in-flight or deferred messages in their order."""
    before, seq = look.start or (-(1 << 63) + 1, 0)
    found: list[Placed] = []
    size = 0
    for each in peek.entries:
        size += _size(each)
        if found and size > MAX_ANSWER:
            break
        found.append((f"{before}.{seq}", each))
        before, seq = each.place, each.seq
    is_last = len(found) == len(peek.entries) and not peek.more_held
    return found, None if is_last else f"{before}.{seq}"


def _waiting(look: Look, peek: Peek) -> tuple[list[Placed], str | None]:
    """Merge in delivery order: requeued messages come before the first record that follows their
    place."""
    entries, records = peek.entries, peek.records
    passed = look.start[1] if look.start else 0
    found: list[Placed] = []
    size = one = other = 0
    while True:
        has_record = other < len(records)
        seq = records[other].seq if has_record else peek.next_seq
        is_first = one < len(entries) and entries[one].place <= seq
        if is_first or (one < len(entries) and peek.is_complete and not has_record):
            each, step = entries[one], (1, 0)
        elif has_record and (one < len(entries) or not peek.more_held):
            each, step = records[other], (0, 1)
        else:
            break
        size += _size(each)
        if len(found) == look.maximum or (found and size > MAX_ANSWER):
            break
        found.append((f"{seq}.{passed + one}", each))
        one, other = one + step[0], other + step[1]
    is_last = one == len(entries) and not has_record and peek.is_complete and not peek.more_held
    return found, None if is_last else f"{seq}.{passed + one}"


def _size(message: PeekedMessage) -> int:
    """Return an upper bound on a message's JSON size in bytes."""
    return 400 + 4 * len(message.body) // 3 + 6 * (len(message.headers) + len(message.key))


def _shown(message: PeekedMessage, state: str) -> dict[str, Any]:
    is_readable = message.size >= 0
    shown: dict[str, Any] = {
        "id": f"{message.id:016x}" if message.id else None,
        "seq": message.seq,
        "timestamp": message.timestamp or None,
        "attempts": message.attempts,
        "size": message.size if is_readable else None,
        "body": b64encode(message.body).decode() if is_readable else None,
        "cut": len(message.body) < message.size,
        "headers": decode_headers(message.headers),
    }
    if message.key:
        shown["key"] = message.key.decode("utf-8", "backslashreplace")
    if state == DEFERRED:
        shown["due"] = message.time
    elif state == IN_FLIGHT:
        shown["deadline"] = message.time or None
        shown["consumer"] = _consumer(message.client)
    return shown


def _consumer(client: tuple[str, str] | None) -> dict[str, str] | None:
    return client and {"client_id": client[0], "remote_address": client[1]}
