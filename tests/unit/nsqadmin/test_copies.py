"""The copies page, for reports that agree, differ or are missing."""

from typing import Any

from nsqcy.nsqadmin.api.copies_json import copies_json
from nsqcy.nsqadmin.cluster import copies
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.copies import NodeCopies, Sighting, TopicCopies
from nsqcy.nsqadmin.html.layout import Layout, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.views import copies as views
from support.copies_reports import NODES, NSQDS, group, with_holders, worker
from support.strict_html import Element, read


def nsqd(node: str, *groups: dict[str, Any], **fields: Any) -> NodeAnswer:
    return NodeAnswer(NSQDS[node], 200, {"workers": [worker(node, *groups, **fields)]})


def cluster(owner: dict[str, Any], **fields: Any) -> list[NodeAnswer]:
    return [
        NodeAnswer(NSQDS[each["node"]], 200, {"workers": [each]})
        for each in with_holders(owner, **fields)
    ]


OLD = [NodeAnswer("o:1", 404, message="NOT_FOUND"), NodeAnswer("n:1", 200, {"workers": []})]


def page(answers: list[NodeAnswer], **params: str) -> Element:
    view = views.page(answers, Location("/b/copies", params))
    return read(render(Layout("/b", False, has_copies=True), "Copies", view))


def risks(answers: list[NodeAnswer]) -> list[tuple[str, str]]:
    found = copies.risks(copies.groups(answers), answers)
    return [(each.severity, each.text) for each in found]


# -- healthy


def test_a_healthy_cluster() -> None:
    answers = cluster(group("owner"))
    shown = page(answers)
    assert shown.one("h1").text == "Copies 1 group"
    assert shown.table("Groups") == [
        [
            "Topics",
            "Owner",
            "Members",
            "Copies",
            "Minimum",
            "Durability",
            "Bytes",
            "State",
            "Group",
        ],
        ["orders", "a:1", "a:1b:1c:1", "3 of 3", "2", "os", "2,048", "complete", "g"],
    ]
    assert shown.table("Nodes") == [
        ["NSQd Host", "Groups Owned", "Groups Held", "Bytes", "etcd"],
        ["a:1", "1", "0", "2,048", "responds"],
        ["b:1", "0", "1", "1,024", "responds"],
        ["c:1", "0", "1", "1,024", "responds"],
    ]
    assert shown.one("p").text == "No risks: each group has an owner and all of its copies."
    assert shown.one("a", href="/b/topics/orders").text == "orders"
    assert shown.one("tr", **{"data-key": "g"}).all("a", href="/b/nodes/b%3A1")
    assert copies_json(answers) == {
        "risks": [],
        "groups": [
            {
                "group": "g",
                "state": "complete",
                "topics": ["orders"],
                "owner": {"id": "a.0", "node": "a:1", "answers": True, "whole": True},
                "members": [
                    {"id": node, "node": NSQDS[node], "answers": True, "whole": True}
                    for node in NODES
                ],
                "responding": 3,
                "copies": 3,
                "min_copies": 2,
                "durability": "os",
                "bytes": 2048,
                "joining": "",
                "closed": False,
            }
        ],
    }


def test_nsqds_without_copies_show_nothing() -> None:
    shown = page(OLD)
    assert shown.all("table") == [] and risks(OLD) == []
    assert shown.one("h1").text == "Copies 0 groups"
    assert shown.one("p").text.startswith("No nsqd reports copies.")
    mixed = page([*OLD, *cluster(group("owner"))])
    assert mixed.one("main").text == page(cluster(group("owner"))).one("main").text


def test_an_nsqd_that_refuses_is_named() -> None:
    answers = [*cluster(group("owner")), NodeAnswer("d:1", 403, message="E_FORBIDDEN")]
    assert page(answers).all("p")[0].text == "Copies of d:1 unknown: E_FORBIDDEN"


# -- at risk


def test_too_few_copies() -> None:
    answers = cluster(group("owner", responding=1, accepts=False))
    text = (
        "topic orders: 1 of 3 copies responds, publishes are refused (owner: a:1). At least 2 must"
        " respond: see docs/runbooks/too-few-copies.md."
    )
    assert risks(answers) == [("critical", text)]
    shown = page(answers)
    assert shown.one("ul").text == f"critical {text}"
    assert shown.table("Groups")[1][3:8] == ["1 of 3", "2", "os", "2,048", "refuses publishes"]
    assert "No risks" not in shown.text


