"""The keys of a channel as /channel/keys lists them.

Owns the JSON of the response. channels/key_listing.pyx finds the keys; this module reads their
texts from messages, within a limited time.
"""

import time
from typing import Any

import gevent

from nsqcy.channels.core import Channel, KeyListing

WALKED_AT_ONCE = 16_384  # keys
READ_AHEAD = 32  # messages that are read from disk at the same time
READ_LIMIT = 3.0  # maximum seconds for reading texts
READ_INTERVAL = 0.002  # seconds between checks of whether a message has been read
NAMED_AT_ONCE = 256  # texts between two turns of the event loop


def page(listing: KeyListing, channel: Channel, limit: int, search: bytes) -> dict[str, Any]:
    """Return the first `limit` keys that contain a text, and whether the list has all of them."""
    found: list[dict[str, Any]] = []
    texts: set[bytes] = set()
    end = time.monotonic() + READ_LIMIT
    is_complete = not listing.is_cut
    for i in range(len(listing)):
        if len(found) == limit:
            is_complete = False
            break
        text = _text(listing, i, end)
        if text is None:
            is_complete = False
            break
        if text and search in text:
            texts.add(text)
            found.append(_shown(text, *listing.facts(i)))
        if i % NAMED_AT_ONCE == NAMED_AT_ONCE - 1:
            gevent.sleep(0)
    if not listing.only_blocked:
        idle = [each for each in channel.paused_keys if each not in texts and search in each]
        is_complete = is_complete and len(found) + len(idle) <= limit
        found += [_shown(each, 0, 0, False, 0, True) for each in idle[: limit - len(found)]]
    return {"keys": found, "complete": is_complete}


def of_key(listing: KeyListing, channel: Channel, key: bytes) -> dict[str, Any]:
    """Return one key, if it has messages or is paused."""
    listing.find(key)
    found = [_shown(key, *listing.facts(i)) for i in range(len(listing))]
    if not found and key in channel.paused_keys and not listing.only_blocked:
        found = [_shown(key, 0, 0, False, 0, True)]
    return {"keys": found, "complete": True}


def _text(listing: KeyListing, i: int, end: float) -> bytes | None:
    """Return a key's text: None if it could not be read in time; empty if the key has no message
    any more."""
    while (text := listing.text(i)) is None and time.monotonic() < end:
        for following in range(i + 1, min(i + READ_AHEAD, len(listing))):
            listing.text(following)
        gevent.sleep(READ_INTERVAL)
    return text


def _shown(
    text: bytes, waiting: int, held: int, blocked: bool, seconds: int, paused: bool
) -> dict[str, Any]:
    return {
        "key": text.decode("utf-8", "backslashreplace"),
        "depth": waiting,
        "held": held,
        "blocked": blocked,
        "blocked_seconds": seconds,
        "paused": paused,
    }
