"""nsqadmin's HTTP API: the routes, their parameters, and what each of them does.

Knows no connection: only requests, the options and the gathering. A handler that asks somebody runs
in a thread.
"""

from collections.abc import Sequence
from typing import Any

from nsqcy.cluster.discovery import daemon_url
from nsqcy.cluster.stats import sum_topics
from nsqcy.config.options import Option
from nsqcy.errors import HttpError, RequestError
from nsqcy.http import config_api
from nsqcy.http.parser import JSON, Fault, Reply
from nsqcy.http.router import Handler, Request, Result, Route, ignored
from nsqcy.nsqadmin import access, acting, operation_api, shapes
from nsqcy.nsqadmin.api_forms import Json, done, post, read_body, shown
from nsqcy.nsqadmin.graphite import passed_on
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqadmin.surroundings import Surroundings, body_limit, guarded, segments
from nsqcy.util.gotext import json_bytes

_KEEP = (("Cache-Control", "public, max-age=31536000, immutable"),)

# What there is


def ping(api: Surroundings, request: Request) -> str:
    return "OK"


def asset(api: Surroundings, request: Request) -> Reply:
    (name,) = segments(request, 1)
    return _file(api, name)


def asset_of_version(api: Surroundings, request: Request) -> Reply:
    """For browsers to keep. A page of another nsqcy that is still open gets what there is now."""
    version, name = segments(request, 2)
    return _file(api, name, _KEEP if version == api.assets.version else ())


