"""The screen of `nsqcy top`."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from nsqcy.cli import top_screen
from nsqcy.cli.top_screen import Omitted, Snapshot
from nsqcy.cluster.problems import NodeState
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import ChannelFigures, ChannelStats, TopicFigures, TopicStats
from nsqcy.cluster.summaries import totals_of

NOW = datetime(2026, 1, 31, 12, 0, 5)


def topic(name: str, rates: Rates | None = None, **figures: Any) -> TopicStats:
    """Return a topic with one channel that has these figures."""
    channel = ChannelStats(name, "c", "*", "", ChannelFigures(**figures), rates=rates)
    return TopicStats(name, "*", "", TopicFigures(), {"c": channel}, publish_rate=10.0)


UP = NodeState("a:4151")
DOWN = NodeState("a:1", "Connection refused")


def snapshot(*topics: TopicStats, nodes: tuple[NodeState, ...] = (UP,)) -> Snapshot:
    return Snapshot({each.name: each for each in topics}, nodes, {}, NOW, totals_of(topics))


SLOW = topic("slow", Rates(received=10, finished=4, growth=6), depth=600, client_count=1)
BUSY = topic("busy", Rates(received=10, finished=20, growth=-10), depth=900, client_count=1)
IDLE = topic("idle", depth=1)


def test_the_worst_channels_come_first() -> None:
    found = snapshot(BUSY, IDLE, SLOW, topic("empty", client_count=1))
    assert [each.topic for each in found.channels] == ["slow", "idle", "busy", "empty"]
    lines = click.unstyle(top_screen.text(found)).splitlines()
    assert lines[0] == (
        "nsqcy top  12:00:05  1 nsqd  in 40/s  out 24/s  backlog 1,501  in flight 0"
    )
    rows = [line.split() for line in lines[-4:]]
    assert rows[0][:6] == ["⚠", "slow/c", "falling", "behind", "by", "6.0/s"]
    assert "never" in rows[0]
    assert "1m30s" in rows[2]


def test_a_calm_cluster_has_no_problems() -> None:
    text = click.unstyle(top_screen.text(snapshot()))
    assert "1 nsqd " in text
    assert "no problems" in text
    assert text.endswith("no channels")


def test_problems_leave_room_for_channels() -> None:
    idle = [topic(f"idle{number}", depth=1) for number in range(50)]
    lines = click.unstyle(top_screen.text(snapshot(*idle), 40, 24)).splitlines()
    assert len(lines) == 23
    assert "  and 39 more problems: use --once" in lines
    assert all(len(line) <= 40 for line in lines[2:])
    assert sum("idle" in line for line in lines[15:]) > 5


def test_advice_makes_room_for_problems() -> None:
    idle = [topic(f"idle{number}", depth=1) for number in range(5)]
    rows = {height: top_screen.text(snapshot(*idle), 120, height) for height in (16, 24)}
    assert all(text.count("has no consumer") == 5 for text in rows.values())
    assert ["start its consumers" in text for text in rows.values()] == [False, True]


def test_as_json() -> None:
    found = top_screen.as_json(snapshot(SLOW, nodes=(DOWN,)))
    assert found["nsqds"] == [{"address": "a:1", "error": "Connection refused", "disk_free": None}]
    assert [each["kind"] for each in found["problems"]] == ["node-unreachable", "falling-behind"]
    assert found["channels"][0]["growth_per_second"] == 6


def test_figures_that_are_unknown_are_not_shown() -> None:
    found = snapshot(nodes=(DOWN,))
    lines = click.unstyle(top_screen.text(found)).splitlines()
    assert lines[0] == "nsqcy top  12:00:05  1 nsqd, 1 down"
    assert "no channels" not in lines
    assert found.is_partial
    assert not snapshot().is_partial


def test_topics_that_are_not_shown() -> None:
    found = replace(snapshot(BUSY), omitted=Omitted(5000, 20), totals=totals_of([BUSY, SLOW]))
    lines = click.unstyle(top_screen.text(found)).splitlines()
    assert "backlog 1,500" in lines[0]
    assert lines[1] == "20 less busy topics with messages or traffic not checked"
    assert lines[-1] == "and the channels of 5,000 less busy topics"
    shown = top_screen.as_json(found)
    assert (shown["omitted_topics"], shown["unchecked_topics"]) == (5000, 20)
    assert "not checked" not in top_screen.text(snapshot(BUSY))


def test_dead_letters_of_topics_that_are_not_shown() -> None:
    dead = topic("dead", depth=1)
    found = replace(snapshot(dead), origins={"dead": [("quiet", "c")]})
    (problem,) = found.problems
    assert problem.kind == "dead-letters"
