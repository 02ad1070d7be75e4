"""Routes requests, and converts handler results to replies.

Handlers receive an `Api` and a `Request`, return data and raise `HttpError`; `Api.call` turns both
into replies. Handles path matching and the reply format. Independent of connections and particular
routes: each daemon has its own route table.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from posixpath import normpath
from typing import Any, Protocol
from urllib.parse import quote

from nsqcy.errors import HttpError
from nsqcy.http.parser import HTML, JSON, PLAIN, Body, Fault, Head, HeaderSelection, Reply
from nsqcy.logging import events
from nsqcy.logging.types import DetailedLines
from nsqcy.server.http_fastpath import Sink
from nsqcy.util.gotext import json_bytes


class Request:
    """A request, as passed to a handler. `peer` is `ip:port`, or `@` for a unix socket.

    `user` is the authenticated user if the route reads it; None if the daemon has no users.
    """

    __slots__ = ("body", "head", "peer", "user")

    def __init__(self, head: Head, body: Body, peer: str = "") -> None:
        self.head = head
        self.body = body
        self.peer = peer
        self.user: Any = None

    @property
    def params(self) -> dict[str, str]:
        params = self.head.params
        if params is None:
            raise HttpError(400, "INVALID_REQUEST")
        return params


class Later:
    """The result of a handler that replies later."""

    __slots__ = ()

    def begin(self, answer: Callable[[Reply | None], None]) -> None:
        """Start the work, which calls `answer` exactly once: before this method returns, or much
        later.

        `answer(None)` closes the connection without a reply.
        """
        raise NotImplementedError

    def publishes(self) -> tuple[int, int]:
        """Return the number of messages that the request publishes, and their size in bytes."""
        return 0, 0


Result = str | dict[str, Any] | Reply | Later | None
Handler = Callable[[Any, Request], Result]
BodyRule = Callable[[Any, Head], int]
ShortWay = Callable[[Any, Head], tuple[Sink, Reply] | None]


class Need(Enum):
    """The permission that a route requires if the daemon authenticates users."""

    NOTHING = auto()
    KNOWN = auto()  # any authenticated user
    PUBLISH = auto()  # permission for the topic in the query
    SUBSCRIBE = auto()  # permission for the topic or channel, or the operate role
    SUBSCRIBE_ALL = auto()  # permission for the whole log of the topic, or the operate role
    ADMIN = auto()  # permission for the topic
    ADMIN_OF_ALL = auto()


@dataclass(frozen=True, slots=True)
class Route:
    """A route. A path segment such as `:opt` matches any non-empty segment."""

    method: str
    path: str
    handler: Handler
    body: BodyRule | None = None
    """Returns the maximum size of the body in bytes, or IGNORED; may raise HttpError. If None, no
    body is read."""
    plain: bool = False
    """Replies, including errors, are plain text without NSQ's header."""
    logged: bool = True
    inline: bool = False
    """Whether the handler never blocks, and therefore runs in the loop instead of a greenlet."""
    local: bool = False
    """Whether other machines may use the route only if an option permits it."""
    short: ShortWay | None = None
    """Returns the fast path for requests that are never logged: the reply, and a sink. While the
    sink accepts bodies, it receives them instead of the handler."""

    need: Need = Need.ADMIN_OF_ALL
    """The default is the strictest permission."""
    reads_user: bool = False
    """Whether the handler needs `Request.user`, because it also checks permissions itself."""

    def error(self, error: HttpError) -> Reply:
        if self.plain:
            body = error.message.encode()
            return Reply(error.status, body, PLAIN, nsq=False, logged=self.logged)
        return json_error(error.status, error.message, logged=self.logged, limit=error.limit)


def json_error(
    status: int, code: str, *, logged: bool = True, allow: str = "", limit: str = ""
) -> Reply:
    found = (("Allow", allow), ("X-Nsq-Limit", limit))
    headers = [(name, value) for name, value in found if value]
    return Reply(status, json_bytes({"message": code}), JSON, headers=headers, logged=logged)


IGNORED = -1

EMPTY = Reply(200)
EMPTY_TEXT = Reply(200, content_type=PLAIN, nsq=False)
EXITING = json_error(503, "EXITING", logged=False)
INPUT_BUDGET_EXCEEDED = json_error(503, "INPUT_BUDGET_EXCEEDED", logged=False)
PANIC = json_error(500, "INTERNAL_ERROR")
LOCAL_ONLY = json_error(403, "LOCAL_ONLY")
NOT_FOUND = json_error(404, "NOT_FOUND")


# Parameters


def ignored(api: Any, head: Head) -> int:
    """Read and drop an unused body. A body longer than MAX_DRAIN is not read."""
    return IGNORED


def whole(request: Request) -> dict[str, str]:
    """Return the parameters. Raises HttpError if the unused body was truncated."""
    if request.body.fault is Fault.CUT:
        raise HttpError(400, "INVALID_REQUEST")
    return request.params


def required(params: dict[str, str], name: str) -> str:
    value = params.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


# Routing


_EVERY_METHOD = "*"
_IN_PATHS = "$&+,/:;=@"  # In a path, Go leaves these unescaped, like letters, digits and -_.~


