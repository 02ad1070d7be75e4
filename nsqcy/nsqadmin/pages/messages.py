"""Message and policy pages, which NSQ does not have."""

import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace

from nsqcy.errors import HttpError
from nsqcy.http.parser import Reply
from nsqcy.http.router import Request, Route
from nsqcy.nsqadmin import actions
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.view import ClusterView, Done, dead_letter_topics
from nsqcy.nsqadmin.context import (
    HEADERS,
    AppContext,
    Page,
    form_route,
    page_route,
    refusal,
    show,
    submit,
)
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.log_positions import with_picked_time
from nsqcy.nsqadmin.message_search import MAX_EXAMINED, search
from nsqcy.nsqadmin.requests import params, read_form, segments
from nsqcy.nsqadmin.views import messages as views
from nsqcy.nsqadmin.views import policies as policy_views
from nsqcy.nsqadmin.views.messages import MAX_BYTES, SIZES, MessageQuery, counts_of
from nsqcy.nsqadmin.views.policies import EMPTY, Draft
from nsqcy.nsqadmin.views.policy_fields import changes

BYTES = "16384"  # default bytes per body


# Messages


def peek(app: AppContext, request: Request, topic: str, channel: str = "") -> Page:
    layout = app.layout(request)
    given = with_picked_time(params(request), "from")
    query = MessageQuery.of(topic, channel, given)

    def draw(cluster: ClusterView) -> View:
        if query.tab == "dead":
            return _dead_letters(app, request, cluster, query)
        node = given.get("node", "") if "ask" not in given else ""
        answers = _messages(cluster, query, topic, channel, node)
        counts = counts_of(cluster.topic(topic, channel).topics, channel)
        return views.peek(layout, query, answers, counts, time.time())

    title, why = f"Messages in {query.name}", refusal(app, request)
    about = Subject(given.get("node", ""), topic, channel)
    return Page(title, query.path(layout), draw, about, refusal=why)


def _dead_letters(
    app: AppContext, request: Request, cluster: ClusterView, query: MessageQuery
) -> View:
    layout, given = app.layout(request), params(request)
    answers = cluster.policies(query.topic, query.channel)
    topics = dead_letter_topics(answers)
    channels = cluster.dead_letter_channels(topics)
    chosen = given.get("dead", ""), given.get("via", "")
    channels.sort(key=lambda each: each != chosen)
    if channels:
        answers = _messages(cluster, query, *channels[0], given.get("node", ""))
    counts = counts_of(cluster.topic(query.topic, query.channel).topics, query.channel)
    return views.dead_letters(layout, query, topics, channels, answers, counts)


def _messages(
    cluster: ClusterView, query: MessageQuery, topic: str, channel: str, node: str
) -> list[NodeAnswer]:
    """Return a page of messages from each node or, with a filter, the messages that pass it."""
    wanted = _peek_params(query, channel)
    answers = cluster.peek(topic, channel, node, wanted)
    if not query.is_filtered:
        return answers
    try:
        passing = query.filter
    except ValueError:  # the page shows the error
        return answers
    wanted.pop("from", None)
    return search(
        passing,
        answers,
        lambda name, start: cluster.peek(topic, channel, name, {**wanted, "start": start}),
        int(query.size),
    )


def _peek_params(query: MessageQuery, channel: str) -> dict[str, str]:
    """Return the parameters for nsqds, which validate them."""
    given = query.params
    holding = "queued" if channel else "backlog"  # the state of the dead letters
    wanted = {
        "state": holding if query.tab == "dead" else query.tab,
        "count": SIZES[-1] if query.is_filtered else given.get("count", SIZES[0]),
        "bytes": given.get("bytes", BYTES),
    }
    if "start" in given:
        wanted["start"] = given["start"]
    elif query.tab == "log":
        newest = MAX_EXAMINED if query.is_filtered else wanted["count"]
        wanted["from"] = given.get("from") or f"-{newest}"
    return wanted


def download_from_topic(app: AppContext, request: Request) -> Reply:
    return _download(app, request, *segments(request, 1))


def download_from_channel(app: AppContext, request: Request) -> Reply:
    return _download(app, request, *segments(request, 2))


