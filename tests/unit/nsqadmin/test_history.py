"""The history of topics, channels and nodes: rates, rings, and the kept values, with a simulated
clock."""

import math
from dataclasses import replace
from typing import Any

import pytest

from nsqcy.cluster.latency import Latency, Percentile
from nsqcy.cluster.rates import Rates as Speeds
from nsqcy.cluster.stats import ChannelFigures, ChannelStats, TopicFigures, TopicStats
from nsqcy.cluster.summaries import Summary, complete_summary, totals_of
from nsqcy.config.durations import SECOND
from nsqcy.nsqadmin.history.rates import Rates, reading
from nsqcy.nsqadmin.history.sampler import next_due
from nsqcy.nsqadmin.history.store import (
    CLUSTER,
    METRICS,
    UNKNOWN,
    History,
    Ring,
    Series,
    Subject,
    aggregate,
)

TOPIC, CHANNEL, NODE = Subject(topic="t"), Subject(topic="t", channel="c"), Subject(node="a")


def topic(messages: int, /, depth: int = 0, *channels: ChannelStats, q99: float = 0) -> TopicStats:
    figures = TopicFigures(depth=depth, message_count=messages)
    latency = Latency(1, (Percentile(0.99, q99, q99, q99, 1),)) if q99 else None
    named = {each.name: each for each in channels}
    return TopicStats("t", "a", "h", figures, named, latency=latency)


def channel(name: str = "c", **figures: Any) -> ChannelStats:
    return ChannelStats("t", name, "a", "h", ChannelFigures(**figures))


def row(**figures: float) -> list[float]:
    return [figures.get(name, 0.0) for name in ("received", *METRICS[1:])]


def shown(rates: Rates, at: float, **nodes: TopicStats) -> dict[Subject, dict[str, float]]:
    """Return the known values after one tick; unknown ones are left out."""
    rows = rates.rows(
        {node: reading(at, complete_summary([stats])) for node, stats in nodes.items()}
    )
    return {
        subject: {name: each for name, each in zip(METRICS, row, strict=True) if each == each}
        for subject, row in rows.items()
    }


# -- rates


def test_all_nodes_together() -> None:
    rates = Rates(60)
    shown(rates, 10, a=topic(100, 3), b=topic(50, 4))
    found = shown(rates, 20, a=topic(200, 3), b=topic(70, 4))
    assert (found[CLUSTER]["in"], found[CLUSTER]["depth"]) == (12, 7)
    assert found[CLUSTER] == found[TOPIC]


def test_nodes_that_the_history_knows() -> None:
    kept = History(10, 3600)
    kept.add(5, {NODE: [0.0] * len(METRICS), CLUSTER: [0.0] * len(METRICS)})
    kept.add(45, {CLUSTER: [0.0] * len(METRICS)})
    assert kept.nodes(65) == {"a": 65}


def test_rates_are_what_counters_grow_by() -> None:
    rates = Rates(60)
    before = channel(message_count=100, depth=50, in_flight_count=5, requeue_count=1)
    first = shown(rates, 10, a=topic(200, 7, before))
    assert first[TOPIC] == {"depth": 57, "in_flight": 5, "deferred": 0}
    now = channel(message_count=140, depth=30, in_flight_count=10, requeue_count=3, timeout_count=5)
    found = shown(rates, 20, a=topic(250, 7, now))
    # 40 messages arrived, and the number in the channel fell by 15, so 55 left.
    assert found[CHANNEL]["in"] == 4
    assert found[CHANNEL]["out"] == 5.5
    assert (found[CHANNEL]["requeued"], found[CHANNEL]["timed_out"]) == (0.2, 0.5)
    assert found[TOPIC] == found[NODE]
    assert (found[TOPIC]["in"], found[TOPIC]["out"], found[TOPIC]["depth"]) == (5, 5.5, 37)


def test_what_is_new_has_counted_from_nothing() -> None:
    rates = Rates(60)
    shown(rates, 10, a=topic(100))
    found = shown(rates, 20, a=topic(100, 0, channel(message_count=50, depth=50)))
    assert (found[CHANNEL]["in"], found[CHANNEL]["out"]) == (5, 0)


def excerpt(rows: list[TopicStats], others: list[TopicStats]) -> Summary:
    """Return a summary that omits some topics."""
    known = complete_summary(rows)
    return replace(known, totals=totals_of([*rows, *others]), names=None)


