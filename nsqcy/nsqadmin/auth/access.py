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
    """Whether this is one of the users; without any everybody is."""
    return not users or head.header(header) in users


def basic_user(head: Head) -> str:
    """Its name alone: who a proxy in front has let in."""
    return basic(head)[0]


def is_of_another_site(head: Head) -> bool:
    """Whether a browser sends this because a page of another site made it.

    Browsers say so, and let no page change what they say. Programs say nothing. Where a proxy gives
    us another host than the browser has, Sec-Fetch-Site tells the sites apart (browsers send it
    over HTTPS), and so does JSON: a page may not send it to another site unasked, and we do not
    answer when browsers ask.
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
    """Whether a peer, `ip:port`, is in this network; everybody is in none."""
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
            return denial(route, error)
        if user is None:
            if is_page(request.head):
                return Reply(303, nsq=False, headers=[("Location", way_in(api, request.head))])
            return denial(route, HttpError(401, "UNAUTHORIZED"))
        if route.method != "GET" and not user.may_operate:
            raise HttpError(403, "FORBIDDEN")
        return route.handler(api, request)

    return replace(route, handler=handle, inline=False)


def denial(route: Route, error: HttpError) -> Reply:
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