class Router:
    """A daemon's routes, all under `base`: empty, or a path without a final slash."""

    def __init__(self, routes: Sequence[Route], base: str = "") -> None:
        if base:
            routes = [replace(route, path=base + route.path.rstrip("/")) for route in routes]
        self._found = {(route.method, route.path): route for route in routes}
        self._methods = {
            path: sorted({"OPTIONS"} | {route.method for route in routes if route.path == path})
            for path in {route.path for route in routes}
        }
        # A literal segment takes precedence over a variable.
        self._patterns = sorted((path.split("/") for path in self._methods), key=_variables)

    def resolve(self, head: Head) -> Route | Reply:
        """Return the route for a request, or the reply if there is no route."""
        return self._found.get((head.method, head.path)) or self._unusual(head)

    def _pattern(self, path: str) -> str:
        """Return the pattern that a path matches, or the path itself."""
        segments = path.split("/")
        for pattern in self._patterns:
            if _fits(pattern, segments):
                return "/".join(pattern)
        return path

    def _unusual(self, head: Head) -> Route | Reply:
        return self._found.get((head.method, self._pattern(head.path))) or self._unrouted(head)

    def _unrouted(self, head: Head) -> Reply:
        method, path = head.method, head.path
        if path == _EVERY_METHOD:
            return Reply(200, nsq=False, logged=False) if method == "OPTIONS" else NOT_FOUND
        canonical = self._canonical(path)
        for candidate in (canonical, canonical + "/"):
            if candidate != path and (method, self._pattern(candidate)) in self._found:
                return _redirect(head, candidate)
        methods = self._methods.get(self._pattern(path))
        if methods is None:
            return NOT_FOUND
        allow = ", ".join(methods)
        if method == "OPTIONS":
            return Reply(200, nsq=False, headers=[("Allow", allow)], logged=False)
        return json_error(405, "METHOD_NOT_ALLOWED", allow=allow)

    def _canonical(self, path: str) -> str:
        """Return the path in its registered form.

        Removes a final slash, `//`, `.` and `..`; literal segments use the case of the pattern.
        """
        clean = normpath("/" + path.lstrip("/"))
        segments = clean.split("/")
        lower = clean.lower().split("/")
        for pattern in self._patterns:
            if _fits([each if _is_variable(each) else each.lower() for each in pattern], lower):
                pairs = zip(pattern, segments, strict=True)
                return "/".join(given if _is_variable(each) else each for each, given in pairs)
        return clean.lower()


def _is_variable(segment: str) -> bool:
    return segment.startswith(":")


def _variables(pattern: Sequence[str]) -> int:
    return sum(map(_is_variable, pattern))


def _fits(pattern: Sequence[str], segments: Sequence[str]) -> bool:
    return len(pattern) == len(segments) and all(
        bool(given) if _is_variable(each) else each == given
        for each, given in zip(pattern, segments, strict=True)
    )


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


class Limits(Protocol):
    """The options that connections read."""

    @property
    def debug_remote(self) -> bool: ...
    @property
    def max_input_bytes(self) -> int:
        """Maximum bytes of all unfinished requests of one process."""

    @property
    def http_idle_timeout(self) -> int:
        """Maximum ns between two requests of a connection."""


class Gate(Protocol):
    """Authorization of requests."""

    def admits(self, route: Route, head: Head, certificate_names: Sequence[str]) -> bool: ...

    def admit(
        self, route: Route, head: Head, peer: str, certificate_names: Sequence[str]
    ) -> Route | Reply:
        """Return the route, or a reply that rejects the request. Called before the body is read."""


class Api:
    """Application context for HTTP connections and handlers."""

    router: Router
    reads_headers: HeaderSelection = False
    """Headers that handlers and the gate read, in addition to X-Nsq- headers."""

    def __init__(self, limits: Limits, log: DetailedLines, gate: Gate | None = None) -> None:
        """`gate` is None if all requests are allowed, or if the routes check permissions. In the
        latter case, set `knows_users`."""
        self.limits = limits
        self.log = log
        self.gate = gate
        self.knows_users = gate is not None

    def call(self, route: Route, request: Request) -> Reply | Later:
        """Run the handler. Blocks while the handler does; never raises."""
        try:
            result = route.handler(self, request)
            if isinstance(result, Later):
                return result
            return self._reply(route, result)
        except HttpError as error:
            return route.error(error)
        except Exception as error:
            refusal = self.refusal(error)
            return self.panic() if refusal is None else route.error(refusal)

    def refusal(self, error: Exception) -> HttpError | None:
        """Return the error for the client after a backend exception; None: `panic`."""
        return None

    def panic(self) -> Reply:
        """Log the current exception, which is a bug or an unreachable backend, and return the
        reply."""
        events.http_handler_failed(self.log, traceback.format_exc())
        return PANIC

    def _reply(self, route: Route, result: str | dict[str, Any] | Reply | None) -> Reply:
        if type(result) is Reply:
            return result
        if result is None or result == "":
            return EMPTY_TEXT if route.plain else EMPTY
        if isinstance(result, str):
            text = result.encode("utf-8", "surrogateescape")
            return Reply(200, text, PLAIN, nsq=not route.plain, logged=route.logged)
        return Reply(200, self.encoded(result), JSON, logged=route.logged)

    def encoded(self, result: Any) -> bytes:
        """Return the body of an answer in JSON."""
        return json_bytes(result)
