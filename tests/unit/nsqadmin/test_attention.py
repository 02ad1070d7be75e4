"""Hints about topics and channels that need attention."""

import pytest

from nsqcy.cluster.stats import ChannelFigures, ChannelStats, TopicFigures, TopicStats
from nsqcy.nsqadmin.history.store import METRICS, History, Subject
from nsqcy.nsqadmin.html import attention
from nsqcy.nsqadmin.html.plots import Plots

NO_PAST = Plots(None, 0.0, 0.0)
WAITING = ChannelFigures(depth=3)


def channel(name: str, figures: ChannelFigures) -> ChannelStats:
    return ChannelStats("t", name, "*", "", figures)


def topic(figures: TopicFigures | None = None, **channels: ChannelFigures) -> TopicStats:
    found = {name: channel(name, each) for name, each in channels.items()}
    return TopicStats("t", "*", "", figures or TopicFigures(), found)


def failing(requeued: float, timed_out: float) -> Plots:
    """Return a history in which the topic's messages fail at these rates."""
    rates = {"requeued": requeued, "timed_out": timed_out}
    history = History(10.0, 3600.0)
    history.add(0.0, {Subject(topic="t"): [rates.get(name, 0.0) for name in METRICS]})
    return Plots(history, 1.0, 0.0)


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        (topic(), []),
        (topic(TopicFigures(depth=1)), ["no channel"]),
        (topic(TopicFigures(depth=1, paused=True), c=ChannelFigures()), ["paused"]),
        (topic(c=WAITING), ["no consumer: c"]),
        (topic(a=WAITING, b=WAITING), ["no consumer: 2 channels"]),
        (topic(c=WAITING._replace(client_count=1)), []),
        (topic(c=WAITING._replace(paused=True)), ["paused: c"]),
    ],
)
def test_topics(stats: TopicStats, said: list[str]) -> None:
    assert [each.text for each in attention.of_topic(stats, NO_PAST)] == said


def test_topics_of_dead_letters() -> None:
    """The topic needs no consumers; the hint only depends on whether it holds messages."""

    def said(stats: TopicStats) -> list[str]:
        return [each.text for each in attention.of_topic(stats, NO_PAST, has_dead_letters=True)]

    assert said(topic(TopicFigures(depth=1))) == said(topic(look=WAITING)) == ["dead letters"]
    assert said(topic(look=ChannelFigures())) == []


def test_channels() -> None:
    def said(figures: ChannelFigures) -> list[str]:
        return [each.text for each in attention.of_channel(channel("c", figures), NO_PAST)]

    assert said(ChannelFigures()) == []
    assert said(WAITING) == ["no consumer"]
    assert said(WAITING._replace(paused=True)) == ["paused"]


def test_errors() -> None:
    def said(requeued: float, timed_out: float) -> list[str]:
        return [each.text for each in attention.of_topic(topic(), failing(requeued, timed_out))]

    assert said(0.0, 0.004) == []
    assert said(12.5, 0.1) == ["requeued 12.5/s", "timed out 0.1/s"]
