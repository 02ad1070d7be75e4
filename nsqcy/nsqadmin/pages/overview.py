"""The first page: the state of the whole cluster."""

from nsqcy.cluster.stats import sum_topics
from nsqcy.http.router import Request
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
        names, rows, silent = cluster.whole()
        nodes = rows.nodes
        state = views.Cluster(
            len(names),
            sum_topics(rows.topics),
            list(nodes.values()),
            silent,
            app.health(cluster, nodes.values()),
        )
        return views.overview(state, location, plots)

    return Page("Overview", layout.home, draw, is_live=True)


ROUTES = (page_route("/", overview),)
