"""The status of nsqd: health, /info, /node, /stats and /metrics."""

import re
from collections.abc import Mapping
from typing import Any

from nsqcy.errors import HttpError
from nsqcy.http.parser import JSON, PLAIN, Reply
from nsqcy.http.router import Request, whole
from nsqcy.names import MAX_NAME_LENGTH
from nsqcy.nsqd.http.context import Context
from nsqcy.nsqd.http.params import BOOLEANS
from nsqcy.nsqd.process_messages.master_verbs import GetAllCopies, GetNode
from nsqcy.nsqd.process_messages.stats_query import Query

MAX_NAMED = 1000  # maximum topics that a request may select by name

_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)


def ping(api: Context, request: Request) -> str:
    health = api.backend.health()
    if health != "OK":
        raise HttpError(500, health)
    return health


def ready(api: Context, request: Request) -> str:
    """Return "OK" if clients should use this nsqd. Raises HttpError 503 with the reasons."""
    reasons = api.backend.reasons()
    if reasons:
        raise HttpError(503, "\n".join(reasons))
    return "OK"


def live(api: Context, request: Request) -> str:
    """Return "OK" if nsqd is alive. Raises HttpError 503 if it should be restarted.

    An nsqd that is not ready does not need to be killed.
    """
    problem = api.backend.live()
    if problem is not None:
        raise HttpError(503, problem)
    return "OK"


def info(api: Context, request: Request) -> dict[str, Any]:
    return api.backend.info()


def stats(api: Context, request: Request) -> Reply:
    params = whole(request)
    query = Query(
        json=params.get("format") == "json",
        topic=params.get("topic", ""),
        channel=params.get("channel", ""),
        include_clients=BOOLEANS.get(params.get("include_clients", ""), True),
        include_mem=BOOLEANS.get(params.get("include_mem", ""), True),
        ledger=BOOLEANS.get(params.get("ledger", ""), False),
        sparse=BOOLEANS.get(params.get("sparse", ""), False),
        topics=_topics(params),
        busiest=_busiest(params),
        names=BOOLEANS.get(params.get("names", ""), False),
    )
    # A list of topics may be too long for a log.
    body, kind = api.backend.stats(query), JSON if query.json else PLAIN
    return Reply(200, body, kind, logged=not query.topics)


def _topics(params: Mapping[str, str]) -> str:
    """Return the list of topics, which each worker must be able to read in one turn."""
    names = params.get("topics", "")
    if names.count(",") >= MAX_NAMED or len(names) > MAX_NAMED * (MAX_NAME_LENGTH + 1):
        raise HttpError(400, f"INVALID_TOPICS (allowed: up to {MAX_NAMED} names)")
    return names


def _busiest(params: Mapping[str, str]) -> int:
    if "busiest" not in params:
        return -1
    count = _COUNT.fullmatch(params["busiest"])
    if count is None:
        raise HttpError(400, "INVALID_BUSIEST (allowed: a number of topics, up to 999999)")
    return int(count[0])


def copies(api: Context, request: Request) -> dict[str, Any]:
    """Return the groups of copies that this nsqd owns or keeps, per worker."""
    return api.backend.at_master(GetAllCopies())


def node(api: Context, request: Request) -> dict[str, Any]:
    """Return the health of nsqd's processes and its disk."""
    return api.backend.at_master(GetNode())


def metrics(api: Context, request: Request) -> Reply:
    """Return the metrics for Prometheus, which requests them every few seconds."""
    head = request.head
    content_type, is_compressed, page = api.backend.metrics(
        head.header("Accept"), head.header("Accept-Encoding")
    )
    headers = [("Content-Encoding", "gzip")] if is_compressed else []
    return Reply(200, page, content_type, nsq=False, headers=headers, logged=False)
