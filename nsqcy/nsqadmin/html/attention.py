"""Signs that something needs attention: messages without a consumer, errors, dead letters.

Pure. A sign has a mark and a background, so that it does not depend on colour alone.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.formatting import rate

TITLE = "Attention"  # column heading
_ERRORS = {"requeued": "requeued", "timed_out": "timed out"}  # metric -> verb for it in a sign
_MIN_RATE = 0.01  # messages per second; lower rates show no sign


class LatestValues(Protocol):
    """Access to the latest values of the history."""

    def latest(self, subject: Subject, metric: str) -> float | None: ...


class Sign(NamedTuple):
    text: str
    help: str


_PAUSED = Sign("paused", "No messages are delivered until it is unpaused")
_NO_CONSUMER = Sign("no consumer", "Messages are waiting, but no consumer is connected")
_NO_CHANNEL = Sign("no channel", "Messages are waiting, but the topic has no channel")
_DEAD = Sign("dead letters", "Messages that exceeded their maximum attempts are waiting")


def of_topic(
    stats: TopicStats, rates: LatestValues, *, has_dead_letters: bool = False
) -> list[Sign]:
    """Return the signs for a topic and all its channels. has_dead_letters: whether channels send
    their dead letters here; then missing consumers are expected."""
    channels = list(stats.channels.values())
    found = [_PAUSED] if stats.figures.paused else []
    if has_dead_letters:
        waiting = stats.figures.depth + sum(each.figures.depth for each in channels)
        return [*found, _DEAD] if waiting else found
    if stats.figures.depth and not channels:
        found.append(_NO_CHANNEL)
    found += _of_channels("paused: {}", "No delivery", filter(_is_paused, channels))
    found += _of_channels("no consumer: {}", "No consumer", filter(_is_unread, channels))
    return found + _errors(Subject(topic=stats.name), rates)


def of_channel(stats: ChannelStats, rates: LatestValues) -> list[Sign]:
    """Return the signs for a channel across all nodes."""
    return of_queue(stats) + _errors(Subject(topic=stats.topic, channel=stats.name), rates)


def of_queue(stats: ChannelStats) -> list[Sign]:
    """Return the signs for a channel on one node or all: consumers may be missing on just this
    node."""
    found = [_PAUSED] if stats.figures.paused else []
    return [*found, _NO_CONSUMER] if _is_unread(stats) else found


def _of_channels(text: str, help: str, channels: Iterable[ChannelStats]) -> list[Sign]:
    """Return one sign for all of them, with the channel's name or, if there are several, their
    number."""
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
            found.append(Sign(f"{verb} {rate(value)}", f"Messages {verb} per second, currently"))
    return found
