"""nsqd's HTTP API: the routes, their parameters, and what each of them does.

Handlers get a `Request`, return data and raise `HttpError`; `Api.call` makes replies of both.
Knows no connection: only heads, bodies and the `Backend`.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from posixpath import normpath
from typing import Any
from urllib.parse import quote

from nsqcy import names
from nsqcy.errors import HttpError
from nsqcy.lines import Lines
from nsqcy.nsqd import config_api
from nsqcy.nsqd import mpub as bodies
from nsqcy.nsqd.backend import Backend, Message, Options, Outcome
from nsqcy.nsqd.debug import NoProfiler, ProfilerBusy, ProfilerFailed
from nsqcy.nsqd.gotext import json_bytes
from nsqcy.nsqd.http_protocol import HTML, JSON, PLAIN, Body, Fault, Head, Reply, parse_query
from nsqcy.nsqd.stats import Query
from nsqcy.options import Option, parse_int


class Request:
    __slots__ = ("body", "head")

    def __init__(self, head: Head, body: Body) -> None:
        self.head = head
        self.body = body

    @property
    def params(self) -> dict[str, str]:
        params = self.head.params
        if params is None:
            raise HttpError(400, "INVALID_REQUEST")
        return params


class Publish:
    """What /pub and /mpub return: to be published, and answered when that is done.

    With `error` there is nothing to publish: the topic is created, then the request refused.
    """

    __slots__ = ("bodies", "delay_ms", "error", "topic")

    def __init__(
        self,
        topic: str,
        bodies: Sequence[Message] = (),
        delay_ms: int = 0,
        error: HttpError | None = None,
    ) -> None:
        self.topic = topic
        self.bodies = bodies
        self.delay_ms = delay_ms
        self.error = error


Result = str | dict[str, Any] | Reply | Publish | None
Handler = Callable[["Api", Request], Result]
BodyRule = Callable[["Api", Head], int]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    body: BodyRule | None = None
    """How many bytes of body to read, or IGNORED; may refuse.  Without it the body is not read."""
    plain: bool = False
    """Answers are bare text, without NSQ's header, errors too."""
    logged: bool = True
    inline: bool = False
    """Never blocks, so it runs in the loop instead of a greenlet."""
    local: bool = False
    """Answered to other machines only if an option says so."""

    def error(self, error: HttpError) -> Reply:
        if self.plain:
            body = error.message.encode()
            return Reply(error.status, body, PLAIN, nsq=False, logged=self.logged)
        return json_error(error.status, error.message, logged=self.logged)


def json_error(status: int, code: str, *, logged: bool = True, allow: str = "") -> Reply:
    headers = [("Allow", allow)] if allow else []
    return Reply(status, json_bytes({"message": code}), JSON, headers=headers, logged=logged)


def tls_required(https_port: int) -> Reply:
    """What plain HTTP is answered where TLS is required, blanks and all."""
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port
    return Reply(403, body, JSON, logged=False)


IGNORED = -1

OK = Reply(200, b"OK", PLAIN, logged=False)
EMPTY = Reply(200)
EMPTY_TEXT = Reply(200, content_type=PLAIN, nsq=False)
EXITING = json_error(503, "EXITING", logged=False)
PANIC = json_error(500, "INTERNAL_ERROR")
LOCAL_ONLY = json_error(403, "LOCAL_ONLY")
NOT_FOUND = json_error(404, "NOT_FOUND")


# Parameters


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def _topic(params: dict[str, str], code: str = "INVALID_TOPIC") -> str:
    topic = _required(params, "topic")
    if not names.is_valid_name(topic):
        raise HttpError(400, code)
    return topic


def _topic_and_channel(request: Request) -> tuple[str, str]:
    params = _whole(request)
    topic = _topic(params, "INVALID_ARG_TOPIC")
    channel = _required(params, "channel")
    if not names.is_valid_name(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return topic, channel


def _required(params: dict[str, str], name: str) -> str:
    value = params.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


def _whole(request: Request) -> dict[str, str]:
    """The parameters of a request that must have arrived with all of its unused body."""
    if request.body.fault is not Fault.NONE:
        raise HttpError(400, "INVALID_REQUEST")
    return request.params


def _delay_ms(params: dict[str, str], max_req_timeout: int) -> int:
    text = params.get("defer")
    if text is None:
        return 0
    digits = text[1:] if text[:1] in ("+", "-") else text
    # int() would take more: underscores, blanks, digits of other scripts.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 4300):
        raise HttpError(400, "INVALID_DEFER")
    delay = int(text)
    if not 0 <= delay * 1_000_000 <= max_req_timeout:
        raise HttpError(400, "INVALID_DEFER")
    return delay


# Publishing


def _pub_limit(api: "Api", head: Head) -> int:
    if head.length > api.options.max_msg_size:
        raise HttpError(413, "MSG_TOO_BIG")
    return api.options.max_msg_size


def pub(api: "Api", request: Request) -> Publish:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "MSG_TOO_BIG")
    if not body.data:
        raise HttpError(400, "MSG_EMPTY")
    params = request.params
    topic = _topic(params)
    try:
        return Publish(topic, (body.data,), _delay_ms(params, api.options.max_req_timeout))
    except HttpError as error:
        return Publish(topic, error=error)


