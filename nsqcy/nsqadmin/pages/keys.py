"""Page of a channel's keys, which NSQ does not have."""

from collections.abc import Callable, Mapping

from nsqcy.errors import HttpError
from nsqcy.http.parser import Reply
from nsqcy.http.router import Request
from nsqcy.nsqadmin import actions
from nsqcy.nsqadmin.cluster.view import ClusterView, Done
from nsqcy.nsqadmin.context import AppContext, Page, form_route, page_route, refusal, submit
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.requests import params, read_form, segments
from nsqcy.nsqadmin.views import keys as views

ACTIONS: Mapping[str, Callable[..., Done]] = {
    "pause-key": actions.pause_key,
    "unpause-key": actions.unpause_key,
    "empty-key": actions.empty_key,
}


def keys(app: AppContext, request: Request, topic: str, channel: str) -> Page:
    layout, given = app.layout(request), params(request)
    path = layout.queue("keys", topic, channel)

    def draw(cluster: ClusterView) -> View:
        answers = cluster.keys(topic, channel, views.wanted(given))
        return views.keys(layout, topic, channel, path, answers, given)

    title, why = f"Keys of {topic}/{channel}", refusal(app, request)
    return Page(title, path, draw, Subject(topic=topic, channel=channel), refusal=why)


def act_on_keys(app: AppContext, request: Request) -> Reply:
    topic, channel = segments(request, 2)
    fields = read_form(request)
    page = keys(app, request, topic, channel)
    action = ACTIONS.get(fields.get("action", ""))
    if action is None:
        raise HttpError(400, "INVALID_ACTION")
    key, node = fields.get("key", ""), fields.get("node", "")
    return submit(app, request, lambda: action(app, request, topic, channel, key, node), page, page)


ROUTES = (
    page_route("/keys/:topic/:channel", keys),
    form_route("/keys/:topic/:channel", act_on_keys),
)
