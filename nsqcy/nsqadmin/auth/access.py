"""Who may do what: NSQ's ACL header, pages of other sites, networks, and the gate in front of every
route where users have to log in.

Knows no page and no API: only the head of a request and who has logged in.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from nsqcy.errors import HttpError
from nsqcy.http.authorization import basic
from nsqcy.http.parser import JSON, PLAIN, Head, Reply
from nsqcy.http.router import Request, Result, Route
from nsqcy.nsqadmin.auth.logins import Logins, TooMany
from nsqcy.nsqadmin.options import AdminOptions, Network
from nsqcy.util.gotext import json_bytes


def may_act(head: Head, header: str, users: Sequence[str]) -> bool:
    """Whether this is one of the users; everybody may act where none is named."""
    return not users or head.header(header) in users


def basic_user(head: Head) -> str:
    """The name of the user whom a proxy in front has let in; the password is not checked."""
    return basic(head)[0]


def is_of_another_site(head: Head) -> bool:
    """Whether a browser sends this because a page of another site made it.

    Browsers send this in headers that no page can change; programs do not. Where a proxy gives us
    another host than the browser has, Sec-Fetch-Site distinguishes the sites (browsers send it over
    HTTPS), and so does JSON: a page may send it to another site only after a CORS preflight, which
    we do not answer.
    """
    if head.header("Content-Type").partition(";")[0].strip().lower() == "application/json":
        return False
    site = head.header("Sec-Fetch-Site")
    if site:
        return site not in ("same-origin", "none")
    origin = head.header("Origin")
    try:
        return bool(origin) and urlsplit(origin).netloc != head.header("Host")
    except ValueError:  # it is no URL
        return True


def is_inside(peer: str, network: Network | None) -> bool:
    """Whether a peer, `ip:port`, is in this network; None is every network."""
    if network is None:
        return True
    try:
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return address in network


LOGIN, LOGOUT = "/login", "/logout"
_FILES = {"/static/:asset", "/static/:version/:asset", "/fonts/:asset"}
OPEN = frozenset({"/ping", *_FILES, LOGIN, LOGOUT})
# Not Basic, for which a browser would open a dialog of its own.
CHALLENGE = ("WWW-Authenticate", 'Bearer realm="nsqadmin"')


class Guarded(Protocol):
    """What the gate needs of the application context."""

    options: AdminOptions
    logins: Logins | None


def for_users(route: Route) -> Route:
    """The same route, only for users who are logged in. It runs in a thread, as checking a password
    takes time."""
    if route.path in OPEN:
        return route

    def handle(app: Guarded, request: Request) -> Result:
        assert app.logins is not None
        try:
            user = app.logins.admit(request)
        except HttpError as error:
            return denial(route, error)
        if user is None:
            if is_page(request.head):
                return Reply(303, nsq=False, headers=[("Location", login_path(app, request.head))])
            return denial(route, HttpError(401, "UNAUTHORIZED"))
        if route.method != "GET" and not user.may_operate:
            raise HttpError(403, "FORBIDDEN")
        return route.handler(app, request)

    return replace(route, handler=handle, inline=False)


def denial(route: Route, error: HttpError) -> Reply:
    """The answer to missing or invalid credentials."""
    headers = [CHALLENGE]
    if isinstance(error, TooMany):
        headers = [("Retry-After", str(int(error.wait) + 1))]
    if route.plain:
        return Reply(error.status, error.message.encode(), PLAIN, nsq=False, headers=headers)
    body = json_bytes({"message": error.message})
    return Reply(error.status, body, JSON, headers=headers)


def is_page(head: Head) -> bool:
    """Whether a browser requests a page to show, rather than a script data."""
    return "text/html" in head.header("Accept") and not head.header("Authorization")


def login_path(app: Guarded, head: Head) -> str:
    """The log-in page, which leads back to the page that was requested."""
    path = f"{app.options.base}{LOGIN}"
    there = own_path(head.target, app.options.base) if head.method == "GET" else ""
    return f"{path}?{urlencode({'next': there})}" if there else path


def own_path(text: str, base: str) -> str:
    """A path of this nsqadmin; empty for whatever a browser could take for another place."""
    is_path = text.startswith("/") and not text.startswith("//")
    is_plain = text.isascii() and text.isprintable() and not set(text) & set('\\ "<>')
    path = text.partition("?")[0]
    is_below = path == base or path.startswith(f"{base}/")
    return text if is_path and is_plain and is_below else ""
