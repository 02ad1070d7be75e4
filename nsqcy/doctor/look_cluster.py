"""Collects facts about a cluster: queries all nsqlookupds and nsqds in parallel over HTTP and TCP.

Every response, and every missing response, is a fact. NSQ's own daemons receive the same queries;
facts that they do not provide stay unknown.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from urllib.parse import urlencode

from urllib3.util import Url, parse_url

from nsqcy.cluster import answers, copies, discovery, node_answer, summaries
from nsqcy.cluster.discovery import Producer, daemon_url
from nsqcy.cluster.parallel import ask_all
from nsqcy.cluster.problems import NodeState
from nsqcy.cluster.stats import MAX_ANSWER, TopicStats
from nsqcy.cluster.summaries import Summary
from nsqcy.cluster.web_client import TIMED_OUT, Answer, WebClient
from nsqcy.doctor import look_messages, look_tcp
from nsqcy.doctor.facts import (
    MAX_LOGS,
    MAX_TOPICS,
    Attempted,
    Cluster,
    Lookupd,
    Nsqd,
    Offset,
    Policy,
)
from nsqcy.errors import RequestError
from nsqcy.util import gojson

MAX_TEXT = 1 << 20  # maximum bytes of a short response
NOT_FOUND = 404
DATE_PRECISION = 0.5  # seconds: Date has a resolution of 1 s, so we assume the middle

_LOG: gojson.Fields = {"log_id": (answers.line, "")}
_LOST_NODE: gojson.Fields = {**discovery.PRODUCER, "last_seen": (gojson.int64, 0)}
_LOST: gojson.Fields = {
    "producers": (gojson.array(gojson.structure(_LOST_NODE), gojson.EMPTY), []),
}
_VERSION: gojson.Fields = {"version": (answers.line, "")}

_POLICY: gojson.Fields = {
    "max_depth": (gojson.int64, 0),
    "max_bytes": (gojson.int64, 0),
    "on_full": (answers.line, "reject"),
    "dead_letter_topic": (answers.name_or_none, ""),
}
_CHANNEL: gojson.Fields = {
    "channel_name": (answers.name, ""),
    "policy": (gojson.structure(_POLICY), None),
}
_TOPIC: gojson.Fields = {
    "topic_name": (answers.name, ""),
    "policy": (gojson.structure(_POLICY), None),
    "channels": (gojson.array(gojson.structure(_CHANNEL), gojson.EMPTY), []),
}
# Keys of /stats in addition to the figures; NSQ's own nsqd has only some of them.
_HEALTH: gojson.Fields = {
    "health": (answers.line, "OK"),
    "draining": (gojson.flag, False),
    "topics": (gojson.array(gojson.structure(_TOPIC), gojson.EMPTY), []),
}


@dataclass(frozen=True)
class Addresses:
    """The daemons to query. assumed: the addresses are defaults, not configured."""

    lookupds: Sequence[str] = ()
    nsqds: Sequence[str] = ()
    assumed: bool = False


def look(addresses: Addresses, web: WebClient, watch: float = 0.0) -> Cluster:
    """Return the facts about a cluster. watch: seconds until nsqds are queried a second time, to
    detect changes; 0 queries once."""
    assumed = addresses.assumed
    lookupds = ask_lookupds(addresses.lookupds, web, assumed=assumed)
    announced = _announced(lookupds)
    lost = _lost(lookupds, {each.address for each in announced})
    # The details from nsqlookupds replace an address alone: a default address is a guess.
    known = {each.address for each in (*announced, *lost)}
    named = [
        Nsqd(each, Producer("", 0, 0), assumed=assumed)
        for each in addresses.nsqds
        if each not in known
    ]
    nsqds = _complete(_once_each(_nsqds([*named, *announced, *lost], web)), web)
    nsqds = _with_logs(_with_attempts(nsqds, web), web)
    watched = 0.0
    if watch > 0 and any(not each.error for each in nsqds):
        time.sleep(watch)
        nsqds, watched = _later(nsqds, web), watch
    return Cluster(time.time(), lookupds, nsqds, watched)


# --- nsqlookupds --------------------------------------------------------------------------------


def ask_lookupds(
    addresses: Sequence[str], web: WebClient, *, assumed: bool = False
) -> list[Lookupd]:
    """Query all nsqlookupds. Does not raise."""

    def ask(address: str) -> Lookupd:
        info, offset = _timed(web, _beside(address, "info"))
        version = answers.read(info.body, info.headers, _VERSION)["version"]
        topics = web.fetch(_beside(address, "topics"), maximum=discovery.MAX_ANSWER)
        nodes = web.fetch(_beside(address, "nodes"), maximum=discovery.MAX_ANSWER)
        return Lookupd(
            address,
            version=version,
            offset=offset,
            topics=frozenset(discovery.parse_topics(topics.body, topics.headers)),
            producers=discovery.parse_nodes(nodes.body, nodes.headers),
            lost=_lost_at(address, web),
            assumed=assumed,
        )

    outcome = ask_all(addresses, ask, 3 * web.terms.whole)
    discovery.note_proved(
        {address: each.producers for address, each in outcome.values.items()}, web, all_nodes=True
    )
    return [
        outcome.values.get(address)
        or Lookupd(address, error=str(outcome.errors[address]), assumed=assumed)
        for address in dict.fromkeys(addresses)
    ]


def _lost_at(address: str, web: WebClient) -> Sequence[tuple[Producer, float]]:
    """Return the nsqds that are no longer registered; none if the nsqlookupd is NSQ's, or does not
    answer."""
    try:
        answer = web.fetch(_beside(address, "nodes/lost"), maximum=discovery.MAX_ANSWER)
        found = answers.read(answer.body, answer.headers, _LOST)["producers"]
    except RequestError:
        return ()
    now = time.time()
    seen = [(each.pop("last_seen") / 1e9, Producer(**each)) for each in found]
    return [(node, max(0.0, now - at)) for at, node in seen if discovery.is_addressed(node)]


def _lost(lookupds: Iterable[Lookupd], known: Collection[str]) -> list[Nsqd]:
    """Return the nsqds that were registered until recently; known: addresses of other nsqds."""
    found: dict[str, Nsqd] = {}
    for lookupd in lookupds:
        for node, seconds in lookupd.lost:
            left = f"{lookupd.address} until {seconds:.0f} s ago"
            found.setdefault(node.http_address, Nsqd(node.http_address, node, left=left))
    return [each for address, each in found.items() if address not in known]


def _beside(address: str, name: str) -> Url:
    return parse_url(discovery.lookupd_url(address, name))


def _announced(lookupds: Iterable[Lookupd]) -> list[Nsqd]:
    """Return every announced nsqd, and the nsqlookupds that announce it."""
    by: dict[tuple[str, int, int], tuple[Producer, list[str]]] = {}
    for lookupd in lookupds:
        for node in lookupd.producers:
            key = (node.broadcast_address, node.tcp_port, node.http_port)
            by.setdefault(key, (node, []))[1].append(lookupd.address)
    return [Nsqd(node.http_address, node, who) for node, who in by.values()]


# --- nsqds --------------------------------------------------------------------------------------


def _nsqds(nsqds: Sequence[Nsqd], web: WebClient) -> list[Nsqd]:
    def ask(number: int) -> Nsqd:
        return _nsqd(nsqds[number], web)

    numbers = range(len(nsqds))
    outcome = ask_all(numbers, ask, 6 * web.terms.whole)
    return [
        outcome.values.get(each) or replace(nsqds[each], error=str(outcome.errors[each]))
        for each in numbers
    ]


def _nsqd(nsqd: Nsqd, web: WebClient) -> Nsqd:
    """Query an nsqd over HTTP and TCP. Does not raise."""
    try:
        nsqd = of_http(nsqd, web)
    except RequestError as error:
        nsqd = replace(nsqd, error=str(error), hangs=_why_it_hangs(nsqd, error, web))
    if not nsqd.node.tcp_port:
        return nsqd
    node = nsqd.node
    return replace(nsqd, door=look_tcp.knock(node.broadcast_address, node.tcp_port, web.terms))


def _why_it_hangs(nsqd: Nsqd, error: RequestError, web: WebClient) -> str:
    """Return why an nsqd accepts connections but does not answer; empty if it accepts none."""
    if str(error) != TIMED_OUT:
        return ""
    with suppress(RequestError, ValueError):
        url = url_of(nsqd)
        if look_tcp.accepts(url, web.terms):
            with suppress(RequestError):  # the master answers if all workers hang
                if told := _unready(web, url):
                    return told
            return "connections are accepted, but requests are not answered"
    return ""


def of_http(nsqd: Nsqd, web: WebClient) -> Nsqd:
    """Query an nsqd over HTTP. Raises RequestError."""
    url = url_of(nsqd)
    info, offset = _timed(web, url._replace(path="/info"))
    node = Producer(**answers.read(info.body, info.headers, discovery.PRODUCER))
    if not node.broadcast_address:
        host, port = (url.host or "").strip("[]"), url.port or 0
        node = replace(node, broadcast_address=host, http_port=port)
    if not discovery.is_addressed(node):
        raise RequestError("the response cannot be read: not an address", 200)
    if nsqd.lookupds:  # clients use the announced address, not the nsqd's own
        known = nsqd.node
        node = replace(known, version=node.version or known.version)
    page = _stats(web, url)
    summary = _summary(page, node)
    state = _state(web, url)
    extra = answers.read(page.body, page.headers, _HEALTH)
    return replace(
        nsqd,
        node=node,
        offset=offset,
        health=extra["health"],
        draining=extra["draining"],
        disk_free=state.disk_free,
        unregistered=state.unregistered,
        unready=_unready(web, url),
        expires=look_tcp.https_expiry(url, web.terms),
        topics=summary.rows,
        summary=summary,
        policies=_policies(extra["topics"]),
        copies=_copies(web, url),
    )


def url_of(nsqd: Nsqd) -> Url:
    return nsqd.node.url if nsqd.lookupds or nsqd.left else daemon_url(nsqd.address)


def _stats(web: WebClient, url: Url) -> Answer:
    page = summaries.summary_url(url, clients=True, names=True, count=MAX_TOPICS)
    return web.fetch(page, maximum=MAX_ANSWER)


def _summary(page: Answer, node: Producer) -> Summary:
    return summaries.parse_summary(
        page.body, page.headers, node.http_address, node.hostname, clients=True
    )


def _complete(nsqds: Sequence[Nsqd], web: WebClient) -> list[Nsqd]:
    """Add the rows of topics that are busy on another nsqd. Without them, the nsqd still counts as
    having answered."""

    def ask(number: int, topics: Sequence[str]) -> list[TopicStats]:
        nsqd = nsqds[number]
        return summaries.rows_of_nsqd(url_of(nsqd), nsqd.node, topics, web=web, clients=True)

    found = {number: nsqd.summary for number, nsqd in enumerate(nsqds) if nsqd.summary is not None}
    busy = {name for each in found.values() for name in each.busy}
    completed, _ = summaries.complete(found, busy, ask, web.terms.whole)
    return [
        replace(nsqd, topics=completed[number].rows) if number in completed else nsqd
        for number, nsqd in enumerate(nsqds)
    ]


def _unready(web: WebClient, url: Url) -> str:
    """Return why an nsqd is not ready. NSQ's own nsqd has no /ready."""
    answer = web.ask(url._replace(path="/ready"), maximum=MAX_TEXT)
    if answer.status in (200, NOT_FOUND):
        return ""
    return " ".join(answer.body.decode("utf-8", "replace").split()) or f"status {answer.status}"


