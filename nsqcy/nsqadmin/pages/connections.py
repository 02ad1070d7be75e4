"""The page of the connections to all nsqds; NSQ has no such page."""

import time

from nsqcy.http.router import Request
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.cluster.view import ClusterView
from nsqcy.nsqadmin.context import AppContext, Page, page_route
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.requests import params
from nsqcy.nsqadmin.views import connections as views


def connections(app: AppContext, request: Request) -> Page:
    location = Location(app.layout(request).link("connections"), params(request))

    def draw(cluster: ClusterView) -> View:
        nodes = cluster.known()
        clients = Clients({each.name: each for each in nodes}, time.time())
        found = cluster.connections(nodes) if nodes else []
        return views.connections(found, clients, location)

    return Page("Connections", location.path, draw, is_live=True)


ROUTES = (page_route("/connections", connections),)
