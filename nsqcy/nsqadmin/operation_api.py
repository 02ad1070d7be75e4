"""The API beyond NSQ's: messages, policies, places, and what is done to one node.

Every answer has `nodes`, with what each nsqd says in its own words, or its `error`; and `message`,
as NSQ's API has it.
"""

from collections.abc import Iterable
from typing import Any

from nsqcy.errors import HttpError
from nsqcy.http.router import Request, Route, ignored
from nsqcy.nsqadmin import operating, operations, seek_views
from nsqcy.nsqadmin.api_forms import Json, post, read_body, read_object, shown
from nsqcy.nsqadmin.gathering import Gathering
from nsqcy.nsqadmin.operating import Done
from nsqcy.nsqadmin.saying import Said
from nsqcy.nsqadmin.surroundings import (
    Surroundings,
    body_limit,
    guarded,
    readable,
    refusal,
    segments,
)

LOOK = ("state", "count", "start", "bytes")  # parameters that are nsqd's


def _params(request: Request) -> dict[str, str]:
    return {name: readable(value) for name, value in request.params.items()}


def _answer(gathering: Gathering, said: Iterable[Said]) -> Json:
    return shown({"nodes": [_of_node(each) for each in said]}, gathering)


def _of_node(said: Said) -> Json:
    if not said.is_done:
        return {"node": said.node, "error": said.reason}
    return {"node": said.node, **said.value}


def _done(done: Done) -> Json:
    return _answer(done.gathering, done.said)


def _only_who_may_act(api: Surroundings, request: Request) -> None:
    """For what is looked at."""
    if refusal(api, request):
        raise HttpError(403, "FORBIDDEN")


# Messages


def peek_channel(api: Surroundings, request: Request) -> Json:
    return _peek(api, request, *segments(request, 2))


def peek_topic(api: Surroundings, request: Request) -> Json:
    return _peek(api, request, *segments(request, 1))


def _peek(api: Surroundings, request: Request, topic: str, channel: str = "") -> Json:
    _only_who_may_act(api, request)
    params = _params(request)
    look = {name: params[name] for name in LOOK if name in params}
    gathering = api.gathering()
    said = operations.peek(gathering, topic, channel, params.get("node", ""), look)
    return _answer(gathering, said)


# Policies


def get_topic_policy(api: Surroundings, request: Request) -> Json:
    return _policy(api, request, *segments(request, 1))


def get_channel_policy(api: Surroundings, request: Request) -> Json:
    return _policy(api, request, *segments(request, 2))


def _policy(api: Surroundings, request: Request, topic: str, channel: str = "") -> Json:
    gathering = api.gathering()
    node = _params(request).get("node", "")
    return _answer(gathering, operations.policies(gathering, topic, channel, node))


def put_topic_policy(api: Surroundings, request: Request) -> Json:
    return _set_policy(api, request, read_object(request), *segments(request, 1))


def put_channel_policy(api: Surroundings, request: Request) -> Json:
    return _set_policy(api, request, read_object(request), *segments(request, 2))


def delete_topic_policy(api: Surroundings, request: Request) -> Json:
    return _set_policy(api, request, None, *segments(request, 1))


def delete_channel_policy(api: Surroundings, request: Request) -> Json:
    return _set_policy(api, request, None, *segments(request, 2))


def _set_policy(
    api: Surroundings,
    request: Request,
    values: dict[str, Any] | None,
    topic: str,
    channel: str = "",
) -> Json:
    node = _params(request).get("node", "")
    return _done(operating.set_policy(api, request, topic, channel, values, node))


# Channels


def seek_preview(api: Surroundings, request: Request) -> Json:
    _only_who_may_act(api, request)
    topic, channel = segments(request, 2)
    to = _params(request).get("to", "")
    gathering = api.gathering()
    said = operations.places(gathering, topic, to)
    rows = gathering.topic(topic, channel)
    channels = [row.channels[channel] for row in rows.topics]
    moves = {each.node: each for each in seek_views.moves(channel, said, channels)}
    nodes = [
        vars(moves[each.node]) if each.node in moves else _of_node(each)
        for each in said
        if each.node in moves or not each.is_done
    ]
    return shown({"nodes": nodes}, gathering)


def redrive(api: Surroundings, request: Request, topic: str, channel: str) -> Json:
    limit, node = read_body(request, "limit", "node")
    return _done(operating.redrive(api, request, topic, channel, limit, node))


def seek(api: Surroundings, request: Request, topic: str, channel: str) -> Json:
    to, node = read_body(request, "to", "node")
    return _done(operating.seek(api, request, topic, channel, to, node))


def cancel(api: Surroundings, request: Request, topic: str, channel: str) -> Json:
    id, node = read_body(request, "id", "node")
    return _done(operating.cancel(api, request, topic, channel, id, node))


def set_rate(api: Surroundings, request: Request, topic: str, channel: str) -> Json:
    rate, node = read_body(request, "rate", "node")
    return _done(operating.set_rate(api, request, topic, channel, rate, node))


# By the name of the action, of a POST to /api/topics/:topic/:channel.
ON_CHANNEL = {"redrive": redrive, "seek": seek, "cancel": cancel, "rate": set_rate}


# Nodes


def act_on_node(api: Surroundings, request: Request) -> Json:
    (node,) = segments(request, 1)
    action, topic, channel, timeout = read_body(request, "action", "topic", "channel", "timeout")
    if action in ("drain", "undrain"):
        on = action == "drain"
        return _done(operating.drain(api, request, node, on=on, timeout=timeout))
    return _done(operating.act_on_node(api, request, node, action, topic, channel))


def drain_state(api: Surroundings, request: Request) -> Json:
    (name,) = segments(request, 1)
    gathering = api.gathering()
    said = operations.drain_state(gathering, gathering.find(name))
    return _answer(gathering, [said] if said else [])


ROUTES = (
    Route("GET", "/api/peek/:topic", peek_topic),
    Route("GET", "/api/peek/:topic/:channel", peek_channel),
    Route("GET", "/api/policy/:topic", get_topic_policy),
    Route("PUT", "/api/policy/:topic", guarded(put_topic_policy), body=body_limit),
    Route("DELETE", "/api/policy/:topic", guarded(delete_topic_policy), body=ignored),
    Route("GET", "/api/policy/:topic/:channel", get_channel_policy),
    Route("PUT", "/api/policy/:topic/:channel", guarded(put_channel_policy), body=body_limit),
    Route("DELETE", "/api/policy/:topic/:channel", guarded(delete_channel_policy), body=ignored),
    Route("GET", "/api/seek/:topic/:channel", seek_preview),
    Route("GET", "/api/drain/:node", drain_state),
    post("/api/nodes/:node", act_on_node),
)
