"""What stands before every route where users have to log in: who is nobody is sent to the log-in
page, or told so, and who may only look does nothing else."""

from dataclasses import replace
from typing import Protocol
from urllib.parse import urlencode

from nsqcy.errors import HttpError
from nsqcy.http.parser import JSON, PLAIN, Head, Reply
from nsqcy.http.router import Request, Result, Route
from nsqcy.nsqadmin.logins import Logins, TooMany
from nsqcy.nsqadmin.options import AdminOptions
from nsqcy.util.gotext import json_bytes

LOGIN, LOGOUT = "/login", "/logout"
_FILES = {"/static/:asset", "/static/:version/:asset", "/fonts/:asset"}
OPEN = frozenset({"/ping", *_FILES, LOGIN, LOGOUT})
# No Basic: for that a browser would ask with a dialog of its own.
CHALLENGE = ("WWW-Authenticate", 'Bearer realm="nsqadmin"')


class Guarded(Protocol):
    """What handlers have around them, as far as it is looked at here."""

    options: AdminOptions
    logins: Logins | None


def for_users(route: Route) -> Route:
    """The same route, for those only who are logged in. It runs in a thread: a password may have to
    be checked."""
    if route.path in OPEN:
        return route

    def handle(api: Guarded, request: Request) -> Result:
        assert api.logins is not None
        try:
            user = api.logins.admit(request)
        except HttpError as error:
            return refusal(route, error)
        if user is None:
            if is_page(request.head):
                return Reply(303, nsq=False, headers=[("Location", way_in(api, request.head))])
            return refusal(route, HttpError(401, "UNAUTHORIZED"))
        if route.method != "GET" and not user.may_operate:
            raise HttpError(403, "FORBIDDEN")
        return route.handler(api, request)

    return replace(route, handler=handle, inline=False)


def refusal(route: Route, error: HttpError) -> Reply:
    """What somebody is told who says what is wrong, or nothing."""
    headers = [CHALLENGE]
    if isinstance(error, TooMany):
        headers = [("Retry-After", str(int(error.wait) + 1))]
    if route.plain:
        return Reply(error.status, error.message.encode(), PLAIN, nsq=False, headers=headers)
    body = json_bytes({"message": error.message})
    return Reply(error.status, body, JSON, headers=headers)


def is_page(head: Head) -> bool:
    """Whether a browser asks for a page to show, and not a script for something to read."""
    return "text/html" in head.header("Accept") and not head.header("Authorization")


def way_in(api: Guarded, head: Head) -> str:
    """The log-in page, which leads back to where somebody wanted to go."""
    path = f"{api.options.base}{LOGIN}"
    there = own_path(head.target, api.options.base) if head.method == "GET" else ""
    return f"{path}?{urlencode({'next': there})}" if there else path


def own_path(text: str, base: str) -> str:
    """A path of this nsqadmin; empty for whatever a browser could take for another place."""
    is_path = text.startswith("/") and not text.startswith("//")
    is_plain = text.isascii() and text.isprintable() and not set(text) & set('\\ "<>')
    path = text.partition("?")[0]
    is_below = path == base or path.startswith(f"{base}/")
    return text if is_path and is_plain and is_below else ""
