"""The page of a node, with its paginated list of topics."""

from typing import Any

from nsqcy.cluster.stats import TopicFigures, TopicStats
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.views.nodes import node


def shown(**params: str) -> dict[str, Any]:
    rows = [
        TopicStats(f"t{number:04}", "n", "", TopicFigures(message_count=number))
        for number in range(501)
    ]
    location = Location("/nodes/n", params)
    return dict(node("n", rows, Clients({}, 0.0), location, Plots(None, 0.0, 0.0)).values)


def test_pages() -> None:
    first, last = shown(), shown(page="2")
    assert first["counts"][0] == "501 Topics"
    assert len(first["topics"].rows) == len(first["topics"].names) == 500
    assert (last["page"], last["last"], last["topics"].names) == (2, 2, ["t0500"])
    assert shown(sort="-messages", page="2")["topics"].names == ["t0500"]
    assert shown(sort="messages", page="2")["topics"].names == ["t0000"]
