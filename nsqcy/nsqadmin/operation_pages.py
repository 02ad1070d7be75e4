"""The pages beyond NSQ's about a topic or channel: its messages, its policy, and seeking.

As nsqcy.nsqadmin.pages, at paths that are no topic's or channel's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsqcy.errors import HttpError
from nsqcy.http.parser import Reply
from nsqcy.http.router import Request
from nsqcy.nsqadmin import operating, operations, pages, peek_views, policy_views, seek_views
from nsqcy.nsqadmin.gathering import Gathering
from nsqcy.nsqadmin.history_rates import Subject as About
from nsqcy.nsqadmin.markup import Markup
from nsqcy.nsqadmin.pages import View, did, get, params, post, read_form, shown
from nsqcy.nsqadmin.peek_views import TABS, Subject
from nsqcy.nsqadmin.policy_views import Problem
from nsqcy.nsqadmin.surroundings import Surroundings, refusal, segments

COUNT, BYTES = "10", "16384"  # messages of a node, and of each body, unless a page says otherwise


# Messages


def peek(api: Surroundings, request: Request, topic: str, channel: str = "") -> View:
    frame, given = api.frame(request), params(request)
    tab = given.get("state", "queued") if channel else "queued"
    subject = Subject(topic, channel, tab if tab in TABS else "queued", given)

    def draw(gathering: Gathering) -> Sequence[Markup]:
        if subject.tab == "dead":
            return _dead_letters(api, request, gathering, subject)
        node = given.get("node", "") if "ask" not in given else ""
        said = operations.peek(gathering, topic, channel, node, look(given, subject.tab))
        waiting = 0
        if channel and given.get("ask") == "redrive":
            rows = gathering.topic(topic, channel).topics
            waiting = sum(row.channels[channel].figures.depth for row in rows)
        return peek_views.peek(frame, subject, said, waiting)

    title, why = f"Messages of {subject.name}", refusal(api, request)
    node = given.get("node", "")
    return View(title, subject.path(frame), draw, About(node, topic, channel), refusal=why)


def _dead_letters(
    api: Surroundings, request: Request, gathering: Gathering, subject: Subject
) -> Sequence[Markup]:
    frame, given = api.frame(request), params(request)
    said = operations.policies(gathering, subject.topic, subject.channel)
    topics = operations.dead_letter_topics(said)
    places = operations.dead_letter_places(gathering, topics)
    chosen = given.get("dead", ""), given.get("via", "")
    places.sort(key=lambda each: each != chosen)
    if places:
        node = given.get("node", "")
        said = operations.peek(gathering, *places[0], node, look(given, "queued"))
    return peek_views.dead_letters(frame, subject, topics, places, said)


def look(given: Mapping[str, str], state: str) -> dict[str, str]:
    """What nsqds are asked for; they say themselves what cannot be."""
    wanted = {
        "state": state,
        "count": given.get("count", COUNT),
        "bytes": given.get("bytes", BYTES),
    }
    if "start" in given:
        wanted["start"] = given["start"]
    return wanted


def act_on_messages(api: Surroundings, request: Request) -> Reply:
    topic, channel = segments(request, 2)
    fields = read_form(request)
    here = peek(api, request, topic, channel)
    node = fields.get("node", "")

    def redrive() -> Gathering:
        limit = fields.get("limit", "")
        return operating.redrive(api, request, topic, channel, limit, node).gathering

    def cancel() -> Gathering:
        id = fields.get("id", "")
        return operating.cancel(api, request, topic, channel, id, node).gathering

    match fields.get("action"):
        case "redrive":
            return did(api, request, redrive, here, here)
        case "cancel":
            return did(api, request, cancel, here, _on_tab(here, "deferred"))
    raise HttpError(400, "INVALID_ACTION")


def _on_tab(view: View, tab: str) -> View:
    return replace(view, path=f"{view.path}?state={tab}")


# Policies


def policy(
    api: Surroundings,
    request: Request,
    topic: str,
    channel: str = "",
    problem: Problem | None = None,
) -> View:
    frame = api.frame(request)

    def draw(gathering: Gathering) -> Sequence[Markup]:
        said = operations.policies(gathering, topic, channel)
        return policy_views.policy(frame, topic, channel, said, params(request), problem)

    names = (topic, channel) if channel else (topic,)
    title, path = f"Policy of {'/'.join(names)}", frame.link("policy", *names)
    return View(title, path, draw, About(topic=topic, channel=channel))


def set_topic_policy(api: Surroundings, request: Request) -> Reply:
    return _set_policy(api, request, *segments(request, 1))


def set_channel_policy(api: Surroundings, request: Request) -> Reply:
    return _set_policy(api, request, *segments(request, 2))


def _set_policy(api: Surroundings, request: Request, topic: str, channel: str = "") -> Reply:
    """What nsqds refuse stands at the field."""
    fields = read_form(request)
    key, text = fields.get("key", ""), fields.get("value", "")
    here = policy(api, request, topic, channel)

    def say(values: Mapping[str, object] | None) -> Gathering:
        return operating.set_policy(api, request, topic, channel, values).gathering

    match fields.get("action"):
        case "set":
            try:
                gathering = say({key: policy_views.value_of(channel, key, text)})
            except HttpError as refused:
                problem = Problem(key, text, refused.message)
                return shown(api, request, policy(api, request, topic, channel, problem))
            return did(api, request, lambda: gathering, here, here)
        case "reset":
            return did(api, request, lambda: say({key: None}), here, here)
        case "reset-all":
            return did(api, request, lambda: say(None), here, here)
    raise HttpError(400, "INVALID_ACTION")


# Seeking


def seek(api: Surroundings, request: Request, topic: str, channel: str) -> View:
    frame, given = api.frame(request), params(request)

    def draw(gathering: Gathering) -> Sequence[Markup]:
        said = operations.places(gathering, topic, given.get("to", "") or "latest")
        rows = gathering.topic(topic, channel)
        of_channel = [row.channels[channel] for row in rows.topics]
        found = seek_views.moves(channel, said, of_channel)
        return seek_views.seek(frame, topic, channel, said, found, given)

    title, path = f"Seek {topic}/{channel}", frame.link("seek", topic, channel)
    about = About(topic=topic, channel=channel)
    return View(title, path, draw, about, refusal=refusal(api, request))


def act_on_place(api: Surroundings, request: Request) -> Reply:
    topic, channel = segments(request, 2)
    fields = read_form(request)
    if fields.get("action") != "seek":
        raise HttpError(400, "INVALID_ACTION")
    here, then = seek(api, request, topic, channel), pages.channel(api, request, topic, channel)
    to, node = fields.get("to", ""), fields.get("node", "")

    def do() -> Gathering:
        return operating.seek(api, request, topic, channel, to, node).gathering

    return did(api, request, do, here, then)


ROUTES = (
    get("/peek/:topic", peek),
    get("/peek/:topic/:channel", peek),
    post("/peek/:topic/:channel", act_on_messages),
    get("/policy/:topic", policy),
    get("/policy/:topic/:channel", policy),
    post("/policy/:topic", set_topic_policy),
    post("/policy/:topic/:channel", set_channel_policy),
    get("/seek/:topic/:channel", seek),
    post("/seek/:topic/:channel", act_on_place),
)
