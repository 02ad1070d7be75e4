"""What a user does, by the API or by a form of a page: checked, done, and told of.

Each gives the gathering it was done by, which knows what went wrong.
"""

from nsqcy.errors import HttpError
from nsqcy.http.router import Request
from nsqcy.names import is_valid_name
from nsqcy.nsqadmin import actions
from nsqcy.nsqadmin.gathering import Gathering
from nsqcy.nsqadmin.surroundings import Surroundings


def create(api: Surroundings, request: Request, topic: str, channel: str) -> Gathering:
    check_names(topic, channel)
    gathering = api.gathering()
    actions.create(gathering, topic, channel)
    api.notifier.send(request, "create_topic", topic)
    if channel:
        api.notifier.send(request, "create_channel", topic, channel)
    return gathering


def act(
    api: Surroundings, request: Request, action: str, topic: str, channel: str = ""
) -> Gathering:
    if action not in actions.ON_MESSAGES:
        raise HttpError(400, "INVALID_ACTION")
    gathering = api.gathering()
    try:
        actions.act(gathering, action, topic, channel)
    finally:  # told even if nobody could be told to do it, as NSQ does
        api.notifier.send(request, f"{action}_{kind(channel)}", topic, channel)
    return gathering


def delete(api: Surroundings, request: Request, topic: str, channel: str = "") -> Gathering:
    gathering = api.gathering()
    actions.delete(gathering, topic, channel)
    api.notifier.send(request, f"delete_{kind(channel)}", topic, channel)
    return gathering


def tombstone(api: Surroundings, request: Request, node: str, topic: str) -> Gathering:
    check_names(topic)
    gathering = api.gathering()
    actions.tombstone(gathering, node, topic)
    api.notifier.send(request, "tombstone_topic_producer", topic, node=node)
    return gathering


def check_names(topic: str, channel: str = "") -> None:
    """Raises HttpError."""
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_TOPIC")
    if channel and not is_valid_name(channel):
        raise HttpError(400, "INVALID_CHANNEL")


def kind(channel: str) -> str:
    return "channel" if channel else "topic"
