"""Parameters that several nsqd routes share.

Defines no routes.
"""

from nsqcy import names
from nsqcy.daemon.topic_params import valid_topic
from nsqcy.errors import HttpError
from nsqcy.http.router import Request, required, whole

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def topic_of(params: dict[str, str]) -> str:
    """Return the topic from the query. Raises Refused if its name is invalid."""
    return valid_topic(params, "INVALID_TOPIC")


def any_topic(request: Request) -> str:
    """Return the topic from the query. A topic with an invalid name is treated as missing."""
    topic = required(whole(request), "topic")
    if not names.is_valid_name(topic):
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic
