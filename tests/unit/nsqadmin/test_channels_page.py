"""The page of the channels of all topics."""

from typing import Any

from nsqcy.cluster.problems import dead_letter_topics
from nsqcy.cluster.stats import ChannelFigures, ChannelStats, TopicFigures, TopicStats
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.views.channels import channels

WAITING = ChannelFigures(depth=5)


def topic(name: str, dead: str = "", **figures: ChannelFigures) -> TopicStats:
    found = {
        key: ChannelStats(name, key, "*", "", each, dead_letter_topic=dead)
        for key, each in figures.items()
    }
    return TopicStats(name, "*", "", TopicFigures(), found)


def shown(topics: list[TopicStats], **params: str) -> dict[str, Any]:
    location = Location("/channels", params)
    found = {each.name: each for each in topics}
    view = channels(found, dead_letter_topics(topics), 7, location, Plots(None, 0.0, 0.0))
    assert view.values["omitted"] == 7
    return dict(view.values)


def names(topics: list[TopicStats], **params: str) -> list[str]:
    rows = shown(topics, **params)["listed"].rows
    return [f"{each.topic}/{each.name}" for each in rows]


def test_order_and_search() -> None:
    topics = [topic("b", x=ChannelFigures(depth=9), y=WAITING), topic("a", z=ChannelFigures())]
    assert names(topics) == ["a/z", "b/x", "b/y"]
    assert names(topics, sort="depth") == ["b/x", "b/y", "a/z"]
    assert names(topics, q="B/") == ["b/x", "b/y"]
    assert shown(topics, q="none")["channels"] == 3


def test_pages() -> None:
    figures = {f"c{number:04}": ChannelFigures() for number in range(501)}
    topics = [topic("t", **figures)]
    assert len(names(topics)) == 500
    assert names(topics, page="2") == ["t/c0500"]
    last = shown(topics, page="7")
    assert (last["page"], last["last"], last["listed"].names) == (2, 2, ["t/c0500"])


def test_dead_letters_need_no_consumer() -> None:
    topics = [topic("t", "failed", c=WAITING), topic("failed", look=WAITING)]
    signs = shown(topics)["signs"]
    assert [each.text for each in signs["t/c"]] == ["no consumer"]
    assert [each.text for each in signs["failed/look"]] == ["dead letters"]
