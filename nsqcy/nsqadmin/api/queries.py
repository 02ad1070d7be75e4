"""GET requests of the API: statistics, messages, policies, history, and previews of actions.

In responses beyond NSQ's API, `nodes` contains each nsqd's response or its `error`, and `message`
contains the warnings, as in NSQ's API.
"""

from typing import Any

from nsqcy.cluster.stats import sum_topics
from nsqcy.config.durations import SECOND, parse_duration
from nsqcy.errors import HttpError
from nsqcy.http.router import Request, Route
from nsqcy.nsqadmin.api import stats_json
from nsqcy.nsqadmin.api.copies_json import copies_json
from nsqcy.nsqadmin.api.stats_json import Json, StatsJson, node_answer, node_answers
from nsqcy.nsqadmin.cluster.answers import seek_effects
from nsqcy.nsqadmin.cluster.view import ClusterView
from nsqcy.nsqadmin.context import AppContext, refusal
from nsqcy.nsqadmin.history.store import METRICS, Subject
from nsqcy.nsqadmin.html.plots import FRAME, FRAMES
from nsqcy.nsqadmin.requests import readable, segments


def _with_warnings(value: Json, cluster: ClusterView) -> Json:
    return value | {"message": cluster.warning("; ")}


def topics(app: AppContext, request: Request) -> Json:
    params = request.params
    cluster = app.cluster()
    if params.get("inactive") == "true":
        inactive = cluster.inactive_topics()
        found: Any = {topic: channels or None for topic, channels in inactive.items()}
    else:
        found = cluster.topics() or None
    return _with_warnings({"topics": found}, cluster)


def topic(app: AppContext, request: Request) -> Json:
    (name,) = segments(request, 1)
    cluster = app.cluster()
    rows = cluster.topic(name)
    return _with_warnings(
        StatsJson(app.clients(rows)).topic(sum_topics(rows.topics)[name]), cluster
    )


def channel(app: AppContext, request: Request) -> Json:
    name, channel = segments(request, 2)
    cluster = app.cluster()
    rows = cluster.topic(name, channel, clients=True)
    found = sum_topics(rows.topics)[name].channels[channel]
    return _with_warnings(StatsJson(app.clients(rows)).channel(found), cluster)


def nodes(app: AppContext, request: Request) -> Json:
    cluster = app.cluster()
    return _with_warnings({"nodes": [*map(stats_json.node, cluster.nodes())] or None}, cluster)


def node(app: AppContext, request: Request) -> Json:
    (name,) = segments(request, 1)
    cluster = app.cluster()
    rows = cluster.node(name)
    return _with_warnings(
        stats_json.node_page(name, rows.topics, StatsJson(app.clients(rows))), cluster
    )


def counter(app: AppContext, request: Request) -> Json:
    cluster = app.cluster()
    return _with_warnings({"stats": stats_json.counter(cluster.everything().topics)}, cluster)


PEEK_PARAMS = ("state", "count", "start", "from", "bytes")  # parameters forwarded to nsqd


def _params(request: Request) -> dict[str, str]:
    return {name: readable(value) for name, value in request.params.items()}


def _check_may_act(app: AppContext, request: Request) -> None:
    """Raise HttpError if the user may see only statistics."""
    if refusal(app, request):
        raise HttpError(403, "FORBIDDEN")


# Messages


def peek_channel(app: AppContext, request: Request) -> Json:
    return _peek(app, request, *segments(request, 2))


def peek_topic(app: AppContext, request: Request) -> Json:
    return _peek(app, request, *segments(request, 1))


def _peek(app: AppContext, request: Request, topic: str, channel: str = "") -> Json:
    _check_may_act(app, request)
    params = _params(request)
    given = {name: params[name] for name in PEEK_PARAMS if name in params}
    cluster = app.cluster()
    answers = cluster.peek(topic, channel, params.get("node", ""), given)
    return node_answers(answers, cluster.warning("; "))


# Policies


