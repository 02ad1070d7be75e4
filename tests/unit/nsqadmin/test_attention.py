"""Hints about topics and channels that need attention."""

import pytest

from nsqcy.cluster.problems import Severity
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import ChannelFigures, ChannelStats, TopicFigures, TopicStats
from nsqcy.nsqadmin.history.store import METRICS, History, Subject
from nsqcy.nsqadmin.html import attention
from nsqcy.nsqadmin.html.formatting import amount
from nsqcy.nsqadmin.html.plots import Plots

NO_PAST = Plots(None, 0.0, 0.0)
WAITING = ChannelFigures(depth=3)


def channel(name: str, figures: ChannelFigures) -> ChannelStats:
    return ChannelStats("t", name, "*", "", figures)


def topic(figures: TopicFigures | None = None, **channels: ChannelFigures) -> TopicStats:
    found = {name: channel(name, each) for name, each in channels.items()}
    return TopicStats("t", "*", "", figures or TopicFigures(), found)


def past(subject: Subject, **rates: float) -> Plots:
    """Return a history with these latest rates."""
    history = History(10.0, 3600.0)
    history.add(0.0, {subject: [rates.get(name, 0.0) for name in METRICS]})
    return Plots(history, 1.0, 0.0)


def failing(requeued: float, timed_out: float) -> Plots:
    """Return a history in which the topic's messages fail at these rates."""
    return past(Subject(topic="t"), requeued=requeued, timed_out=timed_out)


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
    """The topic needs no consumers; the hint depends only on whether the topic holds messages."""

    def said(stats: TopicStats) -> list[str]:
        return [each.text for each in attention.of_topic(stats, NO_PAST, [("t", "c")])]

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


def test_signs_of_rare_errors_stay_for_a_minute() -> None:
    history, subject = History(10.0, 3600.0), Subject(topic="t")

    def said_at(seconds: float, requeued: float) -> list[str]:
        values = {"requeued": requeued}
        history.add(seconds, {subject: [values.get(name, 0.0) for name in METRICS]})
        past = Plots(history, seconds + 1.0, 0.0)
        return [each.text for each in attention.of_topic(topic(), past)]

    assert said_at(0.0, 3.0) == ["requeued 3/s"]
    assert said_at(10.0, 0.0) == ["requeued 1.5/s"]
    for number in range(2, 6):
        assert said_at(10.0 * number, 0.0) == [f"requeued {amount(3 / (number + 1))}/s"]
    assert said_at(60.0, 0.0) == []


BUSY = ChannelFigures(depth=5000, client_count=2)
GROWING = Rates(received=100.0, finished=40.0, growth=60.0)


def slow(name: str = "c", saturated: int = 0) -> ChannelStats:
    return channel(name, BUSY)._replace(rates=GROWING, saturated=saturated)


def test_a_channel_that_falls_behind() -> None:
    (sign,) = attention.of_channel(slow(saturated=2), NO_PAST)
    assert sign.text == "falling behind by 60/s"
    assert sign.path == ("topics", "t", "c") and not sign.is_error
    assert sign.help.startswith("Channel t/c is falling behind by 60/s: it receives 100/s")
    assert sign.help.endswith(
        "as many messages in flight as they accept: add consumers, or raise their max_in_flight"
    )


def test_channels_that_fall_behind() -> None:
    stats = topic()._replace(channels={"c": slow()})
    (one,) = attention.of_topic(stats, NO_PAST)
    assert (one.text, one.path) == ("falling behind by 60/s: c", ("topics", "t", "c"))
    stats = topic()._replace(channels={"c": slow(), "d": slow("d")})
    (both,) = attention.of_topic(stats, NO_PAST)
    assert (both.text, both.path) == ("falling behind: 2 channels", ("topics", "t"))
    assert both.help == "Falling behind: c, d"


def test_channels_whose_consumers_miss_an_nsqd() -> None:
    def missed(name: str) -> ChannelStats:
        nodes = channel(name, ChannelFigures(client_count=1)), channel(name, WAITING)
        whole = channel(name, ChannelFigures(depth=WAITING.depth, client_count=1))
        return whole._replace(nodes=nodes)

    (one,) = attention.of_topic(topic()._replace(channels={"c": missed("c")}), NO_PAST)
    assert one.text == "no consumer on 1 nsqd: c"
    channels = {"c": missed("c"), "d": missed("d")}
    (both,) = attention.of_topic(topic()._replace(channels=channels), NO_PAST)
    assert both.text == "no consumer on some nsqds: 2 channels"


def test_rates_that_nsqd_does_not_report_come_from_the_history() -> None:
    grown = {"in": 100.0, "out": 40.0}
    here = past(Subject(topic="t", channel="c"), **grown)
    (sign,) = attention.of_channel(channel("c", BUSY), here)
    assert sign.text == "falling behind by 60/s"
    (sign,) = attention.of_channel(channel("c", WAITING), here)
    assert (sign.text, sign.severity) == ("no consumer", Severity.ERROR)


def test_rates_of_errors_are_shown_once() -> None:
    failed = Rates(finished=1.0, requeued=2.0)
    stats = channel("c", ChannelFigures(client_count=1))._replace(rates=failed)
    here = past(Subject(topic="t", channel="c"), requeued=2.0)
    assert [each.text for each in attention.of_channel(stats, here)] == ["failing 2.0/s"]
    whole = topic()._replace(channels={"c": stats})
    assert [each.text for each in attention.of_topic(whole, failing(2.0, 0.0))] == [
        "failing 2.0/s: c"
    ]


def test_dead_letters_that_become_more_are_an_error() -> None:
    def severity(rates: Plots) -> Severity:
        stats = topic(TopicFigures(depth=1))
        (sign,) = attention.of_topic(stats, rates, [("t", "c")])
        return sign.severity

    assert severity(NO_PAST) == Severity.WARNING
    assert severity(past(Subject(topic="t"), **{"in": 0.5})) == Severity.ERROR


def test_pausing_is_a_note_until_messages_wait() -> None:
    def severity(depth: int) -> Severity:
        figures = ChannelFigures(depth=depth, paused=True)
        (sign,) = attention.of_queue(channel("c", figures))
        return sign.severity

    assert (severity(0), severity(1)) == (Severity.NOTE, Severity.WARNING)
    (sign,) = attention.of_topic(topic(TopicFigures(paused=True)), NO_PAST)
    assert (sign.text, sign.severity) == ("paused", Severity.NOTE)


def test_one_error_outweighs_any_number_of_warnings() -> None:
    warning = attention.Sign("", "")
    error = warning._replace(severity=Severity.ERROR)
    assert attention.weight([error]) > attention.weight([warning] * 9) > attention.weight([])
