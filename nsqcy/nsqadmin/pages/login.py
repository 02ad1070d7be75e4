"""Log-in page and log-out. Both work without scripts."""

from urllib.parse import urlencode

from nsqcy.errors import HttpError
from nsqcy.http.parser import HTML, Head, Reply
from nsqcy.http.router import Request, Route
from nsqcy.nsqadmin.auth import access
from nsqcy.nsqadmin.auth.access import LOGIN, LOGOUT, OIDC, own_path
from nsqcy.nsqadmin.auth.logins import COOKIE, Logins, TooMany
from nsqcy.nsqadmin.context import HEADERS, AppContext, body_limit
from nsqcy.nsqadmin.html.layout import View, render
from nsqcy.nsqadmin.requests import params, read_form

MAX_FORM = 16 << 10  # bytes


def show(app: AppContext, request: Request) -> Reply:
    there = own_path(params(request).get("next", ""), app.options.base)
    if _logins(app).user(request.head) is not None:
        return _go(app, there)
    return page(app, request, there)


def enter(app: AppContext, request: Request) -> Reply:
    """Handle the log-in form. Rejects forms from other sites, which could log a user in to a
    different account."""
    if access.is_of_another_site(request.head):
        raise HttpError(403, "FORBIDDEN")
    fields = read_form(request)
    there = own_path(fields.get("next", ""), app.options.base)
    try:
        key = _logins(app).enter(request, fields.get("user", ""), fields.get("password", ""))
    except TooMany as error:
        wait = int(error.wait) + 1
        text = f"Too many failed attempts. Try again in {wait} s."
        return page(app, request, there, 429, text, [("Retry-After", str(wait))])
    except HttpError:
        return page(app, request, there, 401, "Wrong name or password.")
    return _go(app, there, ("Set-Cookie", set_cookie(app, request.head, key)))


def leave(app: AppContext, request: Request) -> Reply:
    if access.is_of_another_site(request.head):
        raise HttpError(403, "FORBIDDEN")
    _logins(app).leave(request.head)
    cookie = ("Set-Cookie", f"{set_cookie(app, request.head, '')}; Max-Age=0")
    path = f"{app.options.base}{LOGIN}"
    return Reply(303, nsq=False, headers=[("Location", path), cookie])


def set_cookie(app: AppContext, head: Head, key: str) -> str:
    """Return the Set-Cookie value for a session. Scripts cannot read the cookie, browsers do not
    send it from pages of other sites, and it ends with the browser."""
    flags = f"Path={app.options.base or '/'}; HttpOnly; SameSite=Strict"
    return f"{COOKIE}={key}; {flags}{'; Secure' if is_secure(app, head) else ''}"


def is_secure(app: AppContext, head: Head) -> bool:
    """Return whether cookies are restricted to HTTPS."""
    forwarded = head.header("X-Forwarded-Proto") or head.header("X-Scheme")
    is_https = forwarded.partition(",")[0].strip().lower() == "https"
    return app.options.auth_secure_cookie or is_https


def _logins(app: AppContext) -> Logins:
    assert app.logins is not None
    return app.logins


def _go(app: AppContext, there: str, *headers: tuple[str, str]) -> Reply:
    path = there or app.options.base or "/"
    return Reply(303, nsq=False, headers=[("Location", path), *headers])


def page(
    app: AppContext,
    request: Request,
    there: str,
    status: int = 200,
    error: str = "",
    headers: list[tuple[str, str]] | None = None,
) -> Reply:
    values = {
        "path": f"{app.options.base}{LOGIN}",
        "next": there,
        "provider": _provider(app, there),
    }
    view = View("login.html", values)
    html = render(app.layout(request), "Log in", view, error=error)
    return Reply(status, html, HTML, nsq=False, headers=[*HEADERS, *(headers or ())])


def _provider(app: AppContext, there: str) -> str:
    """Return the path that leads to the log-in provider; empty if there is none."""
    if app.provider is None:
        return ""
    path = f"{app.options.base}{OIDC}"
    return f"{path}?{urlencode({'next': there})}" if there else path


ROUTES = (
    Route("GET", LOGIN, show, plain=True),
    Route("POST", LOGIN, enter, body=lambda app, head: MAX_FORM, plain=True),
    Route("POST", LOGOUT, leave, body=body_limit, plain=True),
)
