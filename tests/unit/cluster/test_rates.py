"""Rates from two samples of counters."""

import json
from typing import Any

import pytest

from nsqcy.cluster import rates
from nsqcy.cluster.answers import PLAIN
from nsqcy.cluster.rates import Counts, Rates, drain_seconds
from nsqcy.cluster.stats import (
    ChannelFigures,
    ChannelStats,
    TopicFigures,
    TopicStats,
    parse_stats,
    sum_topics,
)
from nsqcy.cluster.two_samples import with_rates


def test_rates_are_means_over_the_time_between_the_samples() -> None:
    before = Counts(received=100, finished=50, requeued=3, timed_out=1, backlog=40)
    after = Counts(received=200, finished=130, requeued=5, timed_out=1, backlog=60)
    assert rates.between(before, after, 10.0) == Rates(10.0, 8.0, 0.2, 0.0, 2.0)


def test_the_backlog_may_shrink_but_a_counter_that_decreased_was_reset() -> None:
    before = Counts(received=100, finished=50, backlog=40)
    drained = rates.between(before, before._replace(finished=90, backlog=0), 10.0)
    assert drained is not None and drained.growth == -4.0
    assert rates.between(before, Counts(received=7, finished=60), 10.0) is None
    assert rates.between(before, before, 0.0) is None


def test_a_single_counter() -> None:
    assert rates.per_second(10, 30, 5.0) == 4.0
    assert rates.per_second(10, 9, 5.0) is None
    assert rates.per_second(10, 30, 0.0) is None


def test_a_sum_is_unknown_if_a_part_is() -> None:
    assert rates.total([Rates(1, 2, 3, 4, -5), Rates(1, 1, 1, 1, 1)]) == Rates(2, 3, 4, 5, -4)
    assert rates.total([Rates(), None]) is None
    assert rates.total([]) is None


@pytest.mark.parametrize(
    ("depth", "growth", "seconds"),
    [(0, 5.0, 0.0), (100, -20.0, 5.0), (100, 0.0, None), (100, 3.0, None)],
)
def test_time_until_a_queue_is_empty(depth: int, growth: float, seconds: float | None) -> None:
    assert drain_seconds(depth, growth) == seconds


def topic(received: int, **channels: ChannelFigures) -> TopicStats:
    found = {name: ChannelStats("t", name, "n", "h", each) for name, each in channels.items()}
    return TopicStats("t", "n", "h", TopicFigures(message_count=received), found)


def test_rates_of_an_nsqd_that_does_not_report_them() -> None:
    before = topic(10, c=ChannelFigures(depth=4, in_flight_count=1, message_count=10))
    now = ChannelFigures(
        depth=12, in_flight_count=1, deferred_count=1, message_count=30, requeue_count=2
    )
    (found,) = with_rates([before], [topic(30, c=now, new=ChannelFigures())], 2.0)
    assert found.publish_rate == 10.0
    # Of 20 received messages, 8 are left in the queue and one is deferred.
    assert found.channels["c"].rates == Rates(10.0, 5.5, 1.0, 0.0, 4.0)
    assert found.channels["new"].rates is None
    assert with_rates([], [before], 2.0) == [before]


def test_reported_rates_are_kept() -> None:
    own = Rates(1.0, 2.0)
    after = topic(30, c=ChannelFigures(message_count=30))._replace(publish_rate=7.0)
    after = after._replace(channels={"c": after.channels["c"]._replace(rates=own)})
    (found,) = with_rates([topic(10, c=ChannelFigures())], [after], 2.0)
    assert (found.publish_rate, found.channels["c"].rates) == (7.0, own)


REPORTED = {
    "receive_rate": 5,
    "finish_rate": 4.5,
    "requeue_rate": 0.5,
    "timeout_rate": 0,
    "falling_behind": -1.5,
}


def stats(channel: dict[str, Any], **topic: Any) -> list[TopicStats]:
    body = {
        "topics": [{"topic_name": "t", "channels": [{"channel_name": "c", **channel}], **topic}]
    }
    headers = {"x-nsq-content-type": PLAIN}
    return parse_stats(json.dumps(body).encode(), headers, "n", "h", clients=True)


def test_rates_in_a_response() -> None:
    client = {"finish_rate": 1.5, "saturated": True}
    reported = {**REPORTED, "saturated_client_count": 2, "clients": [client, {}]}
    (found,) = stats(reported, publish_rate=3.25)
    channel = found.channels["c"]
    assert found.publish_rate == 3.25
    assert (channel.rates, channel.saturated) == (Rates(5.0, 4.5, 0.5, 0.0, -1.5), 2)
    assert [(each.finish_rate, each.saturated) for each in channel.clients or ()] == [
        (1.5, True),
        (None, False),
    ]


def test_unknown_rates_in_a_response() -> None:
    """nsqd does not know the rates of a new channel yet; NSQ's nsqd has no such keys."""
    for reported in (dict.fromkeys(REPORTED), {}):
        (found,) = stats(reported)
        assert (found.publish_rate, found.channels["c"].rates) == (None, None)


def test_rates_are_summed_across_nodes() -> None:
    known = stats({**REPORTED, "saturated_client_count": 2}, publish_rate=3)
    summed = sum_topics(known * 2)["t"]
    assert (summed.publish_rate, summed.channels["c"].saturated) == (6.0, 4)
    assert summed.channels["c"].rates == Rates(10.0, 9.0, 1.0, 0.0, -3.0)
    partly = sum_topics([*known, *stats({})])["t"]
    assert (partly.publish_rate, partly.channels["c"].rates) == (None, None)
