"""The page of all nodes."""

from nsqcy.cluster.discovery import Producer
from nsqcy.nsqadmin.cluster.nodes import Node
from nsqcy.nsqadmin.html.layout import Layout, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.views.nodes import MAX_TOPICS, nodes
from support.strict_html import Element, read


def page(topics: dict[str, bool]) -> Element:
    node = Node(Producer("n", 1, 2, topics=topics), remote_addresses=())
    view = nodes([node], 1, Location("/nodes", {}), Plots(None, 0.0, 0.0))
    return read(render(Layout("", True), "Nodes", view))


def test_all_topics_of_a_node_are_listed() -> None:
    found = page({"b": False, "a": True})
    first, second = (each for each in found.all("a") if "/topics/" in each.attributes["href"])
    assert (first.text, first.attributes["class"]) == ("a", "label old")
    assert (second.text, second.attributes["class"]) == ("b", "label")
    assert "more topic" not in found.text


def test_very_many_topics_of_a_node_are_not_all_listed() -> None:
    topics = {f"t{number:05}": False for number in range(2 * MAX_TOPICS)}
    found = page(dict(reversed(topics.items())))
    listed = [each.text for each in found.all("a") if "/topics/" in each.attributes["href"]]
    assert listed == [*topics][:MAX_TOPICS]
    (more,) = [each for each in found.all("a") if each.text == f"{MAX_TOPICS} more topics"]
    assert more.attributes["href"] == "/nodes/n%3A2"
