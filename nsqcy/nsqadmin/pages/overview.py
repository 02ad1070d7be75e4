"""The first page: the state of the whole cluster."""

from collections.abc import Iterable

from nsqcy.http.router import Request
from nsqcy.nsqadmin.cluster import copies
from nsqcy.nsqadmin.cluster.copies import Risk
from nsqcy.nsqadmin.cluster.nodes import Node
from nsqcy.nsqadmin.cluster.view import ClusterView
from nsqcy.nsqadmin.context import AppContext, Page, page_route
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.requests import params
from nsqcy.nsqadmin.views import overview as views


def overview(app: AppContext, request: Request) -> Page:
    layout, plots = app.layout(request), app.plots(request)
    location = Location(layout.home, params(request))

    def draw(cluster: ClusterView) -> View:
        found = cluster.busiest()
        state = views.Cluster(
            bool(found.totals.topics or cluster.topics()),
            found.topics,
            found.nodes,
            found.silent,
            app.health(cluster, found.nodes),
            found.totals,
            found.origins,
            found.unseen,
            _risks(app, cluster, found.nodes),
        )
        return views.overview(state, location, plots)

    return Page("Overview", layout.home, draw, is_live=True)


def _risks(app: AppContext, cluster: ClusterView, nodes: Iterable[Node]) -> list[Risk]:
    """Return the risks to topics with copies; an empty list if no nsqd uses copies."""
    if not app.sighting.is_used:
        return []
    answers = app.copies(cluster, nodes)
    found = copies.risks(copies.groups(answers, app.sighting.nsqds), answers)
    return [each for each in found if each.severity != copies.NOTICE]


ROUTES = (page_route("/", overview),)
