"""The page of the channels of all topics; NSQ has no such page."""

from nsqcy.http.router import Request
from nsqcy.nsqadmin.cluster.view import ClusterView
from nsqcy.nsqadmin.context import AppContext, Page, page_route
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.requests import params
from nsqcy.nsqadmin.views import channels as views


def channels(app: AppContext, request: Request) -> Page:
    layout, plots = app.layout(request), app.plots(request)
    location = Location(layout.link("channels"), params(request))

    def draw(cluster: ClusterView) -> View:
        found = cluster.busiest()
        all_rows = cluster.complete(found, found.topics)
        return views.channels(all_rows.topics, found.origins, found.omitted, location, plots)

    return Page("Channels", location.path, draw, is_live=True)


ROUTES = (page_route("/channels", channels),)