def test_topics_that_a_summary_omits_count_in_the_sums() -> None:
    speeds = Speeds(received=3, finished=2, requeued=1)
    other = topic(500, 9, channel(depth=1, in_flight_count=2)._replace(rates=speeds))
    other = other._replace(name="other", publish_rate=3.0)
    rates = Rates(60)
    rates.rows({"a": reading(10, excerpt([topic(100, 4)], [other]))})
    found = rates.rows({"a": reading(20, excerpt([topic(200, 4)], [other]))})
    assert found[TOPIC][:2] == [10, 0]
    values = dict(zip(METRICS, found[CLUSTER], strict=True))
    assert values.pop("latency") != 0
    assert found[CLUSTER][:-1] == found[NODE][:-1]
    assert values == {
        "in": 13,
        "out": 2,
        "requeued": 1,
        "timed_out": 0,
        "depth": 14,
        "in_flight": 2,
        "deferred": 0,
    }


def test_a_topic_that_an_earlier_summary_omitted_has_the_reported_rates() -> None:
    speeds = Speeds(received=3, finished=2)
    now = topic(1_000_000, 0, channel(message_count=1_000_000)._replace(rates=speeds))
    now, other = now._replace(publish_rate=3.0), topic(5)._replace(name="other")
    rates = Rates(60)
    rates.rows({"a": reading(10, excerpt([other], [now]))})
    found = rates.rows({"a": reading(20, excerpt([now], [other]))})
    assert found[TOPIC][:2] == found[CHANNEL][:2] == found[CLUSTER][:2] == [3, 2]
    unknown = topic(2_000_000)._replace(name="unknown")
    found = rates.rows({"a": reading(30, excerpt([unknown], [other]))})
    assert found[Subject(topic="unknown")][0] == 0


def test_an_nsqd_that_was_started_again_has_no_rate_at_first() -> None:
    rates = Rates(60)
    shown(rates, 10, a=topic(100), b=topic(10))
    found = shown(rates, 20, a=topic(3), b=topic(30))
    assert found[TOPIC]["in"] == 2  # the rate of the other node only
    assert "in" not in found[NODE]
    assert shown(rates, 30, a=topic(13), b=topic(30))[TOPIC]["in"] == 1


def test_a_channel_that_was_made_again_hides_nothing_else() -> None:
    rates = Rates(60)
    shown(rates, 10, a=topic(100, 0, channel(message_count=90), channel("d", message_count=10)))
    found = shown(
        rates, 20, a=topic(110, 0, channel(message_count=5), channel("d", message_count=30))
    )
    assert "in" not in found[CHANNEL]
    assert found[Subject(topic="t", channel="d")]["in"] == 2
    assert (found[TOPIC]["in"], found[TOPIC]["out"]) == (1, 2)


def test_a_mean_over_too_long_says_nothing() -> None:
    rates = Rates(35)
    shown(rates, 10, a=topic(100))
    shown(rates, 20, b=topic(1))
    assert shown(rates, 40, a=topic(130), b=topic(1))[NODE]["in"] == 1  # 30 s are one or two steps
    shown(rates, 90, b=topic(1))
    assert "in" not in shown(rates, 100, a=topic(200), b=topic(1))[NODE]


def test_of_latencies_the_slowest_counts() -> None:
    found = shown(Rates(60), 10, a=topic(1, q99=2 * SECOND), b=topic(1, q99=5 * SECOND), c=topic(1))
    assert found[TOPIC]["latency"] == 5
    assert found[NODE]["latency"] == 2
    assert "latency" not in found[Subject(node="c")]


# -- rings


def known(ring: Ring, begin: int, end: int) -> list[float | None]:
    return [None if each != each else each for each in ring.read(0, begin, end)]


def test_a_ring_keeps_its_last_slots() -> None:
    ring = Ring(4)
    for tick in range(3, 9):
        ring.write(tick, [float(tick)] * len(METRICS))
    assert known(ring, 3, 10) == [None, None, 5, 6, 7, 8, None]
    assert known(ring, 6, 8) == [6, 7]
    assert known(ring, 20, 22) == [None, None]
    assert known(Ring(4), 0, 2) == [None, None]


@pytest.mark.parametrize("missed", [1, 3, 4, 5, 100])
def test_what_was_left_out_is_a_gap(missed: int) -> None:
    ring = Ring(4)
    for tick in (*range(4), 4 + missed):
        ring.write(tick, [float(tick)] * len(METRICS))
    wanted = [tick if tick < 4 else None for tick in range(missed + 1, missed + 4)]
    assert known(ring, missed + 1, missed + 5) == [*wanted, missed + 4]