def _is_binary(params: dict[str, str]) -> bool:
    value = params.get("binary")
    return value is not None and _BOOLEANS.get(value, True)


def _mpub_limit(api: "Api", head: Head) -> int:
    limit = api.options.max_body_size
    if head.length > limit:
        raise HttpError(413, "BODY_TOO_BIG")
    params = Request(head, Body(b"")).params
    _topic(params)
    # A chunked binary body may be larger than the option says; NSQ has no limit there at all.
    return 2 * limit if head.chunked and _is_binary(params) else limit


def mpub(api: "Api", request: Request) -> Publish:
    params = request.params
    topic = _topic(params)
    value = params.get("binary", "")
    if "binary" in params and value not in _BOOLEANS:
        api.log.warn(f"deprecated value '{value}' used for /mpub binary param")
    try:
        return Publish(topic, _messages(api.options, _is_binary(params), request.body))
    except bodies.BadBody as bad:
        return Publish(topic, error=HttpError(413, bad.code))
    except HttpError as error:
        return Publish(topic, error=error)


def _messages(options: Options, binary: bool, body: Body) -> Sequence[Message]:
    if body.fault is Fault.TOO_BIG:
        raise HttpError(413, "BODY_TOO_BIG")
    if binary:  # what is missing of a cut body shows in its own lengths
        return bodies.split_binary(body.data, options.max_msg_size, options.max_body_size)
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    return bodies.split_text(body.data, options.max_msg_size)


# Topics and channels


def _ignored(api: "Api", head: Head) -> int:
    """The body must arrive whole but means nothing; it is dropped as it comes."""
    return IGNORED


def create_topic(api: "Api", request: Request) -> None:
    api.backend.create_topic(_topic(request.params))


def delete_topic(api: "Api", request: Request) -> None:
    _found_topic(api.backend.delete_topic(_any_topic(request)))


def empty_topic(api: "Api", request: Request) -> None:
    _found_topic(api.backend.empty_topic(_topic(_whole(request))))


def pause_topic(api: "Api", request: Request) -> None:
    _found_topic(api.backend.pause_topic(_any_topic(request), True))


def unpause_topic(api: "Api", request: Request) -> None:
    _found_topic(api.backend.pause_topic(_any_topic(request), False))


def _any_topic(request: Request) -> str:
    """Where a name that can be no topic's is just one that is not found."""
    topic = _required(_whole(request), "topic")
    _found_topic(names.is_valid_name(topic))
    return topic


def _found_topic(found: bool) -> None:
    if not found:
        raise HttpError(404, "TOPIC_NOT_FOUND")


def create_channel(api: "Api", request: Request) -> None:
    _found_channel(api.backend.create_channel(*_topic_and_channel(request)))


def delete_channel(api: "Api", request: Request) -> None:
    _found_channel(api.backend.delete_channel(*_topic_and_channel(request)))


def empty_channel(api: "Api", request: Request) -> None:
    _found_channel(api.backend.empty_channel(*_topic_and_channel(request)))


def pause_channel(api: "Api", request: Request) -> None:
    _found_channel(api.backend.pause_channel(*_topic_and_channel(request), True))


def unpause_channel(api: "Api", request: Request) -> None:
    _found_channel(api.backend.pause_channel(*_topic_and_channel(request), False))


def _found_channel(outcome: Outcome) -> None:
    if outcome != "ok":
        raise HttpError(404, outcome)


# The whole


def ping(api: "Api", request: Request) -> str:
    health = api.backend.health()
    if health != "OK":
        raise HttpError(500, health)
    return health


def info(api: "Api", request: Request) -> dict[str, Any]:
    return api.backend.info()


def _option(request: Request) -> Option:
    option = config_api.find(request.head.path.rpartition("/")[2])
    if option is None:
        raise HttpError(400, "INVALID_OPTION")
    return option


def get_option(api: "Api", request: Request) -> Result:
    return _show(api, _option(request))


def _show(api: "Api", option: Option) -> Result:
    value = getattr(api.options, option.name)
    return value if config_api.is_text(option) else Reply(200, json_bytes(value), JSON)


def _value_limit(api: "Api", head: Head) -> int:
    limit = api.options.max_msg_size
    if head.length > limit:
        raise HttpError(413, "INVALID_VALUE")
    return limit


