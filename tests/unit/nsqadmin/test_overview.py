"""The overview: figures of the whole cluster, and the entries that need attention."""

from collections.abc import Sequence
from typing import Any

from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.problems import dead_letter_topics
from nsqcy.cluster.stats import ChannelFigures, ChannelStats, TopicFigures, TopicStats
from nsqcy.cluster.summaries import totals_of
from nsqcy.nsqadmin.cluster.copies import CRITICAL, WARNING, Risk
from nsqcy.nsqadmin.cluster.health import NodeHealth, Worker
from nsqcy.nsqadmin.cluster.nodes import Node
from nsqcy.nsqadmin.history.store import METRICS, History, Subject
from nsqcy.nsqadmin.html.layout import Layout, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.views.overview import GONE, MAX_ITEMS, Cluster, Item, Tile, overview
from support.strict_html import read

NOW = 10_000.0
NODE = Node(Producer("n", 1, 2))


def topic(name: str, depth: int = 0, **channels: ChannelFigures) -> TopicStats:
    found = {
        key: ChannelStats(name, key, "*", "", each, dead_letter_topic="dead" if key == "c" else "")
        for key, each in channels.items()
    }
    return TopicStats(name, "*", "", TopicFigures(depth=depth), found)


def cluster(
    topics: dict[str, TopicStats],
    nodes: Sequence[Node] = (NODE,),
    silent: Sequence[str] = (),
    health: dict[str, NodeHealth] | None = None,
    **more: Any,
) -> Cluster:
    rows = topics.values()
    found = Cluster(
        bool(topics), topics, nodes, silent, health or {}, totals_of(rows), dead_letter_topics(rows)
    )
    return found._replace(**more)


def health(used: float, node: str = "n:2", **changes: Any) -> NodeHealth:
    free = round(100 * (1 - used))
    found = NodeHealth(node, "0", 1.0, 100, free, 1, 0.0, (Worker(0, True, 0),), (), {})
    return found._replace(**changes)


def seen(cluster: Cluster, history: History | None = None) -> tuple[dict[str, Tile], list[Item]]:
    view = overview(cluster, Location("/", {}), Plots(history, NOW, 0.0))
    tiles, items = view.values["tiles"], view.values["items"]
    assert isinstance(tiles, list) and isinstance(items, list)
    return {each.title: each for each in tiles}, items


def words(items: list[Item]) -> list[tuple[str, str, list[str]]]:
    return [(each.kind, each.name, [sign.text for sign in each.signs]) for each in items]


def test_figures() -> None:
    busy = ChannelFigures(depth=5, in_flight_count=3, client_count=1)
    topics = {"t": topic("t", 2, c=busy, d=busy), "dead": topic("dead", 4)}
    state = cluster(topics, health={"n:2": health(0.4), "n:3": health(0.7, "n:3")})
    tiles, _ = seen(state)
    assert {title: each.value for title, each in tiles.items()} == {
        "Nodes": "1 up",
        "Backlog": "16",
        "In flight": "6",
        "Dead letters": "4",
        "Fullest disk": "70 %",
    }
    assert [each.title for each in tiles.values() if each.is_bad] == ["Dead letters"]
    assert tiles["Fullest disk"].path == ("nodes", "n:3")


def test_nodes_that_are_missing() -> None:
    history = History(10.0, 2 * GONE)
    for node, at in (("old:1", NOW - GONE - 100), ("lost:1", NOW - 130), ("n:2", NOW - 5)):
        history.add(at, {Subject(node=node): [0.0] * len(METRICS)})
    tiles, items = seen(cluster({}, silent=["silent:1"]), history)
    assert (tiles["Nodes"].detail, tiles["Nodes"].is_bad) == ("2 down", True)
    assert words(items)[0] == ("nsqd", "silent:1", ["does not answer"])
    ((kind, name, (text,)),) = words(items[1:])
    assert (kind, name) == ("nsqd", "lost:1")
    assert text.startswith("gone for 2m")
    assert items[1].path == ()


def test_no_node_is_known() -> None:
    tiles, items = seen(cluster({}, []))
    assert (tiles["Nodes"].value, tiles["Nodes"].is_bad) == ("0 up", True)
    assert items == []


def test_errors_come_first() -> None:
    down = health(0.4, workers=(Worker(0, False, 1),))
    risks = [Risk(WARNING, "a copy is missing"), Risk(CRITICAL, "publishes are refused")]
    _, items = seen(cluster({}, health={"n:2": down}, risks=risks))
    assert words(items) == [
        ("copies", "publishes are refused", ["critical"]),
        ("nsqd", "n:2", ["1 of 1 worker down"]),
        ("copies", "a copy is missing", ["warning"]),
    ]


def test_many_topics_are_not_all_listed() -> None:
    topics = {f"t{number}": topic(f"t{number}", 1) for number in range(MAX_ITEMS + 3)}
    view = overview(cluster(topics), Location("/", {}), Plots(None, NOW, 0.0))
    assert view.values["more"] == 3
    assert len(seen(cluster(topics))[1]) == MAX_ITEMS


def test_figures_are_of_all_topics() -> None:
    held = ChannelFigures(depth=100, in_flight_count=7)
    totals = totals_of([topic("t", 1, c=held), topic("other", 2, c=held)])
    tiles, _ = seen(cluster({"t": topic("t", 1, c=held)}, totals=totals))
    assert (tiles["Backlog"].value, tiles["In flight"].value) == ("203", "14")


def test_topics_that_were_not_checked() -> None:
    state = cluster({}, has_topics=True, unseen=1200)
    view = overview(state, Location("/", {}), Plots(None, NOW, 0.0))
    text = read(render(Layout("", True), "t", view)).text
    assert "1,200 less busy topics with messages or traffic not checked." in text
    assert "Nothing needs attention" not in text