def _download(app: AppContext, request: Request, topic: str, channel: str = "") -> Reply:
    """Return a message's body as a file. The file's name shows whether nsqd truncated a long
    body."""
    if refusal(app, request):
        raise HttpError(403, "FORBIDDEN")
    given = params(request)
    wanted = {"state": given.get("state", "queued"), "count": "1", "bytes": str(MAX_BYTES)}
    wanted["start"] = given.get("start", "")
    answers = app.cluster().peek(topic, channel, given.get("node", ""), wanted)
    found = [message for each in answers if each.is_done for message in each.value["messages"]]
    # The message may have left since the page was shown; nsqd then returns the next one.
    if not found or found[0]["id"] != given.get("id") or found[0]["body"] is None:
        raise HttpError(404, "MESSAGE_NOT_FOUND")
    name = f"{found[0]['id']}{'-beginning' if found[0]['cut'] else ''}.bin"
    headers = [*HEADERS, ("Content-Disposition", f'attachment; filename="{name}"')]
    body = b64decode(found[0]["body"])
    return Reply(200, body, "application/octet-stream", nsq=False, headers=headers)


def act_on_messages(app: AppContext, request: Request) -> Reply:
    topic, channel = segments(request, 2)
    fields = read_form(request)
    page = peek(app, request, topic, channel)
    node = fields.get("node", "")

    def redrive() -> Done:
        return actions.redrive(app, request, topic, channel, fields.get("limit", ""), node)

    def redrive_message() -> Done:
        return actions.redrive_message(app, request, topic, channel, fields.get("id", ""), node)

    def cancel() -> Done:
        return actions.cancel(app, request, topic, channel, fields.get("id", ""), node)

    def delete() -> Done:
        return actions.delete_message(app, request, topic, channel, fields.get("id", ""), node)

    match fields.get("action"):
        case "redrive":
            return submit(app, request, redrive, page, page)
        case "redrive-message":
            return submit(app, request, redrive_message, page, page)
        case "delete-message":
            return submit(app, request, delete, page, page)
        case "cancel":
            then = replace(page, path=f"{page.path}?state=deferred")
            return submit(app, request, cancel, page, then)
    raise HttpError(400, "INVALID_ACTION")


# Policies


def policy(
    app: AppContext,
    request: Request,
    topic: str,
    channel: str = "",
    draft: Draft = EMPTY,
) -> Page:
    path = app.layout(request).queue("policy", topic, channel)

    def draw(cluster: ClusterView) -> View:
        answers = cluster.policies(topic, channel)
        return policy_views.policy(topic, channel, path, answers, params(request), draft)

    title = f"Policy for {topic}/{channel}" if channel else f"Policy for {topic}"
    return Page(title, path, draw, Subject(topic=topic, channel=channel))


def set_topic_policy(app: AppContext, request: Request) -> Reply:
    return _set_policy(app, request, *segments(request, 1))


def set_channel_policy(app: AppContext, request: Request) -> Reply:
    return _set_policy(app, request, *segments(request, 2))


def _set_policy(app: AppContext, request: Request, topic: str, channel: str = "") -> Reply:
    """Set and reset the changed keys of a policy. An error from the nsqds is shown next to the
    field that it names, and the form keeps its texts."""
    fields = read_form(request)
    page = policy(app, request, topic, channel)

    def put(values: Mapping[str, object] | None) -> Done:
        return actions.set_policy(app, request, topic, channel, values)

    match fields.get("action"):
        case "save":
            values = changes(channel, fields)
            if not values:
                return Reply(303, nsq=False, headers=[("Location", page.path)])
            try:
                done = put(values)
            except HttpError as refused:
                draft = policy_views.draft(fields, values, refused.message)
                again = policy(app, request, topic, channel, draft)
                return show(app, request, again, error="" if draft.key else draft.text)
            return submit(app, request, lambda: done, page, page)
        case "reset-all":
            return submit(app, request, lambda: put(None), page, page)
    raise HttpError(400, "INVALID_ACTION")


ROUTES = (
    page_route("/peek/:topic", peek),
    page_route("/peek/:topic/:channel", peek),
    Route("GET", "/download/:topic", download_from_topic, plain=True),
    Route("GET", "/download/:topic/:channel", download_from_channel, plain=True),
    page_route("/policy/:topic", policy),
    page_route("/policy/:topic/:channel", policy),
    form_route("/peek/:topic/:channel", act_on_messages),
    form_route("/policy/:topic", set_topic_policy),
    form_route("/policy/:topic/:channel", set_channel_policy),
)
