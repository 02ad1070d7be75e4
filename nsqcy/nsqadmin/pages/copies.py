"""The page about topics with copies on several machines."""

from nsqcy.http.router import Request
from nsqcy.nsqadmin.cluster.view import ClusterView
from nsqcy.nsqadmin.context import AppContext, Page, page_route
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.requests import params
from nsqcy.nsqadmin.views import copies as views


def copies(app: AppContext, request: Request) -> Page:
    location = Location(app.layout(request).link("copies"), params(request))

    def draw(cluster: ClusterView) -> View:
        answers = app.all_copies(cluster)
        return views.page(answers, location, app.sighting.nsqds)

    return Page("Copies", location.path, draw, is_live=True)


ROUTES = (page_route("/copies", copies),)