def _state(web: WebClient, url: Url) -> NodeState:
    """Return an nsqd's report about itself; unknown if it does not support /node."""
    answer = web.ask(url._replace(path="/node"), maximum=MAX_TEXT)
    if answer.status != 200:
        return NodeState("")
    node = answers.read(answer.body, answer.headers, node_answer.FIELDS)
    return node_answer.of_fields("", node, time.time())


def _copies(web: WebClient, url: Url) -> Sequence[copies.Report]:
    """Return the reports of an nsqd's workers; none if etcd is not configured or nsqd does not
    support copies."""
    answer = web.ask(url._replace(path="/copies"), maximum=MAX_ANSWER)
    if answer.status != 200:
        return ()
    found = answers.read(answer.body, answer.headers, copies.FIELDS)
    workers: list[copies.Report] = found["workers"]
    return workers


def _policies(topics: Iterable[Mapping[str, object]]) -> dict[tuple[str, str], Policy]:
    found = {}
    for topic in topics:
        name = str(topic["topic_name"])
        if isinstance(topic["policy"], dict):
            found[name, ""] = Policy(**topic["policy"])
        channels = topic["channels"]
        assert isinstance(channels, list)
        for channel in channels:
            if channel["policy"] is not None:
                found[name, channel["channel_name"]] = Policy(**channel["policy"])
    return found


