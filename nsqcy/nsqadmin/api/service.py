"""Routes of nsqadmin itself: /ping, static files, Graphite, and runtime options."""

from collections.abc import Sequence

from nsqcy.cluster.discovery import daemon_url
from nsqcy.errors import HttpError, RequestError
from nsqcy.http import config_api
from nsqcy.http.parser import JSON, Fault, Reply
from nsqcy.http.router import Request, Result, Route
from nsqcy.nsqadmin.api.stats_json import Json
from nsqcy.nsqadmin.auth import access
from nsqcy.nsqadmin.context import AppContext, body_limit
from nsqcy.nsqadmin.graphite import passed_on
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqadmin.requests import segments
from nsqcy.options.option import Option
from nsqcy.util.gotext import json_bytes

_KEEP = (("Cache-Control", "public, max-age=31536000, immutable"),)


def ping(app: AppContext, request: Request) -> str:
    return "OK"


# Files


def asset(app: AppContext, request: Request) -> Reply:
    (name,) = segments(request, 1)
    return _file(app, name)


def asset_of_version(app: AppContext, request: Request) -> Reply:
    """Return a file that browsers may cache forever. A page left open from a different nsqcy
    version gets the current file."""
    version, name = segments(request, 2)
    return _file(app, name, _KEEP if version == app.assets.version else ())


def _file(app: AppContext, name: str, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    found = app.assets.find(name)
    if found is None:
        raise HttpError(404, "NOT_FOUND")
    body, content_type = found
    return Reply(200, body, content_type, nsq=False, headers=headers)


# Graphite


def graphite(app: AppContext, request: Request) -> Json:
    params = request.params
    if params.get("metric") != "rate":
        raise HttpError(400, "INVALID_ARG_METRIC")
    target = params.get("target")
    if target is None:
        raise HttpError(400, "INVALID_ARG_TARGET")
    try:
        return {"rate": app.graphite.rate(target)}
    except RequestError as error:
        app.log.error(f"failed to query graphite - {error}")
        raise HttpError(500, "INTERNAL_ERROR") from None


def render(app: AppContext, request: Request) -> Reply:
    head = request.head
    headers = passed_on(dict(head.headers))
    before, peer = head.header("X-Forwarded-For"), request.peer.rpartition(":")[0].strip("[]")
    headers["X-Forwarded-For"] = f"{before}, {peer}" if before else peer
    try:
        answer = app.graphite.render(head.target, headers)
    except RequestError as error:
        app.log.error(f"failed to query graphite - {error}")
        return Reply(502, nsq=False, logged=False)
    others = passed_on(answer.headers)
    kind = others.pop("content-type", "")
    headers_back = list(others.items())
    return Reply(answer.status, answer.body, kind, nsq=False, headers=headers_back, logged=False)


# Options


def _option(app: AppContext, request: Request) -> Option:
    if not access.is_inside(request.peer, app.options.config_network):
        raise HttpError(403, "FORBIDDEN")
    option = config_api.find(NSQADMIN, segments(request, 1)[0])
    if option is None:
        raise HttpError(400, "INVALID_OPTION")
    return option


def get_option(app: AppContext, request: Request) -> Result:
    return _show(app, _option(app, request))


def _show(app: AppContext, option: Option) -> Result:
    value = getattr(app.options, option.name)
    return value if config_api.is_text(option) else Reply(200, json_bytes(value), JSON)


def put_option(app: AppContext, request: Request) -> Result:
    option = _option(app, request)
    if not _may_change(app, request):
        raise HttpError(403, "FORBIDDEN")
    body = request.body
    if body.fault is Fault.TOO_BIG or not body.data:
        raise HttpError(413, "INVALID_VALUE")
    if not option.runtime:
        raise HttpError(400, "INVALID_OPTION")
    try:
        value = config_api.read(option, bytes(body.data))
        if isinstance(value, tuple):  # these are addresses: each must be valid
            for each in value:
                daemon_url(str(each))
    except ValueError:
        raise HttpError(400, "INVALID_VALUE") from None
    app.change_option(option, value)
    return _show(app, option)


def _may_change(app: AppContext, request: Request) -> bool:
    """Return whether the user may change options. A changed nsqlookupd address receives nsqadmin's
    token and decides which nsqds the pages show."""
    options = app.options
    if app.logins is not None or options.admin_user:
        return app.may_act(request.head)
    # NSQ has no token, and its rule cannot distinguish users behind a proxy on this machine.
    return not options.auth_token_file or access.is_forwarded_inside(
        request.head, options.config_network
    )


PROXY = Route("GET", "/render", render, plain=True)
ROUTES = (
    Route("GET", "/ping", ping, plain=True, inline=True),
    Route("GET", "/static/:asset", asset, plain=True, inline=True),
    Route("GET", "/static/:version/:asset", asset_of_version, plain=True, inline=True),
    Route("GET", "/fonts/:asset", asset, plain=True, inline=True),
    Route("GET", "/api/graphite", graphite),
    Route("GET", "/config/:opt", get_option, inline=True),
    Route("PUT", "/config/:opt", put_option, body=body_limit, inline=True),
)
