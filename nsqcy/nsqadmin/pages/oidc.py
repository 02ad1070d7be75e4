"""Log-in through an OpenID Connect provider: the redirect to it, and its callback."""

from nsqcy.http.parser import HTML, Reply
from nsqcy.http.router import Request, Route
from nsqcy.nsqadmin.auth.access import CALLBACK, LOGIN, OIDC, own_path
from nsqcy.nsqadmin.auth.logins import OIDC_COOKIE, cookie
from nsqcy.nsqadmin.auth.provider import LoginProvider, Refused
from nsqcy.nsqadmin.context import HEADERS, AppContext
from nsqcy.nsqadmin.html.layout import View, render
from nsqcy.nsqadmin.pages import login
from nsqcy.nsqadmin.requests import params

STATE_AGE = 600  # how long the browser stores the state, in seconds


def begin(app: AppContext, request: Request) -> Reply:
    there = own_path(params(request).get("next", ""), app.options.base)
    try:
        url, state = _provider(app).begin(there)
    except Refused as refused:
        return _failed(app, request, refused)
    kept = f"{OIDC_COOKIE}={state}; {_flags(app, request)}; Max-Age={STATE_AGE}"
    return Reply(303, nsq=False, headers=[("Location", url), ("Set-Cookie", kept)])


def finish(app: AppContext, request: Request) -> Reply:
    """Handle the callback. The response is a page that navigates automatically: after a redirect
    from another site, browsers would not send the new session cookie, which is strict."""
    given = params(request)
    kept = cookie(request.head, OIDC_COOKIE)
    try:
        user, there = _provider(app).finish(given.get("state", ""), kept, given.get("code", ""))
    except Refused as refused:
        return _failed(app, request, refused)
    assert app.logins is not None
    key = app.logins.enter_external(request, user)
    path = there or app.options.base or "/"
    page = render(app.layout(request), "Logged in", View("logged_in.html", {"next": path}))
    headers = [
        *HEADERS,
        ("Refresh", f"0; url={path}"),
        ("Set-Cookie", f"{OIDC_COOKIE}=; {_flags(app, request)}; Max-Age=0"),
        ("Set-Cookie", login.set_cookie(app, request.head, key)),
    ]
    return Reply(200, page, HTML, nsq=False, headers=headers)


def _failed(app: AppContext, request: Request, refused: Refused) -> Reply:
    assert app.logins is not None
    app.logins.refuse_external(request, str(refused))
    text = "The log-in failed, or you have no role here. nsqadmin's log has the reason."
    return login.page(app, request, "", 403, text)


def _flags(app: AppContext, request: Request) -> str:
    """Return the flags of the state's cookie. The cookie is lax, because it must be sent
    with the provider's redirect, which comes from another site."""
    flags = f"Path={app.options.base}{LOGIN}; HttpOnly; SameSite=Lax"
    return f"{flags}; Secure" if login.is_secure(app, request.head) else flags


def _provider(app: AppContext) -> LoginProvider:
    assert app.provider is not None
    return app.provider


ROUTES = (
    Route("GET", OIDC, begin, plain=True),
    Route("GET", CALLBACK, finish, plain=True),
)
