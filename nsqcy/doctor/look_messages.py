"""Finds messages with many attempts, in channels in which attempts have failed.

Peeks at messages without their bodies, which changes nothing. Does not judge them.
"""

from collections.abc import Iterable
from urllib.parse import urlencode

from urllib3.util import Url

from nsqcy.cluster import answers
from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.cluster.web_client import WebClient
from nsqcy.doctor.facts import Attempted
from nsqcy.util import gojson

MAX_CHANNELS = 10  # maximum channels per nsqd: those with the most failed attempts
COUNT = 100  # messages per state; nsqd returns no more
STATES = ("in_flight", "deferred", "queued")
MAX_PAGE = 1 << 20  # bytes

_MESSAGE: gojson.Fields = {"id": (answers.line, ""), "attempts": (gojson.int64, 0)}
_PAGE: gojson.Fields = {"messages": (gojson.array(gojson.structure(_MESSAGE), gojson.EMPTY), [])}


def attempts(topics: Iterable[TopicStats], url: Url, web: WebClient) -> list[Attempted]:
    """Return each channel's message with the most attempts. Raises RequestError, including when
    this nsqd does not support or allow peeking."""
    return [
        max(messages, key=lambda each: each.attempts)
        for channel in _failing(topics)
        if (messages := [each for state in STATES for each in _peek(channel, state, url, web)])
    ]


def _failing(topics: Iterable[TopicStats]) -> list[ChannelStats]:
    channels = [each for topic in topics for each in topic.channels.values()]
    failing = [each for each in channels if _failures(each) and _holds_messages(each)]
    return sorted(failing, key=_failures, reverse=True)[:MAX_CHANNELS]


def _failures(channel: ChannelStats) -> int:
    return channel.figures.requeue_count + channel.figures.timeout_count


def _holds_messages(channel: ChannelStats) -> bool:
    figures = channel.figures
    return figures.depth + figures.in_flight_count + figures.deferred_count > 0


def _peek(channel: ChannelStats, state: str, url: Url, web: WebClient) -> list[Attempted]:
    topic, name = channel.topic, channel.name
    query = {"topic": topic, "channel": name, "state": state, "count": str(COUNT), "bytes": "0"}
    page = url._replace(path="/channel/peek", query=urlencode(query))
    answer = web.fetch(page, maximum=MAX_PAGE)
    found = answers.read(answer.body, answer.headers, _PAGE)["messages"]
    return [Attempted(topic, name, each["id"], each["attempts"]) for each in found]
