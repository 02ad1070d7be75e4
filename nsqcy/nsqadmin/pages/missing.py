"""The page for a path that does not exist."""

from nsqcy.errors import HttpError
from nsqcy.http.request_counts import NO_ROUTE
from nsqcy.http.router import Request
from nsqcy.nsqadmin.cluster.view import ClusterView
from nsqcy.nsqadmin.context import AppContext, Page, page_route
from nsqcy.nsqadmin.html.layout import View


def missing(app: AppContext, request: Request) -> Page:
    def draw(cluster: ClusterView) -> View:
        raise HttpError(404, "NOT_FOUND")

    return Page("Not Found", app.layout(request).home, draw)


ROUTE = page_route(NO_ROUTE, missing)