def test_several_steps_are_one() -> None:
    series = Series(10, 10, 3)
    for tick, value in ((3, 1.0), (5, 5.0), (6, 0.0)):
        series.write(tick, [value] * len(METRICS))
    assert [*series.coarse("in", 1, 2)] == [3]  # the mean of the known values
    assert [*series.coarse("depth", 1, 2)] == [5]
    assert math.isnan(aggregate([UNKNOWN, UNKNOWN], True))


# -- what is kept


def history(**options: Any) -> History:
    return History(**({"step": 10.0, "length": 7200.0} | options))


def test_the_last_quarter_of_an_hour() -> None:
    kept = history()
    for tick in range(100):
        kept.add(1000 + 10 * tick, {TOPIC: [float(tick)] * len(METRICS)})
    window = kept.read(TOPIC, 1994, 900)
    assert window is not None
    assert (window.start, window.step) == (1095, 10)
    assert [*window.columns["in"]] == [float(each) for each in range(10, 100)]
    folded = kept.read_one(TOPIC, "in", 1994, 900, 30)
    assert folded is not None
    assert [*folded[-2:]] == [95, 98]
    assert kept.read(NODE, 1994, 900) is None


def test_two_hours_are_minutes() -> None:
    kept = history()
    for tick in range(361):
        kept.add(10.0 * tick, {TOPIC: [60.0] * len(METRICS)})
    window = kept.read(TOPIC, 3600, 7200)
    assert window is not None
    assert (window.step, len(window.columns["in"])) == (60, 120)
    values = [each for each in window.columns["in"] if each == each]
    assert values == [60] * 60
    assert window.start == pytest.approx(3595 - 7200)


def test_a_sampler_that_stops_leaves_a_gap() -> None:
    kept = history()
    kept.add(10, {TOPIC: [1.0] * len(METRICS)})
    values = kept.read_one(TOPIC, "in", 40, 60, 0)
    assert values is not None
    assert [each == each for each in values] == [False, False, False, True, False, False]
    kept.add(41, {NODE: [1.0] * len(METRICS)})  # the topic has been deleted
    assert kept.read_one(TOPIC, "in", 41, 20, 0) is not None


def test_a_step_is_sampled_once() -> None:
    kept = history()
    for now, value in ((100, 1.0), (104, 2.0), (99, 3.0)):
        kept.add(now, {TOPIC: [value] * len(METRICS)})
    values = kept.read_one(TOPIC, "in", 104, 10, 0)
    assert values is not None and [*values] == [1]


def busy(name: str, rate: float) -> dict[Subject, list[float]]:
    return {Subject(topic=name): [rate, *[0.0] * (len(METRICS) - 1)]}


def test_the_busiest_are_kept() -> None:
    kept = history(maximum=3)
    node = {NODE: [0.0] * len(METRICS)}
    kept.add(0, busy("idle", 0) | busy("calm", 1) | busy("busy", 50) | node)

    def names() -> set[str]:
        every = ("idle", "calm", "busy", "new")
        return {each for each in every if kept.read(Subject(topic=each), 0, 60)}

    assert names() == {"calm", "busy"}
    assert kept.read(NODE, 0, 60)
    for tick in range(1, 7):  # a much busier topic replaces a quiet one
        kept.add(10 * tick, busy("calm", 1) | busy("busy", 50) | busy("new", 20) | node)
    assert names() == {"busy", "new"}
    for tick in range(7, 14):  # a slightly busier one does not
        kept.add(10 * tick, busy("calm", 25) | busy("busy", 50) | busy("new", 20) | node)
    assert names() == {"busy", "new"}
    assert kept.series == 3


def test_what_is_older_than_all_that_is_kept_is_forgotten() -> None:
    kept = history(length=600.0)
    kept.add(0, busy("old", 1))
    kept.add(500, busy("new", 1))
    assert kept.series == 2
    kept.add(700, busy("new", 1))
    assert kept.series == 1


def test_the_memory_of_a_series_is_what_it_says() -> None:
    kept = History(10, 12 * 3600)
    assert kept.bytes_each == (360 + 720) * 8 * 4


def test_a_late_sample_skips_a_step() -> None:
    assert next_due(100, 100.2, 10) == 110
    assert next_due(100, 109.9, 10) == 110
    assert next_due(100, 125, 10) == 130
