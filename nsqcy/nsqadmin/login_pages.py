"""The page that users log in by, and how they log out. It works without scripts."""

from nsqcy.errors import HttpError
from nsqcy.http.parser import HTML, Head, Reply
from nsqcy.http.router import Request, Route
from nsqcy.nsqadmin import access
from nsqcy.nsqadmin.login_gate import LOGIN, LOGOUT, own_path
from nsqcy.nsqadmin.logins import COOKIE, Logins, TooMany
from nsqcy.nsqadmin.markup import Markup, tag
from nsqcy.nsqadmin.pages import HEADERS, params, read_form
from nsqcy.nsqadmin.surroundings import Surroundings, body_limit

FORM_MOST = 16 << 10  # bytes


def show(api: Surroundings, request: Request) -> Reply:
    there = own_path(params(request).get("next", ""), api.options.base)
    if _logins(api).user(request.head) is not None:
        return _go(api, there)
    return _page(api, request, there)


def enter(api: Surroundings, request: Request) -> Reply:
    """A form with a name and a password. Of another site's page it is none: nobody is to be logged
    in as somebody else."""
    if access.is_of_another_site(request.head):
        raise HttpError(403, "FORBIDDEN")
    fields = read_form(request)
    there = own_path(fields.get("next", ""), api.options.base)
    try:
        key = _logins(api).enter(request, fields.get("user", ""), fields.get("password", ""))
    except TooMany as error:
        wait = int(error.wait) + 1
        text = f"Too many attempts failed. Try again in {wait} s."
        return _page(api, request, there, 429, text, [("Retry-After", str(wait))])
    except HttpError:
        return _page(api, request, there, 401, "This name and password do not fit.")
    return _go(api, there, ("Set-Cookie", set_cookie(api, request.head, key)))


def leave(api: Surroundings, request: Request) -> Reply:
    if access.is_of_another_site(request.head):
        raise HttpError(403, "FORBIDDEN")
    _logins(api).leave(request.head)
    cookie = ("Set-Cookie", f"{set_cookie(api, request.head, '')}; Max-Age=0")
    path = f"{api.options.base}{LOGIN}"
    return Reply(303, nsq=False, headers=[("Location", path), cookie])


def set_cookie(api: Surroundings, head: Head, key: str) -> str:
    """The cookie of a session: no script sees it, no page of another site has it sent, and it ends
    with the browser."""
    flags = f"Path={api.options.base or '/'}; HttpOnly; SameSite=Strict"
    forwarded = head.header("X-Forwarded-Proto") or head.header("X-Scheme")
    is_https = forwarded.partition(",")[0].strip().lower() == "https"
    is_secure = api.options.auth_secure_cookie or is_https
    return f"{COOKIE}={key}; {flags}{'; Secure' if is_secure else ''}"


def _logins(api: Surroundings) -> Logins:
    assert api.logins is not None
    return api.logins


def _go(api: Surroundings, there: str, *headers: tuple[str, str]) -> Reply:
    path = there or api.options.base or "/"
    return Reply(303, nsq=False, headers=[("Location", path), *headers])


def _page(
    api: Surroundings,
    request: Request,
    there: str,
    status: int = 200,
    error: str = "",
    headers: list[tuple[str, str]] | None = None,
) -> Reply:
    page = api.frame(request).page("Log in", _form(api, there), error=error)
    return Reply(status, page, HTML, nsq=False, headers=[*HEADERS, *(headers or ())])


def _form(api: Surroundings, there: str) -> Markup:
    path = f"{api.options.base}{LOGIN}"
    fields = [
        tag("label", "Name ", tag("input", name="user", autocomplete="username", required=True)),
        tag(
            "label",
            "Password or token ",
            tag(
                "input",
                name="password",
                type="password",
                autocomplete="current-password",
                required=True,
            ),
        ),
        tag("input", type="hidden", name="next", value=there) if there else None,
        tag("button", "Log in"),
    ]
    # A browser that comes by a link of another site keeps its session back until it goes on here.
    back = tag("p", tag("a", "I am logged in already", href=there)) if there else None
    return tag(
        "section",
        tag("h1", "Log in"),
        tag("form", fields, method="post", action=path, class_="login"),
        back,
    )


ROUTES = (
    Route("GET", LOGIN, show, plain=True),
    Route("POST", LOGIN, enter, body=lambda api, head: FORM_MOST, plain=True),
    Route("POST", LOGOUT, leave, body=body_limit, plain=True),
)
