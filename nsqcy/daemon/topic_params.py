"""Topic and channel parameters of HTTP requests, for the APIs of nsqd and nsqlookupd.

Owns the name checks. A missing or invalid name returns status 400.
"""

from nsqcy import names
from nsqcy.errors import HttpError
from nsqcy.http.router import Request, required, whole


def valid_topic(params: dict[str, str], code: str) -> str:
    topic = required(params, "topic")
    if not names.is_valid_name(topic):
        raise HttpError(400, code)
    return topic


def topic_and_channel(request: Request) -> tuple[str, str]:
    return names_of_channel(whole(request))


def names_of_channel(params: dict[str, str]) -> tuple[str, str]:
    topic = valid_topic(params, "INVALID_ARG_TOPIC")
    channel = required(params, "channel")
    if not names.is_valid_name(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic, channel