def get_topic_policy(app: AppContext, request: Request) -> Json:
    return _policy(app, request, *segments(request, 1))


def get_channel_policy(app: AppContext, request: Request) -> Json:
    return _policy(app, request, *segments(request, 2))


def _policy(app: AppContext, request: Request, topic: str, channel: str = "") -> Json:
    cluster = app.cluster()
    node = _params(request).get("node", "")
    answers = cluster.policies(topic, channel, node)
    return node_answers(answers, cluster.warning("; "))


# Channels


def seek_preview(app: AppContext, request: Request) -> Json:
    _check_may_act(app, request)
    topic, channel = segments(request, 2)
    to = _params(request).get("to", "")
    cluster = app.cluster()
    answers = cluster.log_positions(topic, to)
    rows = cluster.topic(topic, channel)
    channels = [row.channels[channel] for row in rows.topics]
    effects = {each.node: each for each in seek_effects(channel, answers, channels)}
    nodes = [
        vars(effects[each.node]) if each.node in effects else node_answer(each)
        for each in answers
        if each.node in effects or not each.is_done
    ]
    return _with_warnings({"nodes": nodes}, cluster)


def drain_state(app: AppContext, request: Request) -> Json:
    (name,) = segments(request, 1)
    cluster = app.cluster()
    answer = cluster.drain_state(cluster.find(name))
    return node_answers([answer] if answer else [], cluster.warning("; "))


def copies(app: AppContext, request: Request) -> Json:
    cluster = app.cluster()
    answers = app.all_copies(cluster)
    return copies_json(answers, app.sighting.nsqds) | node_answers(answers, cluster.warning("; "))


def get_history(app: AppContext, request: Request) -> Json:
    plots, params = app.plots(request), request.params
    history = plots.history
    if history is None:
        raise HttpError(404, "HISTORY_OFF")
    subject = Subject(*(readable(params.get(name, "")) for name in ("node", "topic", "channel")))
    if subject == Subject():
        return {
            "interval": history.step,
            "length": history.length,
            "series": history.series,
            "series_most": history.maximum,
            "bytes": history.series * history.bytes_each,
        }
    if bool(subject.node) == bool(subject.topic) or (subject.channel and not subject.topic):
        raise HttpError(400, "INVALID_ARG_SUBJECT")
    window = history.read(subject, plots.now, _seconds(params.get("range"), history.length))
    if window is None:
        raise HttpError(404, "HISTORY_NOT_FOUND")
    return {
        "start": round(window.start + plots.since_epoch, 3),
        "step": window.step,
        "metrics": {name: [*map(_number, window.columns[name])] for name in METRICS},
    }


def _seconds(text: str | None, maximum: float) -> float:
    if text is None:
        return min(FRAMES[FRAME], maximum)
    try:
        seconds = parse_duration(text) / SECOND
    except ValueError:
        raise HttpError(400, "INVALID_ARG_RANGE") from None
    if not 0 < seconds <= maximum:
        raise HttpError(400, "INVALID_ARG_RANGE")
    return seconds


def _number(value: float) -> float | None:
    """Round to single precision; return None for NaN."""
    return None if value != value else float(f"{value:.7g}")


ROUTES = (
    Route("GET", "/api/topics", topics),
    Route("GET", "/api/topics/:topic", topic),
    Route("GET", "/api/topics/:topic/:channel", channel),
    Route("GET", "/api/nodes", nodes),
    Route("GET", "/api/nodes/:node", node),
    Route("GET", "/api/counter", counter),
    Route("GET", "/api/copies", copies),
    Route("GET", "/api/peek/:topic", peek_topic),
    Route("GET", "/api/peek/:topic/:channel", peek_channel),
    Route("GET", "/api/policy/:topic", get_topic_policy),
    Route("GET", "/api/policy/:topic/:channel", get_channel_policy),
    Route("GET", "/api/seek/:topic/:channel", seek_preview),
    Route("GET", "/api/drain/:node", drain_state),
    Route("GET", "/api/history", get_history),
)
