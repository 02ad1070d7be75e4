"""Summaries of nsqds: the busiest topics of each, and totals of all its topics.

With many topics, a summary is far smaller than the complete statistics. nsqcy's nsqd decides which
topics are the busiest: those with messages, then those with traffic, then those that are paused or
left over. All other topics are quiet and cannot have problems. For an nsqd that returns all its
topics anyway (NSQ's, or an older version), the totals are computed here.

Several nsqds may have a topic that is busy on only one of them. complete() requests the missing
rows, so that sums across nsqds are correct.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from urllib3.util import Url

from nsqcy.cluster import answers, problems, rates
from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.parallel import Outcome, ask_all
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import (
    MAX_ANSWER,
    ChannelFigures,
    ChannelStats,
    Leased,
    Names,
    TopicFigures,
    TopicStats,
    page_fields,
    readers_of,
    stats_url,
    topic_of,
    total,
)
from nsqcy.cluster.web_client import WebClient
from nsqcy.names import is_ephemeral
from nsqcy.util import gojson

BUSIEST = 1000  # number of topics to request from each nsqd
AT_ONCE = 500  # maximum names in a request, so that its URL stays far below 64 KiB

Key = TypeVar("Key")
Origins = Mapping[str, Sequence[Names]]
"""The dead-letter topics, each with the channels that use it."""


class Totals(NamedTuple):
    """Sums over all topics of one nsqd or several. topics, channels: numbers; a topic on several
    nsqds counts once for each. busy: number of topics that are not quiet. Unknown rates count as
    0."""

    topics: int = 0
    channels: int = 0
    busy: int = 0
    of_topics: TopicFigures = TopicFigures()
    of_channels: ChannelFigures = ChannelFigures()
    publish_rate: float = 0.0
    rates: Rates = Rates()

    @property
    def backlog(self) -> int:
        """Number of messages that wait in topics and channels."""
        return self.of_topics.depth + self.of_channels.depth


@dataclass(frozen=True)
class Summary:
    """The summary of one nsqd. rows: sorted by name. busy: names of the rows that are not quiet.
    names: of all topics, if they were requested, or if the nsqd returned all of them."""

    rows: Sequence[TopicStats]
    totals: Totals
    busy: Collection[str]
    origins: Origins
    names: Collection[str] | None = None

    @property
    def omitted(self) -> int:
        """Number of topics that have no row."""
        return max(0, self.totals.topics - len(self.rows))

    @property
    def is_complete(self) -> bool:
        """Whether the rows are all topics of the nsqd."""
        return not self.omitted

    @property
    def unseen(self) -> int:
        """Number of these topics that are not quiet."""
        return max(0, self.totals.busy - len(self.busy))


def is_busy(topic: TopicStats) -> bool:
    """Return whether a topic is not quiet, by the rules of nsqcy's nsqd."""
    channels = topic.channels.values()
    is_left_over = is_ephemeral(topic.name) and not topic.channels
    return bool(
        topic.figures.depth
        or topic.publish_rate
        or topic.figures.paused
        or is_left_over
        or any(map(_is_busy_channel, channels))
    )


def _is_busy_channel(channel: ChannelStats) -> bool:
    figures = channel.figures
    return bool(
        figures.depth
        or figures.in_flight_count
        or figures.deferred_count
        or figures.paused
        or any((channel.rates or Rates())[:-1])
        or (is_ephemeral(channel.name) and not figures.client_count)
    )


def totals_of(rows: Iterable[TopicStats]) -> Totals:
    """Return the totals of these topics."""
    topics = list(rows)
    channels = [each for topic in topics for each in topic.channels.values()]
    known = [each.rates for each in channels if each.rates is not None]
    return Totals(
        len(topics),
        len(channels),
        sum(map(is_busy, topics)),
        total([TopicFigures(), *(each.figures for each in topics)]),
        total([ChannelFigures(), *(each.figures for each in channels)]),
        sum(each.publish_rate or 0.0 for each in topics),
        rates.total([Rates(), *known]) or Rates(),
    )


def complete_summary(rows: Sequence[TopicStats]) -> Summary:
    """Return the summary of an nsqd that has exactly these topics."""
    return Summary(
        rows,
        totals_of(rows),
        frozenset(each.name for each in rows if is_busy(each)),
        problems.dead_letter_topics(rows),
        [each.name for each in rows],
    )


def sum_totals(found: Iterable[Totals]) -> Totals:
    parts = [Totals(), *found]
    return Totals(
        sum(each.topics for each in parts),
        sum(each.channels for each in parts),
        sum(each.busy for each in parts),
        total([each.of_topics for each in parts]),
        total([each.of_channels for each in parts]),
        sum(each.publish_rate for each in parts),
        rates.total(each.rates for each in parts) or Rates(),
    )


def sum_origins(found: Iterable[Origins]) -> dict[str, list[Names]]:
    by_topic: dict[str, set[Names]] = {}
    for origins in found:
        for topic, channels in origins.items():
            by_topic.setdefault(topic, set()).update(channels)
    return {topic: sorted(channels) for topic, channels in by_topic.items()}


# --- answers ------------------------------------------------------------------------------------

