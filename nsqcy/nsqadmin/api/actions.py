"""API requests that change a cluster: handlers that read parameters and call
nsqcy.nsqadmin.actions.

NSQ's requests return only warnings; nsqcy's own also return each nsqd's response.
"""

from typing import Any

from nsqcy.errors import HttpError
from nsqcy.http.router import Handler, Request, Route, ignored
from nsqcy.nsqadmin import actions
from nsqcy.nsqadmin.api.stats_json import Json, node_answers
from nsqcy.nsqadmin.cluster.view import Done
from nsqcy.nsqadmin.context import AppContext, body_limit, guarded
from nsqcy.nsqadmin.requests import read_body, read_object, readable, segments

# NSQ's


def create(app: AppContext, request: Request) -> Json:
    topic, channel = read_body(request, "topic", "channel")
    return _message(actions.create(app, request, topic, channel))


def act_on_topic(app: AppContext, request: Request) -> Json:
    (action,) = read_body(request, "action")
    return _message(actions.act(app, request, action, *segments(request, 1)))


def act_on_channel(app: AppContext, request: Request) -> Json:
    (action,) = read_body(request, "action")
    ours = ON_CHANNEL.get(action)
    if ours is not None:
        return ours(app, request, *segments(request, 2))
    return _message(actions.act(app, request, action, *segments(request, 2)))


def delete_topic(app: AppContext, request: Request) -> Json:
    return _message(actions.delete(app, request, *segments(request, 1)))


def delete_channel(app: AppContext, request: Request) -> Json:
    return _message(actions.delete(app, request, *segments(request, 2)))


def tombstone(app: AppContext, request: Request) -> Json:
    (node,) = segments(request, 1)
    try:
        (topic,) = read_body(request, "topic")
    except HttpError as error:
        raise HttpError(error.status, "INVALID_BODY") from None
    return _message(actions.tombstone(app, request, node, topic))


def _message(done: Done) -> Json:
    return {"message": done.cluster.warning("\n")}


# Ours


def redrive(app: AppContext, request: Request, topic: str, channel: str) -> Json:
    limit, node = read_body(request, "limit", "node")
    return _answers(actions.redrive(app, request, topic, channel, limit, node))


def seek(app: AppContext, request: Request, topic: str, channel: str) -> Json:
    to, node = read_body(request, "to", "node")
    return _answers(actions.seek(app, request, topic, channel, to, node))


def cancel(app: AppContext, request: Request, topic: str, channel: str) -> Json:
    id, node = read_body(request, "id", "node")
    return _answers(actions.cancel(app, request, topic, channel, id, node))


def redrive_message(app: AppContext, request: Request, topic: str, channel: str) -> Json:
    id, node = read_body(request, "id", "node")
    return _answers(actions.redrive_message(app, request, topic, channel, id, node))


def delete_message(app: AppContext, request: Request, topic: str, channel: str) -> Json:
    id, node = read_body(request, "id", "node")
    return _answers(actions.delete_message(app, request, topic, channel, id, node))


def set_rate(app: AppContext, request: Request, topic: str, channel: str) -> Json:
    rate, node = read_body(request, "rate", "node")
    return _answers(actions.set_rate(app, request, topic, channel, rate, node))


# By action name, for POST /api/topics/:topic/:channel.
ON_CHANNEL = {
    "redrive": redrive,
    "redrive_message": redrive_message,
    "seek": seek,
    "cancel": cancel,
    "delete_message": delete_message,
    "rate": set_rate,
}


def act_on_node(app: AppContext, request: Request) -> Json:
    (node,) = segments(request, 1)
    action, topic, channel, timeout = read_body(request, "action", "topic", "channel", "timeout")
    if action in ("drain", "undrain"):
        on = action == "drain"
        return _answers(actions.drain(app, request, node, on=on, timeout=timeout))
    return _answers(actions.act_on_node(app, request, node, action, topic, channel))


def put_topic_policy(app: AppContext, request: Request) -> Json:
    return _set_policy(app, request, read_object(request), *segments(request, 1))


def put_channel_policy(app: AppContext, request: Request) -> Json:
    return _set_policy(app, request, read_object(request), *segments(request, 2))


def delete_topic_policy(app: AppContext, request: Request) -> Json:
    return _set_policy(app, request, None, *segments(request, 1))


def delete_channel_policy(app: AppContext, request: Request) -> Json:
    return _set_policy(app, request, None, *segments(request, 2))


def _set_policy(
    app: AppContext,
    request: Request,
    values: dict[str, Any] | None,
    topic: str,
    channel: str = "",
) -> Json:
    node = readable(request.params.get("node", ""))
    return _answers(actions.set_policy(app, request, topic, channel, values, node))


def _answers(done: Done) -> Json:
    return node_answers(done.answers, done.cluster.warning("; "))


# Routes


def _post(path: str, handler: Handler) -> Route:
    return Route("POST", path, guarded(handler), body=body_limit)


def _put(path: str, handler: Handler) -> Route:
    return Route("PUT", path, guarded(handler), body=body_limit)


def _delete(path: str, handler: Handler) -> Route:
    return Route("DELETE", path, guarded(handler), body=ignored)


ROUTES = (
    _post("/api/topics", create),
    _post("/api/topics/:topic", act_on_topic),
    _post("/api/topics/:topic/:channel", act_on_channel),
    _delete("/api/topics/:topic", delete_topic),
    _delete("/api/topics/:topic/:channel", delete_channel),
    Route("DELETE", "/api/nodes/:node", guarded(tombstone), body=body_limit),
    _post("/api/nodes/:node", act_on_node),
    _put("/api/policy/:topic", put_topic_policy),
    _delete("/api/policy/:topic", delete_topic_policy),
    _put("/api/policy/:topic/:channel", put_channel_policy),
    _delete("/api/policy/:topic/:channel", delete_channel_policy),
)
