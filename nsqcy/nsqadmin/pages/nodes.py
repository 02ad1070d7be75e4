"""Pages for nodes, for topics that only nsqlookupds list, and for the counter."""

from collections.abc import Callable

from nsqcy.errors import HttpError
from nsqcy.http.parser import Reply
from nsqcy.http.router import Request
from nsqcy.nsqadmin import actions
from nsqcy.nsqadmin.cluster.view import ClusterView, Done
from nsqcy.nsqadmin.context import AppContext, Page, form_route, page_route, submit
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.requests import params, read_form, segments
from nsqcy.nsqadmin.views import nodes as views

_COUNTER_EVERY = 5  # seconds


def nodes(app: AppContext, request: Request) -> Page:
    layout, plots = app.layout(request), app.plots(request)
    location = Location(layout.link("nodes"), params(request))

    def draw(cluster: ClusterView) -> View:
        found = cluster.nodes()
        health = app.health(cluster, found)
        return views.nodes(found, len(cluster.lookupds), location, plots, health)

    return Page("Nodes", location.path, draw, is_live=True)


def node(app: AppContext, request: Request, name: str) -> Page:
    layout, plots = app.layout(request), app.plots(request)
    location = Location(layout.link("nodes", name), params(request))

    def draw(cluster: ClusterView) -> View:
        rows = cluster.node(name)
        (found,) = rows.nodes.values()
        drain = cluster.drain_state(found)
        copies = next(iter(app.copies(cluster, [found])), None)
        clients, health = app.clients(rows), app.health(cluster, [found]).get(name)
        return views.node(name, rows.topics, clients, location, plots, drain, copies, health)

    return Page(name, location.path, draw, Subject(node=name), is_live=True)


def counter(app: AppContext, request: Request) -> Page:
    def draw(cluster: ClusterView) -> View:
        return views.counter(cluster.totals())

    path = app.layout(request).link("counter")
    return Page("Counter", path, draw, is_live=True, refresh=_COUNTER_EVERY)


def lookup(app: AppContext, request: Request) -> Page:
    path = app.layout(request).link("lookup")

    def draw(cluster: ClusterView) -> View:
        inactive = cluster.inactive_topics()
        failed = cluster.failed_lookupds
        return views.lookup(cluster.lookupds, failed, inactive, path, params(request))

    return Page("Lookup", path, draw)


def act_on_node(app: AppContext, request: Request) -> Reply:
    (name,) = segments(request, 1)
    fields = read_form(request)
    topic, channel = fields.get("topic", ""), fields.get("channel", "")

    def action() -> Done:
        match fields.get("action", ""):
            case "tombstone":
                return actions.tombstone(app, request, name, topic)
            case "drain" | "undrain" as verb:
                return actions.drain(app, request, name, on=verb == "drain")
            case verb:
                return actions.act_on_node(app, request, name, verb, topic, channel)

    page = node(app, request, name)
    return submit(app, request, action, page, page)


def act_on_lookupds(app: AppContext, request: Request) -> Reply:
    fields = read_form(request)
    topic, channel = fields.get("topic", ""), fields.get("channel", "")
    do: Callable[..., Done]
    match fields.get("action", ""):
        case "create":
            do = actions.create
        case "delete":
            do = actions.delete
        case _:
            raise HttpError(400, "INVALID_ACTION")
    page = lookup(app, request)
    return submit(app, request, lambda: do(app, request, topic, channel), page, page)


ROUTES = (
    page_route("/nodes", nodes),
    page_route("/nodes/:node", node),
    page_route("/counter", counter),
    page_route("/lookup", lookup),
    form_route("/nodes/:node", act_on_node),
    form_route("/lookup", act_on_lookupds),
)