def test_a_group_without_an_owner() -> None:
    live = {"sessions": ["b.0", "c.0"]}
    answers = [nsqd(node, group("member", whole=False, topics=[]), **live) for node in NODES[1:]]
    ((severity, text),) = risks(answers)
    assert severity == "critical" and text.startswith("group g: group g has no owner")
    assert page(answers).table("Groups")[1] == [
        "–",
        "a.0",
        "a.0b:1 incompletec:1 incomplete",
        "? of 3",
        "2",
        "os",
        "2,048",
        "no owner",
        "g",
    ]


def test_nodes_that_have_answered_before_keep_their_names() -> None:
    sighting = Sighting()
    sighting.note(cluster(group("owner")), of_all=True)
    answers = cluster(group("owner"))[1:]
    sighting.note(answers, of_all=True)
    assert sighting.nsqds == NSQDS
    (found,) = copies.groups(answers, sighting.nsqds)
    assert found.owner.name == "a:1" and found.state == "owner does not answer"
    sighting.note(cluster(group("owner", owner="b.0", members=["b.0"]))[:1], of_all=True)
    assert "c.0" not in sighting.nsqds


def test_etcd_does_not_respond() -> None:
    answers = cluster(group("owner"), etcd=False)
    ((severity, text),) = risks(answers)
    assert severity == "critical" and text.startswith("etcd does not respond to any node: ")
    assert page(answers).table("Nodes")[1][-1] == "does not respond"


def test_the_worst_comes_first() -> None:
    def named(name: str, **fields: Any) -> dict[str, Any]:
        return group("owner", group=name, topics=[name], **fields)

    closed = named("v", closed=True)
    short, lost = named("w", responding=2), named("x", responding=1, accepts=False)
    answers = [nsqd("a.0", named("u"), closed, short, lost), *cluster(named("y"))[1:]]
    assert [each.id for each in copies.groups(answers)] == ["x", "g", "w", "v", "u"]
    severities = [severity for severity, _ in risks(answers)]
    assert severities == ["critical", "critical", "warning", "notice"]
    rows = page(answers, sort="topics").table("Groups")[1:]
    assert [row[8] for row in rows] == ["g", "u", "v", "w", "x"]


def test_many_topics_are_folded() -> None:
    shown = page(cluster(group("owner", topics=["t", "u", "v", "w"])))
    (row,) = shown.all("tbody")[0].all("tr")
    assert row.one("summary").text == "4 topics"
    assert row.one("details").all("a", href="/b/topics/w")


# -- on other pages


def test_the_copies_of_a_topic() -> None:
    drained = group("owner", group="h", closed=True, responding=1)
    answers = [
        nsqd("a.0", group("owner", responding=2), drained, group("holder", group="i")),
        nsqd("b.0", group("owner", topics=["mails"])),
        *OLD,
    ]
    assert copies.of_topic(answers, "orders") == {"a:1": TopicCopies(3, 2, "copies missing")}


def test_the_copies_on_a_node() -> None:
    answer = nsqd("a.0", group("owner"), group("holder", group="h"), group("member", group="i"))
    assert copies.of_nsqd(answer) == NodeCopies("a:1", 1, 2, 6144, True)
    assert [copies.of_nsqd(each) for each in OLD] == [None, None]


def test_whether_copies_are_used() -> None:
    sighting = Sighting()
    sighting.note(OLD, of_all=True)
    assert not sighting.is_used
    sighting.note(cluster(group("owner")))
    sighting.note(OLD)
    assert sighting.is_used
    sighting.note(OLD, of_all=True)
    assert not sighting.is_used


def test_the_navigation() -> None:
    def links(has_copies: bool) -> list[str]:
        page = read(render(Layout("", False, has_copies=has_copies), "Copies"))
        return [each.text for each in page.one("nav").all("a")]

    first = ["nsqcy", "Overview", "Topics", "Channels", "Connections", "Nodes"]
    assert links(True) == [*first, "Copies", "Counter", "Lookup"]
    assert links(False) == [*first, "Counter", "Lookup"]