def _once_each(nsqds: Sequence[Nsqd]) -> list[Nsqd]:
    """Remove duplicates: nsqds that answered at both a configured and an announced address."""
    kept: dict[tuple[str, int], Nsqd] = {}
    failed = []
    for nsqd in sorted(nsqds, key=lambda each: not each.lookupds):
        if nsqd.error:
            failed.append(nsqd)
        else:
            kept.setdefault((nsqd.node.broadcast_address, nsqd.node.tcp_port), nsqd)
    return [*kept.values(), *failed]


def _later(nsqds: Sequence[Nsqd], web: WebClient) -> list[Nsqd]:
    """Query the topics a second time, on the nsqds that answered."""

    def ask(number: int) -> Sequence[TopicStats]:
        nsqd = nsqds[number]
        summary = _summary(_stats(web, url_of(nsqd)), nsqd.node)
        missing = {each.name for each in nsqd.topics}.difference(each.name for each in summary.rows)
        if not missing or summary.is_complete:
            return summary.rows
        url, names = url_of(nsqd), sorted(missing)
        more = summaries.rows_of_nsqd(url, nsqd.node, names, web=web, clients=True)
        return [*summary.rows, *more]

    numbers = [number for number, nsqd in enumerate(nsqds) if not nsqd.error]
    again = ask_all(numbers, ask, web.terms.whole).values
    return [replace(nsqd, later=again.get(number)) for number, nsqd in enumerate(nsqds)]


