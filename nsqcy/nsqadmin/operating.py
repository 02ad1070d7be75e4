"""What a user does beyond NSQ's API, by ours or by a form of a page: checked, done, and told of.

As nsqcy.nsqadmin.acting. Each gives the gathering it was done by, and what nsqds have said.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nsqcy.errors import HttpError
from nsqcy.http.router import Request
from nsqcy.nsqadmin import operations
from nsqcy.nsqadmin.acting import check_names, kind
from nsqcy.nsqadmin.gathering import Gathering
from nsqcy.nsqadmin.saying import Said
from nsqcy.nsqadmin.surroundings import Surroundings


class Done(NamedTuple):
    gathering: Gathering
    said: list[Said]


def redrive(
    api: Surroundings, request: Request, topic: str, channel: str, limit: str, node: str
) -> Done:
    gathering = _begun(api, topic, channel)
    said = operations.redrive(gathering, topic, channel, limit, node)
    api.notifier.send(request, "redrive_channel", topic, channel, node)
    return Done(gathering, said)


def seek(api: Surroundings, request: Request, topic: str, channel: str, to: str, node: str) -> Done:
    gathering = _begun(api, topic, channel)
    said = operations.seek(gathering, topic, channel, to, node)
    api.notifier.send(request, "seek_channel", topic, channel, node)
    return Done(gathering, said)


def cancel(
    api: Surroundings, request: Request, topic: str, channel: str, id: str, node: str
) -> Done:
    gathering = _begun(api, topic, channel)
    said = operations.cancel(gathering, topic, channel, id, node)
    api.notifier.send(request, "cancel_message", topic, channel, node)
    return Done(gathering, said)


def set_policy(
    api: Surroundings,
    request: Request,
    topic: str,
    channel: str,
    values: Mapping[str, Any] | None,
    node: str = "",
) -> Done:
    gathering = _begun(api, topic, channel)
    said = operations.set_policy(gathering, topic, channel, values, node)
    what = "reset" if values is None else "set"
    api.notifier.send(request, f"{what}_{kind(channel)}_policy", topic, channel, node)
    return Done(gathering, said)


def set_rate(
    api: Surroundings, request: Request, topic: str, channel: str, rate: str, node: str
) -> Done:
    gathering = _begun(api, topic, channel)
    said = operations.set_rate(gathering, topic, channel, rate, node)
    api.notifier.send(request, "rate_channel", topic, channel, node)
    return Done(gathering, said)


def drain(api: Surroundings, request: Request, node: str, *, on: bool, timeout: str = "") -> Done:
    gathering = api.gathering()
    said = operations.drain(gathering, node, on, timeout)
    api.notifier.send(request, "drain_node" if on else "undrain_node", "", node=node)
    return Done(gathering, said)


def act_on_node(
    api: Surroundings, request: Request, node: str, action: str, topic: str, channel: str
) -> Done:
    if action not in operations.ON_NODE:
        raise HttpError(400, "INVALID_ACTION")
    gathering = _begun(api, topic, channel)
    said = operations.act_on_node(gathering, node, action, topic, channel)
    api.notifier.send(request, f"{action}_{kind(channel)}", topic, channel, node)
    return Done(gathering, said)


def _begun(api: Surroundings, topic: str, channel: str) -> Gathering:
    check_names(topic, channel)
    return api.gathering()
