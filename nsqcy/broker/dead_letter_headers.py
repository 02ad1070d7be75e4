"""Headers that describe a dead letter's origin.

Owns the names of these headers, and the changes to the message's own headers.
"""

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from nsqcy.base.core import decode_headers, encode_headers
from nsqcy.names import is_ephemeral, is_valid_name
from nsqcy.util.one_line import one_line

MAX_CLIENT_ID = 512  # maximum bytes of the last client's name
MAX_TEXT = 512  # maximum bytes of a consumer's reason
OWN_TTL = "origin-ttl"  # the message's own time to live, which does not apply to a dead letter
DROPPED = "headers-dropped"  # the message's own headers are missing: they did not fit

NAMES = frozenset(
    (
        "origin-topic",
        "origin-channel",
        "origin-id",
        "attempts",
        "first-time",
        "last-client",
        "reason",
        "reason-text",
        OWN_TTL,
        DROPPED,
    )
)


# The first header of a message that returns to a single channel.
ADDRESS = "nsqcy-channel"
NO_CHANNEL = "its channel is gone"

# The channel in a closed log that contains the messages that its topic kept for future channels. No
# client can use the name.
BACKLOG = "~backlog"


class Origin(NamedTuple):
    """A dead letter's origin, and the headers that the message had there."""

    topic: str
    channel: str
    """Empty: the message belongs to the topic itself."""
    headers: bytes


def _bytes(headers: dict[str, str]) -> bytes:
    return encode_headers(
        [
            (name.encode(), value.encode("utf-8", "surrogateescape"))
            for name, value in headers.items()
        ]
    )


def headers_of(
    own: bytes,
    *,
    topic: str,
    channel: str,
    id: int,
    attempts: int,
    first_time: int,
    client: str,
    reason: str,
    text: str = "",
) -> bytes:
    """Return the headers for a dead letter. `own` are the message's own headers, which follow the
    new ones. A header in `own` with the name of a new one is removed; if the headers do not fit,
    all of `own` is removed. `text`: the consumer's reason, if it has rejected the message."""
    ours = {
        "origin-topic": topic,
        "origin-channel": channel,
        "origin-id": f"{id:016x}",
        "attempts": str(attempts),
        "first-time": str(first_time),
        "last-client": client.encode("utf-8", "surrogateescape")[:MAX_CLIENT_ID].decode(
            "utf-8", "ignore"
        ),
        "reason": reason,
        "reason-text": text,
    }
    if not client:
        del ours["last-client"]
    if not text:
        del ours["reason-text"]
    if not own:
        return _bytes(ours)
    theirs = {name: value for name, value in decode_headers(own).items() if name not in NAMES}
    if "ttl" in theirs:
        theirs[OWN_TTL] = theirs.pop("ttl")
    try:
        return _bytes(ours | theirs)
    except ValueError:
        return _bytes(ours | {DROPPED: "true"})


def text_of(word: bytes) -> str:
    """Return a consumer's reason from its percent-encoded form."""
    return one_line(unquote_to_bytes(word).decode("utf-8", "replace"), MAX_TEXT)


def origin_of(headers: bytes) -> Origin | None:
    """Return a message's origin; None if it is not a dead letter."""
    found = decode_headers(headers)
    topic, channel = found.get("origin-topic", ""), found.get("origin-channel", "")
    if not is_valid_name(topic) or not is_valid_name(channel) or is_ephemeral(topic):
        return None
    own = {name: value for name, value in found.items() if name not in NAMES}
    if OWN_TTL in found:
        own["ttl"] = found[OWN_TTL]
    return Origin(topic, channel, _bytes(own) if own else b"")


def addressed(origin: Origin) -> bytes:
    """Return the headers for a message that returns to its origin."""
    if not origin.channel:
        return origin.headers
    return _bytes({ADDRESS: origin.channel}) + origin.headers


# The first header of a message that moves to another topic: what was taken from the message when it
# was published, in the form of the record's extension. It precedes the address.
_TAKEN = b"\x0bnsqcy-taken"


def taken(given: int, priority: int, key: bytes, id: bytes) -> bytes:
    """Return that header."""
    value = bytes((given, priority, len(key), len(id))) + key + id
    return _TAKEN + len(value).to_bytes(2, "big") + value


def begins_with_taken(headers: bytes) -> bool:
    """Return whether the first header has that name."""
    return headers.startswith(_TAKEN)


def without_taken(headers: bytes) -> bytes:
    """Return the headers after that header."""
    if not begins_with_taken(headers):
        return headers
    start = len(_TAKEN) + 2
    return headers[start + int.from_bytes(headers[len(_TAKEN) : start], "big") :]


def split_address(headers: bytes) -> tuple[str | None, bytes]:
    """Return the channel named in these headers, and the remaining headers."""
    head = bytes((len(ADDRESS),)) + ADDRESS.encode()
    if not headers.startswith(head):
        return None, headers
    start = len(head) + 2
    end = start + int.from_bytes(headers[len(head) : start], "big")
    return headers[start:end].decode("ascii"), headers[end:]