def _with_attempts(nsqds: Sequence[Nsqd], web: WebClient) -> list[Nsqd]:
    """Add the messages with the most attempts, on nsqds that allow peeking. Other nsqds still count
    as having answered."""

    def ask(number: int) -> list[Attempted]:
        return look_messages.attempts(nsqds[number].topics, url_of(nsqds[number]), web)

    numbers = [number for number, nsqd in enumerate(nsqds) if not nsqd.error]
    found = ask_all(numbers, ask, 2 * web.terms.whole).values
    return [replace(nsqd, attempted=found.get(number, ())) for number, nsqd in enumerate(nsqds)]


def _with_logs(nsqds: Sequence[Nsqd], web: WebClient) -> list[Nsqd]:
    """Add the ids of the logs of some topics that several nsqds have. nsqds that do not support or
    allow this still count as having answered."""
    having = Counter(name for nsqd in nsqds for name in nsqd.names)
    shared = sorted(name for name, count in having.items() if count > 1)[:MAX_LOGS]

    def ask(number: int) -> dict[str, str]:
        url, own = url_of(nsqds[number]), {*nsqds[number].names}
        ids = {name: _log_id(web, url, name) for name in shared if name in own}
        return {name: log_id for name, log_id in ids.items() if log_id}

    numbers = [number for number, nsqd in enumerate(nsqds) if nsqd.door and nsqd.door.instance]
    found = ask_all(numbers, ask, 2 * web.terms.whole).values
    return [replace(nsqd, logs=found.get(number, {})) for number, nsqd in enumerate(nsqds)]


def _log_id(web: WebClient, url: Url, topic: str) -> str:
    page = url._replace(path="/topic/log", query=urlencode({"topic": topic}))
    answer = web.fetch(page, maximum=MAX_TEXT)
    return str(answers.read(answer.body, answer.headers, _LOG)["log_id"])


# --- one answer ---------------------------------------------------------------------------------


def _timed(web: WebClient, url: Url) -> tuple[Answer, Offset | None]:
    """Return a response, and the offset of its Date from this host's clock."""
    sent = time.time()
    answer = web.fetch(url, maximum=discovery.MAX_ANSWER)
    return answer, offset(answer.headers.get("date", ""), sent, time.time())


def offset(date: str, sent: float, received: float) -> Offset | None:
    """Return the offset of a clock that wrote this date between two readings of our clock; None if
    the date is invalid."""
    try:
        told = parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None
    middle = (sent + received) / 2
    return Offset(told + DATE_PRECISION - middle, DATE_PRECISION + (received - sent) / 2)
