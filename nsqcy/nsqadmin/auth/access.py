"""Access checks: NSQ's ACL header, cross-site requests, networks, and the log-in gate of routes.

Independent of the pages and the API: uses only a request's head and the logged-in users.
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
    """Return whether the sender is one of the users, or the list of users is empty."""
    return not users or head.header(header) in users


def basic_user(head: Head) -> str:
    """Return the name of the user that a proxy has authenticated. Does not check the password."""
    return basic(head)[0]


def is_of_another_site(head: Head) -> bool:
    """Return whether a page on another site made a browser send this request.

    Browsers send the origin in headers that pages cannot change; other programs omit these headers.
    If a proxy changes the Host header, Sec-Fetch-Site decides (browsers send it over HTTPS only).
    JSON bodies are safe as well: a page may send JSON to another site only after a CORS preflight,
    which nsqadmin does not grant.
    """
    if head.header("Content-Type").partition(";")[0].strip().lower() == "application/json":
        return False
    site = head.header("Sec-Fetch-Site")
    if site:
        return site not in ("same-origin", "none")
    origin = head.header("Origin")
    try:
        return bool(origin) and urlsplit(origin).netloc != head.header("Host")
    except ValueError:  # not a URL
        return True


def is_inside(peer: str, network: Network | None) -> bool:
    """Return whether a peer (`ip:port`) is in this network. If the network is None, it contains all
    peers."""
    if network is None:
        return True
    try:
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return address in network


_OF_PROXIES = frozenset({"x-forwarded-for", "x-real-ip"})


def is_forwarded_inside(head: Head, network: Network | None) -> bool:
    """Return whether all addresses that proxies have added to the request are in this network.

    A client can also add addresses, but then only its own request is denied.
    """
    if network is None:
        return True
    if head.header("Forwarded"):  # the header's syntax allows more than addresses
        return False
    values = [value for name, value in head.headers if name.lower() in _OF_PROXIES]
    hops = [hop.strip().strip("[]") for value in values for hop in value.split(",")]
    return all(is_inside(f"{hop}:", network) for hop in hops)


LOGIN, LOGOUT = "/login", "/logout"
OIDC, CALLBACK = f"{LOGIN}/oidc", f"{LOGIN}/callback"
_FILES = {"/static/:asset", "/static/:version/:asset", "/fonts/:asset"}
OPEN = frozenset({"/ping", *_FILES, LOGIN, LOGOUT, OIDC, CALLBACK})
# Not Basic, because browsers would open their own dialog.
CHALLENGE = ("WWW-Authenticate", 'Bearer realm="nsqadmin"')


class Guarded(Protocol):
    """The part of the application context that the gate uses."""

    options: AdminOptions
    logins: Logins | None


def for_users(route: Route) -> Route:
    """Restrict a route to logged-in users. The route runs in a thread because checking a password
    is slow."""
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
    """Return the response for missing or invalid credentials."""
    headers = [CHALLENGE]
    if isinstance(error, TooMany):
        headers = [("Retry-After", str(int(error.wait) + 1))]
    if route.plain:
        return Reply(error.status, error.message.encode(), PLAIN, nsq=False, headers=headers)
    body = json_bytes({"message": error.message})
    return Reply(error.status, body, JSON, headers=headers)


def is_page(head: Head) -> bool:
    """Return whether a browser requests a page, as opposed to a script that requests data."""
    return "text/html" in head.header("Accept") and not head.header("Authorization")


def login_path(app: Guarded, head: Head) -> str:
    """Return the path of the log-in page, which leads back to the requested page."""
    path = f"{app.options.base}{LOGIN}"
    there = own_path(head.target, app.options.base) if head.method == "GET" else ""
    return f"{path}?{urlencode({'next': there})}" if there else path


def own_path(text: str, base: str) -> str:
    """Return the text if it is a path on this nsqadmin, else "". Prevents open redirects."""
    is_path = text.startswith("/") and not text.startswith("//")
    is_plain = text.isascii() and text.isprintable() and not set(text) & set('\\ "<>')
    path = text.partition("?")[0]
    is_below = path == base or path.startswith(f"{base}/")
    return text if is_path and is_plain and is_below else ""