def put_option(api: "Api", request: Request) -> Result:
    body = request.body
    if body.fault is Fault.CUT:
        raise HttpError(500, "INTERNAL_ERROR")
    if body.fault is Fault.TOO_BIG or not body.data:
        raise HttpError(413, "INVALID_VALUE")
    option = _option(request)
    if not option.runtime:
        raise HttpError(400, "INVALID_OPTION")
    try:
        value = config_api.read(option, bytes(body.data))
    except ValueError:
        raise HttpError(400, "INVALID_VALUE") from None
    api.backend.change_option(option.name, value)
    return _show(api, option)


def stats(api: "Api", request: Request) -> Reply:
    params = _whole(request)
    query = Query(
        json=params.get("format") == "json",
        topic=params.get("topic", ""),
        channel=params.get("channel", ""),
        include_clients=_BOOLEANS.get(params.get("include_clients", ""), True),
        include_mem=_BOOLEANS.get(params.get("include_mem", ""), True),
    )
    return Reply(200, api.backend.stats(query), JSON if query.json else PLAIN)


# Looking into a running nsqd


def debug_index(api: "Api", request: Request) -> Reply:
    return Reply(200, _DEBUG_PAGE.encode(), HTML, nsq=False, logged=False)


_DEBUG_PAGE = """\
<html><head><title>/debug/pprof/</title></head><body>
<ul>
<li><a href="cmdline">cmdline</a>: the command line</li>
<li><a href="goroutine">goroutine</a>: where every greenlet and every thread is</li>
<li><a href="heap">heap</a>: what is in memory</li>
<li><a href="threadcreate">threadcreate</a>: threads</li>
<li><a href="profile?seconds=5">profile</a>: where a worker spends its time, in Python</li>
</ul>
</body></html>
"""


def debug_command_line(api: "Api", request: Request) -> str:
    return api.backend.command_line()


def debug_symbol(api: "Api", request: Request) -> str:
    return "num_symbols: 1\n"


def debug_stacks(api: "Api", request: Request) -> str:
    return api.backend.inspect("stacks")


def debug_memory(api: "Api", request: Request) -> str:
    return api.backend.inspect("memory")


def debug_threads(api: "Api", request: Request) -> str:
    return api.backend.inspect("threads")


def debug_block(api: "Api", request: Request) -> str:
    return "What blocks is not counted; /debug/pprof/goroutine shows what waits, and where.\n"


def debug_profile(api: "Api", request: Request) -> str:
    try:
        seconds = parse_int(request.params.get("seconds", ""))
    except ValueError:
        seconds = 0
    if seconds <= 0:
        seconds = 30
    if seconds > MAX_PROFILE:
        raise HttpError(400, f"a profile takes at most {MAX_PROFILE} seconds")
    try:
        return api.backend.profile(seconds)
    except NoProfiler:
        raise HttpError(501, "no profiler here: pip install nsqcy[debug]") from None
    except ProfilerBusy:
        raise HttpError(500, "a profile is being taken already") from None
    except ProfilerFailed as error:
        raise HttpError(500, str(error)) from None


MAX_PROFILE = 300  # seconds


def debug_block_rate(api: "Api", request: Request) -> None:
    """There is nothing it could set: see `debug_block`."""
    form = parse_query(bytes(request.body.data).decode("latin-1")) or {}
    text = form.get("rate", request.params.get("rate", ""))
    if not _DECIMAL.fullmatch(text):
        reason = f"strconv.Atoi: parsing {names.quote(text)}: invalid syntax"
        raise HttpError(400, f"invalid block rate : {reason}")


_DECIMAL = re.compile(r"[+-]?[0-9]+")


def _form_limit(api: "Api", head: Head) -> int:
    return 4096


def debug_free(api: "Api", request: Request) -> None:
    api.backend.inspect("free")


def _pprof(name: str, handler: Handler, method: str = "GET") -> Route:
    return Route(method, "/debug/pprof/" + name, handler, plain=True, logged=False, local=True)


