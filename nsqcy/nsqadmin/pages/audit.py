"""The page with the latest actions."""

from nsqcy.http.router import Request
from nsqcy.nsqadmin.context import AppContext, Page, page_route, refusal
from nsqcy.nsqadmin.views import audit as views


def audit(app: AppContext, request: Request) -> Page:
    path, why = app.layout(request).link("audit"), refusal(app, request)
    return Page("Audit", path, lambda cluster: views.page(app.audit.latest()), refusal=why)


ROUTES = (page_route("/audit", audit),)
