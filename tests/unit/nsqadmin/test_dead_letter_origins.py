"""The channels whose dead letters a topic receives, and how they are shown."""

from collections.abc import Sequence

from nsqcy.cluster.problems import dead_letter_topics
from nsqcy.cluster.stats import ChannelFigures, ChannelStats, TopicFigures, TopicStats, sum_topics
from nsqcy.cluster.summaries import Origins
from nsqcy.errors import HttpError
from nsqcy.nsqadmin.cluster.dead_letters import MAX_AGE, DeadLetterOrigins
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.html.layout import Layout, View, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.views import topics as views
from support.strict_html import Element, read

NO_PLOTS = Plots(None, 0.0, 0.0)
ADMIN = Layout("/b", True)


def topic(name: str, *channels: tuple[str, str], depth: int = 0) -> TopicStats:
    """channels: names and dead-letter topics."""
    rows = {
        each: ChannelStats(
            name, each, "n", "h", ChannelFigures(depth=depth), dead_letter_topic=dead
        )
        for each, dead in channels
    }
    return TopicStats(name, "n", "h", TopicFigures(), rows)


class Cluster:
    def __init__(self) -> None:
        self.rows: Sequence[TopicStats] = []
        self.now = 0.0
        self.is_down = False
        self.origins = DeadLetterOrigins(self.query, lambda: self.now)

    def query(self) -> Origins:
        if self.is_down:
            raise HttpError(502, "UPSTREAM_ERROR")
        return dead_letter_topics(self.rows)


def test_channels_are_known_for_a_while() -> None:
    cluster = Cluster()
    cluster.rows = [topic("t", ("c", "dead"), ("b", "dead"), ("a", "")), topic("t", ("c", "dead"))]
    assert cluster.origins.of("dead") == [("t", "b"), ("t", "c")]
    assert cluster.origins.of("t") == ()
    cluster.rows = [topic("s", ("c", "dead"))]
    cluster.now = MAX_AGE - 0.1
    assert cluster.origins.of("dead") == [("t", "b"), ("t", "c")]
    cluster.now = MAX_AGE
    assert cluster.origins.of("dead") == [("s", "c")]


def test_an_outage_keeps_what_was_known() -> None:
    cluster = Cluster()
    cluster.is_down = True
    assert cluster.origins.of("dead") == ()
    cluster.is_down, cluster.rows, cluster.now = False, [topic("t", ("c", "dead"))], MAX_AGE
    assert cluster.origins.of("dead") == [("t", "c")]
    cluster.is_down, cluster.now = True, 2 * MAX_AGE
    assert cluster.origins.of("dead") == [("t", "c")]


def page_of(view: View, layout: Layout = ADMIN) -> Element:
    return read(render(layout, "t", view))


def redrives(page: Element) -> list[tuple[str, str]]:
    return [
        (each.text, each.attributes["href"])
        for each in page.all("a", **{"class": "button danger"})
        if "redrive" in each.attributes["href"]
    ]


def test_pages_of_a_topic_with_dead_letters() -> None:
    (dead,) = sum_topics([topic("dead", ("look", ""), depth=4)]).values()
    location, origins = Location("/b/topics/dead", {}), [("t", "b"), ("t", "c")]
    clients, channel = Clients({}, 0.0), dead.channels["look"]
    question = ("Redrive …", "/b/peek/dead/look?ask=redrive#question")
    for view in (
        views.topic(dead, location, NO_PLOTS, origins=origins),
        views.channel(dead, channel, clients, location, NO_PLOTS, origins),
    ):
        page = page_of(view)
        assert "Receives the dead letters of t/b, t/c." in page.text
        assert page.all("a", href="/b/topics/t/c")
        assert "⚠ dead letters" in page.one("h1").text
        assert "no consumer" not in page.text
        assert redrives(page) == [question]
        assert not redrives(page_of(view, Layout("/b", False)))


def test_several_channels_with_dead_letters() -> None:
    (dead,) = sum_topics([topic("dead", ("one", ""), ("two", ""))]).values()
    location = Location("/b/topics/dead", {})
    page = page_of(views.topic(dead, location, NO_PLOTS, origins=[("t", "c")]))
    assert [text for text, _ in redrives(page)] == ["Redrive one …", "Redrive two …"]
    page = page_of(views.topic(dead, location, NO_PLOTS))
    assert not redrives(page)
    assert "Receives" not in page.text
