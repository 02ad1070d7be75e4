"""Cancels a channel's deferred messages through the HTTP API of nsqcy's nsqd.

Handles messages that change during the search. The caller selects the messages and the nsqds.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.peeking import messages
from nsqcy.errors import RequestError

NOT_FOUND = 404

PeekedMessage = Mapping[str, Any]  # as in the response of /channel/peek


def cancel_deferred(
    nsqd: NsqdHTTPClient,
    topic: str,
    channel: str,
    is_wanted: Callable[[PeekedMessage], bool],
    *,
    max_body: int = 0,
) -> int:
    """Drop the selected deferred messages, and return their number. Raises RequestError.

    Reads all deferred messages of the channel, with the first `max_body` bytes of each body. Skips
    messages that are delivered or cancelled in the meantime.
    """
    cancelled = 0
    for message in _deferred(nsqd, topic, channel, max_body):
        if message["id"] is None or not is_wanted(message):  # no id: nsqd cannot read the message
            continue
        try:
            nsqd.cancel_message(topic, channel, message["id"])
        except RequestError as error:
            if not is_missing(error):
                raise
        else:
            cancelled += 1
    return cancelled


def is_missing(error: RequestError) -> bool:
    """Return whether nsqd does not have the topic, channel or message. False for an nsqd that does
    not support the request, such as NSQ's."""
    return error.status == NOT_FOUND and b"_NOT_FOUND" in error.body


def _deferred(
    nsqd: NsqdHTTPClient, topic: str, channel: str, max_body: int
) -> Iterator[PeekedMessage]:
    return messages(
        lambda count, start: nsqd.peek_channel(
            topic, channel, "deferred", count=count, start=start, max_body=max_body
        )
    )
