"""Summaries of nsqds: what a summary and a complete answer have in common, and topics on several
nsqds."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nsqcy.cluster.problems import dead_letter_topics
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import ChannelFigures, TopicFigures, TopicStats, parse_stats, sum_topics
from nsqcy.cluster.summaries import (
    Summary,
    complete,
    is_busy,
    parse_summary,
    sum_origins,
    sum_totals,
    totals_of,
)
from nsqcy.errors import RequestError

PLAIN = {"x-nsq-content-type": "nsq; version=1.0"}


def body(topics: Sequence[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"topics": topics, **more}).encode()


def object_of(name: str, channel: dict[str, Any] | None = None, **figures: Any) -> dict[str, Any]:
    channels = [{"channel_name": "c", **channel}] if channel is not None else []
    return {"topic_name": name, "channels": channels, **figures}


def summary(topics: Sequence[dict[str, Any]], **more: Any) -> Summary:
    return parse_summary(body(topics, **more), PLAIN, "n:1", "h")


QUIET, BUSY = object_of("a", {}), object_of("b", {"depth": 1})
SPEEDS = {"receive_rate": 1, "finish_rate": 2, "requeue_rate": 0.5, "timeout_rate": 0}
TOTALS = {
    "topic_count": 5,
    "channel_count": 6,
    "busy_topic_count": 2,
    "topics": {"depth": 1, "message_count": 30, "publish_rate": 1.5, "message_bytes": 9},
    "channels": {"depth": 2, "in_flight_count": 3, "client_count": 4, **SPEEDS},
}


def test_what_a_summary_contains() -> None:
    origin = {"topic_name": "b", "channel_name": "c", "dead_letter_topic": "dead"}
    more = {"topic_names": ["a", "b", "c", "d", "e"], "dead_letter_channels": [origin]}
    found = summary([BUSY, QUIET], totals=TOTALS | {"busy_topic_count": 1}, **more)
    assert [row.name for row in found.rows] == ["a", "b"]
    assert found.busy == {"b"}
    assert (found.omitted, found.unseen, found.is_complete) == (3, 0, False)
    assert found.names == ["a", "b", "c", "d", "e"]
    assert found.origins == {"dead": [("b", "c")]}
    assert (found.totals.topics, found.totals.channels, found.totals.backlog) == (5, 6, 3)
    assert found.totals.of_topics == TopicFigures(depth=1, message_count=30)
    expected = ChannelFigures(depth=2, in_flight_count=3, client_count=4)
    assert found.totals.of_channels == expected
    assert (found.totals.publish_rate, found.totals.rates) == (1.5, Rates(1, 2, 0.5, 0))


def test_topics_that_are_not_seen() -> None:
    found = summary([BUSY], totals=TOTALS)
    assert (found.omitted, found.unseen, found.names) == (4, 1, None)
    assert summary([], totals=TOTALS).unseen == 2


def test_an_nsqd_without_summaries_returns_all_topics() -> None:
    origin = {"depth": 2, "policy": {"dead_letter_topic": "dead"}, **SPEEDS, "falling_behind": 0}
    topics = [QUIET, object_of("b", origin, depth=1, message_count=3)]
    found = summary(topics)
    rows = parse_stats(body(topics), PLAIN, "n:1", "h")
    assert found.rows == rows
    assert found.is_complete and found.names == ["a", "b"] and found.busy == {"b"}
    assert found.origins == dead_letter_topics(rows) == {"dead": [("b", "c")]}
    assert (found.totals.topics, found.totals.busy, found.totals.backlog) == (2, 1, 3)
    assert found.totals.rates == Rates(1, 2, 0.5, 0)


def test_quiet_topics() -> None:
    quiet = [QUIET, object_of("t"), object_of("t", {"client_count": 1, "message_count": 9})]
    busy = [
        BUSY,
        object_of("t", depth=1),
        object_of("t", publish_rate=1),
        object_of("t", paused=True),
        object_of("t#ephemeral"),
        *(object_of("t", {key: 1}) for key in ("in_flight_count", "deferred_count")),
        object_of("t", {"paused": True}),
        object_of("t", {**SPEEDS, "falling_behind": 0}),
        object_of("t", {"channel_name": "c#ephemeral"}),
    ]
    for topics, expected in ((quiet, False), (busy, True)):
        rows = parse_stats(body(topics), PLAIN)
        assert [is_busy(row) for row in rows] == [expected] * len(rows)


def test_sums() -> None:
    parts = [summary([BUSY], totals=TOTALS), summary([QUIET, BUSY])]
    found = sum_totals(each.totals for each in parts)
    assert (found.topics, found.busy, found.backlog) == (7, 3, 4)
    assert found.rates == Rates(1, 2, 0.5, 0)
    assert sum_totals([]) == totals_of([])
    one, two = {"d": [("b", "c")]}, {"d": [("a", "c"), ("b", "c")], "e": [("a", "c")]}
    assert sum_origins([one, two]) == {"d": [("a", "c"), ("b", "c")], "e": [("a", "c")]}


# Several nsqds

NAMES = st.sampled_from("abcdefgh")
NSQDS = st.lists(
    st.dictionaries(NAMES, st.integers(0, 2), max_size=8), min_size=1, max_size=3
)  # the depth of each topic


class Nsqd:
    """An nsqd with these topics, which returns summaries of `count` topics."""

    def __init__(self, number: int, depths: dict[str, int], count: int) -> None:
        self.topics = [
            object_of(name, {"depth": depth, "client_count": number}, message_count=number + 1)
            for name, depth in sorted(depths.items())
        ]
        self.number, self.count, self.asked = number, count, list[str]()

    def rows(self, topics: Sequence[dict[str, Any]]) -> list[TopicStats]:
        return parse_stats(body(topics), PLAIN, f"n:{self.number}", str(self.number))

    def summary(self, *, names: bool) -> Summary:
        rows = self.rows(self.topics)
        depths = {row.name: row.channels["c"].figures.depth for row in rows}
        first = sorted(self.topics, key=lambda each: -depths[each["topic_name"]])[: self.count]
        totals = {"topic_count": len(rows), "busy_topic_count": sum(map(is_busy, rows))}
        more = {"topic_names": [row.name for row in rows]} if names else {}
        data = body(first, totals=totals, **more)
        return parse_summary(data, PLAIN, f"n:{self.number}", str(self.number))

    def ask(self, topics: Sequence[str]) -> list[TopicStats]:
        self.asked += topics
        return self.rows([each for each in self.topics if each["topic_name"] in topics])


@given(NSQDS, st.integers(1, 4), st.booleans())
def test_sums_of_busy_topics_are_exact(
    depths: list[dict[str, int]], count: int, names: bool
) -> None:
    nsqds = [Nsqd(number, each, count) for number, each in enumerate(depths)]
    found = {number: each.summary(names=names) for number, each in enumerate(nsqds)}
    busy = {name for each in found.values() for name in each.busy}
    completed, outcome = complete(found, busy, lambda key, topics: nsqds[key].ask(topics), 5.0)
    assert not outcome.errors
    exact = sum_topics(row for each in nsqds for row in each.rows(each.topics))
    sums = sum_topics(row for each in completed.values() for row in each.rows)
    assert {name: sums[name] for name in busy} == {name: exact[name] for name in busy}
    for number, nsqd in enumerate(nsqds):
        shown = {row.name for row in found[number].rows}
        assert shown.isdisjoint(nsqd.asked)
        assert not (found[number].is_complete and nsqd.asked)
        if names:
            assert {*nsqd.asked} <= depths[number].keys()


def test_an_nsqd_that_does_not_return_the_missing_topics() -> None:
    found = {"n:1": summary([BUSY], totals=TOTALS), "n:2": summary([QUIET], totals=TOTALS)}

    def ask(key: str, topics: Sequence[str]) -> list[TopicStats]:
        raise RequestError(f"{key} lacks {topics}")

    completed, outcome = complete(found, ["b"], ask, 5.0)
    assert completed == found
    assert [*map(str, outcome.errors.values())] == ["n:2 lacks ['b']"]
    known = {"n:2": ["a", "x"]}
    completed, outcome = complete(found, ["b"], ask, 5.0, known)
    assert completed == found and not outcome.errors