_COUNT = (gojson.int64, 0)
_RATES = ("receive_rate", "finish_rate", "requeue_rate", "timeout_rate")
_OF_TOPICS: gojson.Fields = {**readers_of(TopicFigures), "publish_rate": (gojson.number, 0.0)}
_OF_CHANNELS: gojson.Fields = {
    **readers_of(ChannelFigures),
    **dict.fromkeys(_RATES, (gojson.number, 0.0)),
}
_TOTALS: gojson.Fields = {
    "topic_count": _COUNT,
    "channel_count": _COUNT,
    "busy_topic_count": _COUNT,
    "topics": (gojson.structure(_OF_TOPICS), {}),
    "channels": (gojson.structure(_OF_CHANNELS), {}),
}
_ORIGIN: gojson.Fields = dict.fromkeys(
    ("topic_name", "channel_name", "dead_letter_topic"), (answers.name_or_none, "")
)
_MORE: gojson.Fields = {
    "totals": (gojson.structure(_TOTALS), None),
    "topic_names": (gojson.array(answers.line, ""), None),
    "dead_letter_channels": (gojson.array(gojson.structure(_ORIGIN), gojson.EMPTY), []),
}
_FIELDS = {clients: {**page_fields(clients=clients), **_MORE} for clients in (False, True)}


def parse_summary(
    body: bytes,
    headers: Mapping[str, str],
    node: str = "",
    hostname: str = "",
    *,
    clients: bool = False,
) -> Summary:
    """Return the summary in a response to a summary_url(). Names in `headers` are lower case.
    Raises RequestError."""
    found = answers.read(body, headers, _FIELDS[clients], gojson.decode_large)
    rows = [topic_of(each, node, hostname) for each in found["topics"]]
    if found["totals"] is None:
        return complete_summary(rows)
    totals = _totals(found["totals"])
    busy = frozenset(each.name for each in rows[: totals.busy])  # the busiest come first
    rows.sort(key=lambda each: each.name)
    names = found["topic_names"]
    if names is None and len(rows) >= totals.topics:
        names = [each.name for each in rows]
    return Summary(rows, totals, busy, _origins(found["dead_letter_channels"]), names)


def _totals(values: Mapping[str, Any]) -> Totals:
    topics, channels = dict(values["topics"]), dict(values["channels"])
    published = topics.pop("publish_rate", 0.0)
    speeds = [channels.pop(name, 0.0) for name in _RATES]
    return Totals(
        values["topic_count"],
        values["channel_count"],
        values["busy_topic_count"],
        TopicFigures(**topics),
        ChannelFigures(**channels),
        published,
        Rates(*speeds),
    )


def _origins(values: Iterable[Mapping[str, str]]) -> Origins:
    return sum_origins(
        {each["dead_letter_topic"]: [(each["topic_name"], each["channel_name"])]}
        for each in values
        if each["dead_letter_topic"]
    )


# --- queries ------------------------------------------------------------------------------------


def of_nsqd(
    url: Url,
    node: Producer,
    *,
    web: WebClient,
    clients: bool = False,
    names: bool = False,
    count: int = BUSIEST,
) -> Summary:
    """Query the summary of the nsqd at this URL, with up to `count` topics. Raises RequestError."""
    answer = web.fetch(
        summary_url(url, clients=clients, names=names, count=count), maximum=MAX_ANSWER
    )
    found = parse_summary(
        answer.body, answer.headers, node.http_address, node.hostname, clients=clients
    )
    return replace(found, rows=Leased(found.rows, answer.lease))


def summary_url(
    url: Url, *, clients: bool = False, names: bool = False, count: int = BUSIEST
) -> Url:
    more = {"busiest": str(count)} | ({"names": "true"} if names else {})
    found = stats_url(url, "", clients=clients)
    return found._replace(query=f"{found.query}&{urlencode(more)}")


def rows_of_nsqd(
    url: Url, node: Producer, topics: Sequence[str], *, web: WebClient, clients: bool = False
) -> list[TopicStats]:
    """Query the statistics of these topics. Raises RequestError."""
    found: list[TopicStats] = []
    for begin in range(0, len(topics), AT_ONCE):
        given = urlencode({"topics": ",".join(topics[begin : begin + AT_ONCE])}, safe=",")
        some = stats_url(url, "", clients=clients)
        answer = web.fetch(some._replace(query=f"{some.query}&{given}"), maximum=MAX_ANSWER)
        found += parse_summary(
            answer.body, answer.headers, node.http_address, node.hostname, clients=clients
        ).rows
    return found


def complete(
    found: Mapping[Key, Summary],
    names: Iterable[str],
    ask: Callable[[Key, Sequence[str]], list[TopicStats]],
    whole: float,
    known: Mapping[Key, Collection[str]] | None = None,
) -> tuple[dict[Key, Summary], Outcome[Key, list[TopicStats]]]:
    """Return the summaries with the rows of the topics with these names, which `ask` queries. Also
    return the outcome of the queries. known: the names of the topics of nsqds, if their summaries
    do not contain them."""
    wanted = set(names)
    missing = {}
    for key, summary in found.items():
        lacking = wanted.difference(row.name for row in summary.rows)
        has = summary.names if summary.names is not None else (known or {}).get(key)
        if has is not None:
            lacking.intersection_update(has)
        if lacking and not summary.is_complete:
            missing[key] = sorted(lacking)
    outcome = ask_all(list(missing), lambda key: ask(key, missing[key]), whole)
    completed = dict(found)
    for key, more in outcome.values.items():
        rows = sorted(chain(found[key].rows, more), key=lambda each: each.name)
        completed[key] = replace(found[key], rows=rows)
    return completed, outcome
