"""Pages for all topics, one topic, one channel, and seeking a channel."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from nsqcy.cluster.stats import sum_topics
from nsqcy.errors import HttpError
from nsqcy.http.parser import Reply
from nsqcy.http.router import Request
from nsqcy.nsqadmin import actions
from nsqcy.nsqadmin.cluster.answers import seek_effects
from nsqcy.nsqadmin.cluster.copies import of_topic
from nsqcy.nsqadmin.cluster.view import ClusterView, Done
from nsqcy.nsqadmin.context import AppContext, Page, form_route, page_route, refusal, submit
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.log_positions import with_picked_time
from nsqcy.nsqadmin.requests import params, read_form, segments
from nsqcy.nsqadmin.views import publish as publish_view
from nsqcy.nsqadmin.views import seek as seek_view
from nsqcy.nsqadmin.views import topics as views


def streams(app: AppContext, request: Request) -> Page:
    layout, plots = app.layout(request), app.plots(request)
    location = Location(layout.link("topics"), params(request))

    def draw(cluster: ClusterView) -> View:
        found = cluster.busiest(names=True)
        chosen = views.choose(found, location, plots)
        topics = cluster.complete(found, chosen.shown.rows).topics
        return views.streams(chosen, topics, location, plots, found.unseen)

    return Page("Topics", location.path, draw, is_live=True)


def act_on_topics(app: AppContext, request: Request) -> Reply:
    fields = read_form(request)
    if fields.get("action") != "create":
        raise HttpError(400, "INVALID_ACTION")
    name, channel = fields.get("topic", ""), fields.get("channel", "")
    page = streams(app, request)
    do = partial(actions.create, app, request, name, channel, on_nsqds=True)
    return submit(app, request, do, page, topic(app, request, name))


def topic(
    app: AppContext, request: Request, name: str, draft: Mapping[str, str] | None = None
) -> Page:
    layout, plots = app.layout(request), app.plots(request)
    location = Location(layout.link("topics", name), params(request))

    def draw(cluster: ClusterView) -> View:
        rows = cluster.topic(name)
        copies = of_topic(app.copies(cluster, rows.nodes.values()), name)
        stats, origins = sum_topics(rows.topics)[name], app.origins(name)
        return views.topic(stats, location, plots, copies, draft, origins)

    return Page(name, location.path, draw, Subject(topic=name), is_live=True)


def channel(app: AppContext, request: Request, topic: str, name: str) -> Page:
    layout, plots = app.layout(request), app.plots(request)
    location = Location(layout.link("topics", topic, name), params(request))

    def draw(cluster: ClusterView) -> View:
        rows = cluster.topic(topic, name, clients=True)
        of = sum_topics(rows.topics)[topic]
        stats, origins = app.with_rates(of.channels[name]), app.origins(topic)
        return views.channel(of, stats, app.clients(rows), location, plots, origins)

    about = Subject(topic=topic, channel=name)
    return Page(f"{topic}/{name}", location.path, draw, about, is_live=True)


def act_on_topic(app: AppContext, request: Request) -> Reply:
    (name,) = segments(request, 1)
    fields = read_form(request)
    page = topic(app, request, name)
    match fields.get("action", ""):
        case "delete":
            then = streams(app, request)
            action = _typed(fields, name, partial(actions.delete, app, request, name))
            return submit(app, request, action, page, then)
        case "tombstone":
            node = fields.get("node", "")
            action = partial(actions.tombstone, app, request, node, name)
            return submit(app, request, action, page, page)
        case "publish":
            return _publish(app, request, name, fields)
        case verb:
            return submit(app, request, lambda: actions.act(app, request, verb, name), page, page)


def _publish(app: AppContext, request: Request, name: str, fields: Mapping[str, str]) -> Reply:
    def action() -> Done:
        body, defer, headers = publish_view.read(fields)
        node = fields.get("node", "")
        return actions.publish(app, request, name, body, defer=defer, headers=headers, node=node)

    page = topic(app, request, name, fields)
    then = replace(topic(app, request, name), path=f"{page.path}?published=1")
    return submit(app, request, action, page, then)


def act_on_channel(app: AppContext, request: Request) -> Reply:
    of, name = segments(request, 2)
    fields = read_form(request)
    verb = fields.get("action", "")
    page = channel(app, request, of, name)
    if verb == "delete":
        then = topic(app, request, of)
        action = _typed(fields, name, partial(actions.delete, app, request, of, name))
        return submit(app, request, action, page, then)
    return submit(app, request, lambda: actions.act(app, request, verb, of, name), page, page)


def _typed(fields: Mapping[str, str], name: str, action: Callable[[], Done]) -> Callable[[], Done]:
    """Return an action that fails unless the user has typed this name into the form."""

    def checked() -> Done:
        if fields.get("typed", "").strip() != name:
            raise HttpError(400, f"not deleted: type the name {name} to confirm")
        return action()

    return checked


# Seeking


def seek(app: AppContext, request: Request, topic: str, channel: str) -> Page:
    path = app.layout(request).link("seek", topic, channel)
    given = with_picked_time(params(request), "to")

    def draw(cluster: ClusterView) -> View:
        answers = cluster.log_positions(topic, given.get("to", "") or "latest")
        rows = cluster.topic(topic, channel)
        effects = seek_effects(channel, answers, [row.channels[channel] for row in rows.topics])
        return seek_view.seek(topic, channel, path, answers, effects, given, time.time())

    about = Subject(topic=topic, channel=channel)
    return Page(f"Seek {topic}/{channel}", path, draw, about, refusal=refusal(app, request))


def act_on_position(app: AppContext, request: Request) -> Reply:
    of, name = segments(request, 2)
    fields = read_form(request)
    if fields.get("action") != "seek":
        raise HttpError(400, "INVALID_ACTION")
    to, node = fields.get("to", ""), fields.get("node", "")

    def action() -> Done:
        return actions.seek(app, request, of, name, to, node)

    page, then = seek(app, request, of, name), channel(app, request, of, name)
    return submit(app, request, action, page, then)


ROUTES = (
    page_route("/topics", streams),
    page_route("/topics/:topic", topic),
    page_route("/topics/:topic/:channel", channel),
    page_route("/seek/:topic/:channel", seek),
    form_route("/topics", act_on_topics),
    form_route("/topics/:topic", act_on_topic),
    form_route("/topics/:topic/:channel", act_on_channel),
    form_route("/seek/:topic/:channel", act_on_position),
)
