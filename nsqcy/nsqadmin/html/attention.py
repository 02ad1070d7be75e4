"""What needs attention, in words: messages without a consumer, errors, dead letters.

Pure. A sign has a mark and a background of its own: its colour alone says nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.formatting import rate

TITLE = "Attention"  # heading of their column
_ERRORS = {"requeued": "requeued", "timed_out": "timed out"}  # what metrics are called
_MIN_RATE = 0.01  # a second: below, it is shown as none


class LatestValues(Protocol):
    """The latest values of the history."""

    def latest(self, subject: Subject, metric: str) -> float | None: ...


class Sign(NamedTuple):
    text: str
    help: str


_PAUSED = Sign("paused", "Nothing is delivered until somebody unpauses it")
_NO_CONSUMER = Sign("no consumer", "Messages wait, and nobody is connected")
_NO_CHANNEL = Sign("no channel", "Messages wait, and there is no channel that would get them")
_DEAD = Sign("dead letters", "Messages that have failed too often wait location: see its messages")


def of_topic(
    stats: TopicStats, rates: LatestValues, *, has_dead_letters: bool = False
) -> list[Sign]:
    """Of a topic and all of its channels. has_dead_letters: whether channels send theirs here; it
    is then no matter that nobody reads them."""
    channels = list(stats.channels.values())
    found = [_PAUSED] if stats.figures.paused else []
    if has_dead_letters:
        waiting = stats.figures.depth + sum(each.figures.depth for each in channels)
        return [*found, _DEAD] if waiting else found
    if stats.figures.depth and not channels:
        found.append(_NO_CHANNEL)
    found += _of_channels("paused: {}", "Nothing is delivered", filter(_is_paused, channels))
    found += _of_channels("no consumer: {}", "Nobody reads", filter(_is_unread, channels))
    return found + _errors(Subject(topic=stats.name), rates)


def of_channel(stats: ChannelStats, rates: LatestValues) -> list[Sign]:
    """Of a channel, over all nodes."""
    return of_queue(stats) + _errors(Subject(topic=stats.topic, channel=stats.name), rates)


def of_queue(stats: ChannelStats) -> list[Sign]:
    """Of a channel, also of that on one node: a consumer may have missed just this one."""
    found = [_PAUSED] if stats.figures.paused else []
    return [*found, _NO_CONSUMER] if _is_unread(stats) else found


def _of_channels(text: str, help: str, channels: Iterable[ChannelStats]) -> list[Sign]:
    """One sign for all of them; of several their number."""
    names = [each.name for each in channels]
    if not names:
        return []
    shown = names[0] if len(names) == 1 else f"{len(names)} channels"
    return [Sign(text.format(shown), f"{help}: {', '.join(names)}")]


def _is_paused(stats: ChannelStats) -> bool:
    return stats.figures.paused


def _is_unread(stats: ChannelStats) -> bool:
    return stats.figures.depth > 0 and not stats.figures.client_count and not stats.figures.paused


def _errors(subject: Subject, rates: LatestValues) -> list[Sign]:
    found = []
    for metric, verb in _ERRORS.items():
        value = rates.latest(subject, metric) or 0.0
        if value >= _MIN_RATE:
            found.append(Sign(f"{verb} {rate(value)}", f"Messages {verb} a second, just now"))
    return found