def _file(api: Surroundings, name: str, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    found = api.assets.find(name)
    if found is None:
        raise HttpError(404, "NOT_FOUND")
    body, content_type = found
    return Reply(200, body, content_type, nsq=False, headers=headers)


def topics(api: Surroundings, request: Request) -> Json:
    params = request.params
    gathering = api.gathering()
    if params.get("inactive") == "true":
        inactive = gathering.inactive_topics()
        found: Any = {topic: channels or None for topic, channels in inactive.items()}
    else:
        found = gathering.topics() or None
    return shown({"topics": found}, gathering)


def topic(api: Surroundings, request: Request) -> Json:
    (name,) = segments(request, 1)
    gathering = api.gathering()
    rows = gathering.topic(name)
    return shown(api.shapes(rows).topic(sum_topics(rows.topics)[name]), gathering)


def channel(api: Surroundings, request: Request) -> Json:
    name, channel = segments(request, 2)
    gathering = api.gathering()
    rows = gathering.topic(name, channel, clients=True)
    found = sum_topics(rows.topics)[name].channels[channel]
    return shown(api.shapes(rows).channel(found), gathering)


def nodes(api: Surroundings, request: Request) -> Json:
    gathering = api.gathering()
    return shown({"nodes": [*map(shapes.node, gathering.nodes())] or None}, gathering)


def node(api: Surroundings, request: Request) -> Json:
    (name,) = segments(request, 1)
    gathering = api.gathering()
    rows = gathering.node(name)
    return shown(shapes.node_page(name, rows.topics, api.shapes(rows)), gathering)


def counter(api: Surroundings, request: Request) -> Json:
    gathering = api.gathering()
    return shown({"stats": shapes.counter(gathering.everything().topics)}, gathering)


# What is done


def create(api: Surroundings, request: Request) -> Json:
    topic, channel = read_body(request, "topic", "channel")
    return done(acting.create(api, request, topic, channel))


def act_on_topic(api: Surroundings, request: Request) -> Json:
    (action,) = read_body(request, "action")
    return done(acting.act(api, request, action, *segments(request, 1)))


def act_on_channel(api: Surroundings, request: Request) -> Json:
    (action,) = read_body(request, "action")
    beyond = operation_api.ON_CHANNEL.get(action)
    if beyond is not None:
        return beyond(api, request, *segments(request, 2))
    return done(acting.act(api, request, action, *segments(request, 2)))


def delete_topic(api: Surroundings, request: Request) -> Json:
    return done(acting.delete(api, request, *segments(request, 1)))


def delete_channel(api: Surroundings, request: Request) -> Json:
    return done(acting.delete(api, request, *segments(request, 2)))


def tombstone(api: Surroundings, request: Request) -> Json:
    (node,) = segments(request, 1)
    try:
        (topic,) = read_body(request, "topic")
    except HttpError as error:
        raise HttpError(error.status, "INVALID_BODY") from None
    return done(acting.tombstone(api, request, node, topic))


# Graphite


def graphite(api: Surroundings, request: Request) -> Json:
    params = request.params
    if params.get("metric") != "rate":
        raise HttpError(400, "INVALID_ARG_METRIC")
    target = params.get("target")
    if target is None:
        raise HttpError(400, "INVALID_ARG_TARGET")
    try:
        return {"rate": api.graphite.rate(target)}
    except RequestError as error:
        api.log.error(f"failed to query graphite - {error}")
        raise HttpError(500, "INTERNAL_ERROR") from None


def render(api: Surroundings, request: Request) -> Reply:
    head = request.head
    headers = passed_on(dict(head.headers))
    before, peer = head.header("X-Forwarded-For"), request.peer.rpartition(":")[0].strip("[]")
    headers["X-Forwarded-For"] = f"{before}, {peer}" if before else peer
    try:
        answer = api.graphite.render(head.target, headers)
    except RequestError as error:
        api.log.error(f"failed to query graphite - {error}")
        return Reply(502, nsq=False, logged=False)
    others = passed_on(answer.headers)
    kind = others.pop("content-type", "")
    headers_back = list(others.items())
    return Reply(answer.status, answer.body, kind, nsq=False, headers=headers_back, logged=False)


# Options


def _option(api: Surroundings, request: Request) -> Option:
    if not access.is_inside(request.peer, api.options.config_network):
        raise HttpError(403, "FORBIDDEN")
    option = config_api.find(NSQADMIN, segments(request, 1)[0])
    if option is None:
        raise HttpError(400, "INVALID_OPTION")
    return option


def get_option(api: Surroundings, request: Request) -> Result:
    return _show(api, _option(api, request))


def _show(api: Surroundings, option: Option) -> Result:
    value = getattr(api.options, option.name)
    return value if config_api.is_text(option) else Reply(200, json_bytes(value), JSON)


def put_option(api: Surroundings, request: Request) -> Result:
    option = _option(api, request)
    body = request.body
    if body.fault is Fault.TOO_BIG or not body.data:
        raise HttpError(413, "INVALID_VALUE")
    if not option.runtime:
        raise HttpError(400, "INVALID_OPTION")
    try:
        value = config_api.read(option, bytes(body.data))
        if isinstance(value, tuple):  # of addresses, which must be such as can be asked
            for each in value:
                daemon_url(str(each))
    except ValueError:
        raise HttpError(400, "INVALID_VALUE") from None
    api.change_option(option, value)
    return _show(api, option)


# Routes


def _delete(path: str, handler: Handler) -> Route:
    return Route("DELETE", path, guarded(handler), body=ignored)


PROXY = Route("GET", "/render", render, plain=True)
ROUTES = (
    Route("GET", "/ping", ping, plain=True, inline=True),
    Route("GET", "/static/:asset", asset, plain=True, inline=True),
    Route("GET", "/static/:version/:asset", asset_of_version, plain=True, inline=True),
    Route("GET", "/fonts/:asset", asset, plain=True, inline=True),
    Route("GET", "/api/topics", topics),
    Route("GET", "/api/topics/:topic", topic),
    Route("GET", "/api/topics/:topic/:channel", channel),
    Route("GET", "/api/nodes", nodes),
    Route("GET", "/api/nodes/:node", node),
    Route("GET", "/api/counter", counter),
    Route("GET", "/api/graphite", graphite),
    post("/api/topics", create),
    post("/api/topics/:topic", act_on_topic),
    post("/api/topics/:topic/:channel", act_on_channel),
    _delete("/api/topics/:topic", delete_topic),
    _delete("/api/topics/:topic/:channel", delete_channel),
    Route("DELETE", "/api/nodes/:node", guarded(tombstone), body=body_limit),
    Route("GET", "/config/:opt", get_option, inline=True),
    Route("PUT", "/config/:opt", put_option, body=body_limit, inline=True),
)