ROUTES = (
    Route("GET", "/ping", ping, plain=True),
    Route("GET", "/info", info),
    Route("GET", "/stats", stats, body=_ignored),
    Route("POST", "/pub", pub, body=_pub_limit, logged=False, inline=True),
    Route("POST", "/mpub", mpub, body=_mpub_limit, logged=False, inline=True),
    Route("POST", "/topic/create", create_topic),
    Route("POST", "/topic/delete", delete_topic, body=_ignored),
    Route("POST", "/topic/empty", empty_topic, body=_ignored),
    Route("POST", "/topic/pause", pause_topic, body=_ignored),
    Route("POST", "/topic/unpause", unpause_topic, body=_ignored),
    Route("POST", "/channel/create", create_channel, body=_ignored),
    Route("POST", "/channel/delete", delete_channel, body=_ignored),
    Route("POST", "/channel/empty", empty_channel, body=_ignored),
    Route("POST", "/channel/pause", pause_channel, body=_ignored),
    Route("POST", "/channel/unpause", unpause_channel, body=_ignored),
    Route("GET", "/config/:opt", get_option),
    Route("PUT", "/config/:opt", put_option, body=_value_limit),
    _pprof("", debug_index),
    _pprof("cmdline", debug_command_line),
    _pprof("symbol", debug_symbol),
    _pprof("symbol", debug_symbol, "POST"),
    _pprof("goroutine", debug_stacks),
    _pprof("heap", debug_memory),
    _pprof("threadcreate", debug_threads),
    _pprof("block", debug_block),
    _pprof("profile", debug_profile),
    Route("PUT", "/debug/setblockrate", debug_block_rate, body=_form_limit, plain=True, local=True),
    Route("POST", "/debug/freememory", debug_free, plain=True, local=True),
)


# Routing


_FOUND = {(route.method, route.path): route for route in ROUTES}
_METHODS = {
    path: sorted({"OPTIONS"} | {route.method for route in ROUTES if route.path == path})
    for path in {route.path for route in ROUTES}
}
_EVERY_METHOD = "*"
_OPTION = "/config/:opt"
_IN_PATHS = "$&+,/:;=@"  # what Go leaves unescaped in a path, beside letters, digits and -_.~


def resolve(head: Head) -> Route | Reply:
    """The route of a request, or the reply to one that has none."""
    return _FOUND.get((head.method, head.path)) or _unusual(head)


def _pattern(path: str) -> str:
    """What a path is registered as: `/config/:opt` stands for one segment, which is not empty."""
    parent, _, last = path.rpartition("/")
    return _OPTION if parent == "/config" and last else path


def _unusual(head: Head) -> Route | Reply:
    return _FOUND.get((head.method, _pattern(head.path))) or _unrouted(head)


def _unrouted(head: Head) -> Reply:
    method, path = head.method, head.path
    if path == _EVERY_METHOD:
        return Reply(200, nsq=False, logged=False) if method == "OPTIONS" else NOT_FOUND
    canonical = _canonical(path)
    for candidate in (canonical, canonical + "/"):
        if candidate != path and (method, _pattern(candidate)) in _FOUND:
            return _redirect(head, candidate)
    methods = _METHODS.get(_pattern(path))
    if methods is None:
        return NOT_FOUND
    allow = ", ".join(methods)
    if method == "OPTIONS":
        return Reply(200, nsq=False, headers=[("Allow", allow)], logged=False)
    return json_error(405, "METHOD_NOT_ALLOWED", allow=allow)


def _canonical(path: str) -> str:
    """The path as it would be registered: no final slash, no `//`, `.` or `..`, lower case but
    for the name of an option."""
    clean = normpath("/" + path.lstrip("/"))
    parent, _, last = clean.rpartition("/")
    return f"/config/{last}" if parent.lower() == "/config" else clean.lower()


def _redirect(head: Head, path: str) -> Reply:
    location = quote(path, safe=_IN_PATHS, errors="surrogateescape")
    if head.query:
        location += "?" + head.query
    headers = [("Location", location)]
    if head.method != "GET":
        return Reply(307, nsq=False, headers=headers, logged=False)
    link = location.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    link = link.replace('"', "&#34;").replace("'", "&#39;")
    page = f'<a href="{link}">Moved Permanently</a>.\n\n'.encode("latin-1")
    return Reply(301, page, HTML, nsq=False, headers=headers, logged=False)


class Api:
    """The handlers' surroundings."""

    def __init__(self, backend: Backend, options: Options, log: Lines) -> None:
        self.backend = backend
        self.options = options
        self.log = log

    def call(self, route: Route, request: Request) -> Reply | Publish:
        """Run the handler; blocks as long as it does, and never raises."""
        try:
            result = route.handler(self, request)
            if type(result) is Publish:
                return result
            return self._reply(route, result)
        except HttpError as error:
            return route.error(error)
        except Exception:
            return self.panic()

    def panic(self) -> Reply:
        """For the exception being handled, which is a bug or a backend out of reach."""
        self.log.error(f"panic in HTTP handler - {traceback.format_exc()}")
        return PANIC

    def _reply(self, route: Route, result: Result) -> Reply:
        if type(result) is Reply:
            return result
        if not result:
            return EMPTY_TEXT if route.plain else EMPTY
        if isinstance(result, str):
            text = result.encode("utf-8", "surrogateescape")
            return Reply(200, text, PLAIN, nsq=not route.plain, logged=route.logged)
        return Reply(200, json_bytes(result), JSON, logged=route.logged)
