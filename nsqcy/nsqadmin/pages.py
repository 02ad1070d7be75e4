"""The pages, at NSQ's URLs: what is gathered for each, and what their forms do.

A page is always there: what cannot be had is told in its stead, and has the status it has over the
API. A form that has done what it should leads to a page; if something went wrong that page says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsqcy.cluster.stats import sum_topics
from nsqcy.errors import HttpError
from nsqcy.http.parser import HTML, Fault, Reply, parse_query
from nsqcy.http.router import Handler, Request, Route
from nsqcy.nsqadmin import acting, node_views, operating, operations, stream_views, topic_views
from nsqcy.nsqadmin.gathering import Gathering
from nsqcy.nsqadmin.here import Here
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.markup import Markup
from nsqcy.nsqadmin.subject_views import lost
from nsqcy.nsqadmin.surroundings import Surroundings, body_limit, guarded, readable, segments

# Nobody else's page may frame ours, have its forms sent elsewhere, or run anything in it.
_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_COUNTER_EVERY = 5  # seconds
NOTHING = Subject()


@dataclass(frozen=True)
class View:
    """A page: `draw` gathers what is on it, and raises HttpError where that cannot be had."""

    title: str
    path: str
    draw: Callable[[Gathering], Sequence[Markup]]
    about: Subject = NOTHING
    is_live: bool = False  # kept up to date while somebody looks at it
    refresh: int = 0  # seconds after which it is to be loaded again, where nothing keeps it so
    refusal: str = ""  # why it is not for this user: then that is all there is


# Each page, of the names in its path


def streams(api: Surroundings, request: Request) -> View:
    frame, plots = api.frame(request), api.plots(request)
    here = Here(frame.home, params(request))

    def draw(gathering: Gathering) -> Sequence[Markup]:
        names, rows = gathering.streams()
        return stream_views.streams(frame, names, sum_topics(rows.topics), here, plots)

    return View("Streams", frame.home, draw, is_live=True)


def topic(api: Surroundings, request: Request, name: str) -> View:
    frame, plots = api.frame(request), api.plots(request)
    here = Here(frame.link("topics", name), params(request))

    def draw(gathering: Gathering) -> Sequence[Markup]:
        rows = gathering.topic(name)
        return topic_views.topic(frame, sum_topics(rows.topics)[name], here, plots)

    return View(name, here.path, draw, Subject(topic=name), is_live=True)


def channel(api: Surroundings, request: Request, topic: str, name: str) -> View:
    frame, plots = api.frame(request), api.plots(request)
    here = Here(frame.link("topics", topic, name), params(request))

    def draw(gathering: Gathering) -> Sequence[Markup]:
        rows = gathering.topic(topic, name, clients=True)
        found = sum_topics(rows.topics)[topic].channels[name]
        return topic_views.channel(frame, found, api.shapes(rows), here, plots)

    about = Subject(topic=topic, channel=name)
    return View(f"{topic}/{name}", here.path, draw, about, is_live=True)


def nodes(api: Surroundings, request: Request) -> View:
    frame, plots = api.frame(request), api.plots(request)
    here = Here(frame.link("nodes"), params(request))

    def draw(gathering: Gathering) -> Sequence[Markup]:
        return node_views.nodes(frame, gathering.nodes(), len(gathering.lookupds), here, plots)

    return View("Nodes", here.path, draw, is_live=True)


def node(api: Surroundings, request: Request, name: str) -> View:
    frame, plots = api.frame(request), api.plots(request)
    here = Here(frame.link("nodes", name), params(request))

    def draw(gathering: Gathering) -> Sequence[Markup]:
        rows = gathering.node(name)
        (found,) = rows.nodes.values()
        drain = operations.drain_state(gathering, found)
        shapes = api.shapes(rows)
        return node_views.node(frame, name, rows.topics, shapes, here, plots, drain)

    return View(name, here.path, draw, Subject(node=name), is_live=True)


def counter(api: Surroundings, request: Request) -> View:
    def draw(gathering: Gathering) -> Sequence[Markup]:
        return node_views.counter(gathering.everything().topics)

    path = api.frame(request).link("counter")
    return View("Counter", path, draw, is_live=True, refresh=_COUNTER_EVERY)


def lookup(api: Surroundings, request: Request) -> View:
    frame = api.frame(request)

    def draw(gathering: Gathering) -> Sequence[Markup]:
        inactive = gathering.inactive_topics()
        return node_views.lookup(frame, gathering.lookupds, inactive, params(request))

    return View("Lookup", frame.link("lookup"), draw)


def params(request: Request) -> dict[str, str]:
    """Those of a query that cannot be read are none: a page is there all the same."""
    return {name: readable(value) for name, value in (request.head.params or {}).items()}


def shown(
    api: Surroundings, request: Request, view: View, *, warning: str = "", error: str = ""
) -> Reply:
    """A page as it is now, with what went wrong before."""
    if view.refusal:
        refused = api.frame(request).page(view.title, error=view.refusal)
        return Reply(403, refused, HTML, nsq=False, headers=HEADERS)
    gathering, frame = api.gathering(), api.frame(request)
    status, errors = 200, [error]
    try:
        content = view.draw(gathering)
    except HttpError as problem:
        status, content = problem.status, lost(frame, problem.message, view.about)
        errors.append(problem.message)
    warnings = [each for each in (warning, gathering.warning("\n")) if each]
    page = frame.page(
        view.title,
        *content,
        warning="\n".join(warnings),
        error="\n".join(dict.fromkeys(filter(None, errors))),
        is_live=view.is_live,
        refresh=view.refresh,
    )
    return Reply(status, page, HTML, nsq=False, headers=HEADERS)


# What forms do


def read_form(request: Request) -> dict[str, str]:
    body = request.body
    fields = parse_query(bytes(body.data).decode("latin-1"))
    if body.fault is not Fault.NONE or fields is None:
        raise HttpError(400, "INVALID_BODY")
    return {name: readable(value) for name, value in fields.items()}


def did(
    api: Surroundings, request: Request, do: Callable[[], Gathering], here: View, then: View
) -> Reply:
    """Do it, and go on to the other page; or stay here with what is wrong."""
    try:
        warning = do().warning("\n")
    except HttpError as problem:
        return shown(api, request, here, error=problem.message)
    if warning:
        return shown(api, request, then, warning=warning)
    return Reply(303, nsq=False, headers=[("Location", then.path)])


def act_on_topic(api: Surroundings, request: Request) -> Reply:
    (name,) = segments(request, 1)
    fields = read_form(request)
    here = topic(api, request, name)
    match fields.get("action", ""):
        case "delete":
            then = streams(api, request)
            return did(api, request, lambda: acting.delete(api, request, name), here, then)
        case "tombstone":
            node = fields.get("node", "")
            return did(api, request, lambda: acting.tombstone(api, request, node, name), here, here)
        case action:
            return did(api, request, lambda: acting.act(api, request, action, name), here, here)


def act_on_channel(api: Surroundings, request: Request) -> Reply:
    of, name = segments(request, 2)
    here = channel(api, request, of, name)
    match read_form(request).get("action", ""):
        case "delete":
            then = topic(api, request, of)
            return did(api, request, lambda: acting.delete(api, request, of, name), here, then)
        case action:
            return did(api, request, lambda: acting.act(api, request, action, of, name), here, here)


def act_on_node(api: Surroundings, request: Request) -> Reply:
    (name,) = segments(request, 1)
    fields = read_form(request)
    topic, channel = fields.get("topic", ""), fields.get("channel", "")
    here = node(api, request, name)
    match fields.get("action", ""):
        case "tombstone":
            return did(
                api, request, lambda: acting.tombstone(api, request, name, topic), here, here
            )
        case "drain" | "undrain" as action:
            on = action == "drain"
            return did(
                api,
                request,
                lambda: operating.drain(api, request, name, on=on).gathering,
                here,
                here,
            )
        case action:
            return did(
                api,
                request,
                lambda: operating.act_on_node(api, request, name, action, topic, channel).gathering,
                here,
                here,
            )


def act_on_lookupds(api: Surroundings, request: Request) -> Reply:
    fields = read_form(request)
    topic, channel = fields.get("topic", ""), fields.get("channel", "")
    here = lookup(api, request)
    match fields.get("action", ""):
        case "create":
            do = acting.create
        case "delete":
            do = acting.delete
        case _:
            raise HttpError(400, "INVALID_ACTION")
    return did(api, request, lambda: do(api, request, topic, channel), here, here)


# Routes


def get(path: str, view: Callable[..., View]) -> Route:
    count = path.count(":")

    def handle(api: Surroundings, request: Request) -> Reply:
        names = segments(request, count) if count else []
        return shown(api, request, view(api, request, *names))

    return Route("GET", path, handle, plain=True)


def post(path: str, handler: Handler) -> Route:
    return Route("POST", path, guarded(handler), body=body_limit, plain=True)


ROUTES = (
    get("/", streams),
    get("/topics", streams),
    get("/topics/:topic", topic),
    get("/topics/:topic/:channel", channel),
    get("/nodes", nodes),
    get("/nodes/:node", node),
    get("/counter", counter),
    get("/lookup", lookup),
    post("/topics/:topic", act_on_topic),
    post("/topics/:topic/:channel", act_on_channel),
    post("/nodes/:node", act_on_node),
    post("/lookup", act_on_lookupds),
)
