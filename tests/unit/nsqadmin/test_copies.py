"""The copies page: what it shows for reports that agree, differ or are missing."""

from typing import Any

import pytest

from nsqcy.nsqadmin.api.copies_json import copies_json
from nsqcy.nsqadmin.cluster import copies
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.copies import NodeCopies, Sighting, TopicCopies
from nsqcy.nsqadmin.html.layout import Layout, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.views import copies as views
from support.strict_html import Element, read

NODES = ("a.0", "b.0", "c.0")
NSQDS = {"a.0": "a:1", "b.0": "b:1", "c.0": "c:1"}


def group(role: str, **fields: Any) -> dict[str, Any]:
    """Return a report of the group g, which a.0 owns."""
    found = {
        "group": "g",
        "role": role,
        "owner": "a.0",
        "members": list(NODES),
        "epoch": 1,
        "copies": 3,
        "min_copies": 2,
        "durability": "os",
        "closed": False,
        "bytes": 1000,
        "whole": True,
        "topics": [],
    }
    if role == "owner":
        found |= {"topics": ["orders"], "responding": 3, "accepts": True, "joining": ""}
    return found | fields


def nsqd(node: str, *groups: dict[str, Any], **fields: Any) -> NodeAnswer:
    worker = {
        "worker": 0,
        "node": node,
        "etcd": True,
        "ready": True,
        "sessions": list(NODES),
        "groups": list(groups),
    }
    return NodeAnswer(NSQDS[node], 200, {"workers": [worker | fields]})


def cluster(owner: dict[str, Any], **fields: Any) -> list[NodeAnswer]:
    holders = [nsqd(node, group("holder", epoch=owner["epoch"]), **fields) for node in NODES[1:]]
    return [nsqd("a.0", owner, **fields), *holders]


OLD = [NodeAnswer("o:1", 404, message="NOT_FOUND"), NodeAnswer("n:1", 200, {"workers": []})]


def page(answers: list[NodeAnswer], **params: str) -> Element:
    view = views.page(answers, Location("/b/copies", params))
    return read(render(Layout("/b", False, has_copies=True), "Copies", view))


def risks(answers: list[NodeAnswer]) -> list[tuple[str, str]]:
    found = copies.risks(copies.groups(answers), answers)
    return [(each.severity, each.text) for each in found]


def states(answers: list[NodeAnswer]) -> list[str]:
    return [each.state for each in copies.groups(answers)]


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
        ["orders", "a:1", "a:1b:1c:1", "3 of 3", "2", "os", "1,000", "complete", "g"],
    ]
    assert shown.table("Nodes") == [
        ["NSQd Host", "Groups Owned", "Groups Held", "Bytes", "etcd"],
        ["a:1", "1", "0", "1,000", "responds"],
        ["b:1", "0", "1", "1,000", "responds"],
        ["c:1", "0", "1", "1,000", "responds"],
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
                "bytes": 1000,
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
        "Publishes to orders on a:1 are refused: 1 of 3 copies responds, but at least 2 are"
        " required."
    )
    assert (states(answers), risks(answers)) == (["refuses publishes"], [("critical", text)])
    shown = page(answers)
    assert shown.one("ul").text == f"critical {text}"
    assert shown.table("Groups")[1][3:8] == ["1 of 3", "2", "os", "1,000", "refuses publishes"]
    assert "No risks" not in shown.text


def test_a_group_that_etcd_does_not_have_yet() -> None:
    answers = [nsqd("a.0", group("new", topics=["orders"], members=["a.0"]))]
    text = "Publishes to orders on a:1 are refused: etcd has not confirmed their group yet."
    assert risks(answers) == [("critical", text)]


def test_a_group_that_is_handed_over() -> None:
    answers = cluster(group("owner", accepts=False))
    text = "Publishes to orders on a:1 are refused: a:1 is handing group g over to another member."
    assert risks(answers) == [("critical", text)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"responding": 2},
            "2 of 3 copies respond for orders on a:1. If one more fails, publishes are refused.",
        ),
        (
            {"responding": 2, "min_copies": 1, "joining": "d.0"},
            "2 of 3 copies respond for orders on a:1. Another node is receiving a copy.",
        ),
        (
            {"responding": 4, "copies": 5, "topics": list("vwxyz")},
            "4 of 5 copies respond for v, w, x and 2 more on a:1.",
        ),
    ],
)
def test_copies_are_missing(fields: dict[str, Any], text: str) -> None:
    answers = cluster(group("owner", **fields))
    assert (states(answers), risks(answers)) == (["copies missing"], [("warning", text)])


def test_a_group_without_an_owner() -> None:
    """The owner's session has ended, and no member has taken over yet."""
    live = {"sessions": ["b.0", "c.0"]}
    answers = [nsqd(node, group("holder"), **live) for node in NODES[1:]]
    text = "Group g has no owner: its messages are not delivered until one of its members takes"
    text += " over (a.0, b:1, c:1)."
    assert (states(answers), risks(answers)) == (["no owner"], [("critical", text)])
    assert page(answers).table("Groups")[1] == [
        "–",
        "a.0",
        "a.0b:1c:1",
        "? of 3",
        "2",
        "os",
        "1,000",
        "no owner",
        "g",
    ]
    answers = [nsqd(node, group("member", whole=False), **live) for node in NODES[1:]]
    text += " No responding member has a complete copy, so all members must return."
    assert risks(answers) == [("critical", text)]
    assert page(answers).table("Groups")[1][2] == "a.0b:1 incompletec:1 incomplete"


def test_topics_of_holders_count_without_an_owner() -> None:
    holders = [group("holder", topics=["mails"]), group("holder", topics=["mails", "orders"])]
    answers = [nsqd("b.0", holders[0]), nsqd("c.0", holders[1])]
    (found,) = copies.groups(answers)
    assert found.topics == ["mails", "orders"]
    live = [nsqd("b.0", holders[0], sessions=["b.0"])]
    assert risks(live)[0][1].startswith("Group g (mails) has no owner: ")
    answers = [nsqd("a.0", group("owner")), *answers]
    assert [each.topics for each in copies.groups(answers)] == [["orders"]]


def test_an_owner_that_has_not_resumed_its_group() -> None:
    answers = [nsqd("a.0", group("member")), nsqd("b.0", group("member"))]
    assert states(answers) == ["no owner"]


def test_an_owner_that_only_nsqadmin_does_not_reach() -> None:
    answers = cluster(group("owner"))[1:]
    answers.append(nsqd("c.0", group("holder", group="h")))
    assert states(answers) == ["owner does not answer"] * 2
    ((severity, text),) = risks(answers)
    assert severity == "warning"
    assert text.startswith("a.0 (groups owned: 2) does not answer nsqadmin.")


def test_nodes_that_have_answered_before_keep_their_names() -> None:
    sighting = Sighting()
    sighting.note(cluster(group("owner")), of_all=True)
    answers = cluster(group("owner"))[1:]
    sighting.note(answers, of_all=True)
    assert sighting.nsqds == NSQDS
    (found,) = copies.groups(answers, sighting.nsqds)
    assert found.owner == ("a.0", "a:1", False, None) and found.state == "owner does not answer"
    sighting.note(cluster(group("owner", owner="b.0", members=["b.0"]))[:1], of_all=True)
    assert "c.0" not in sighting.nsqds


def test_a_group_without_files_is_no_loss() -> None:
    answers = [nsqd("b.0", group("holder", bytes=0), sessions=["b.0"])]
    assert [severity for severity, _ in risks(answers)] == ["notice"]


def test_sessions_of_a_worker_without_etcd_are_old() -> None:
    current = nsqd("b.0", group("holder"), sessions=["b.0", "c.0"])
    answers = [current, nsqd("c.0", group("holder"), etcd=False)]
    assert states(answers) == ["no owner"]
    assert states(answers[1:]) == ["owner does not answer"]


def test_a_takeover() -> None:
    """The old owner was cut off and still reports that it owns the group."""
    old = group("owner")
    new = group("owner", owner="b.0", epoch=2, closed=True, responding=2, accepts=False)
    answers = [nsqd("a.0", old), nsqd("b.0", new), nsqd("c.0", group("holder", epoch=2))]
    (found,) = copies.groups(answers)
    assert (found.owner.nsqd, found.state) == ("b:1", "moving messages")
    assert risks(answers) == [
        ("warning", "2 of 3 copies respond for orders on b:1."),
        ("notice", "After a takeover, messages are being moved to orders on b:1."),
    ]
    empty = group("owner", owner="b.0", epoch=2, closed=True, topics=[])
    text = "After a takeover, b:1 is moving the messages of group g."
    assert risks([nsqd("b.0", empty)]) == [("notice", text)]


def test_etcd_does_not_respond() -> None:
    text = "etcd does not respond to a:1, b:1, c:1: these nsqds cannot take over groups or"
    answers = cluster(group("owner"), etcd=False)
    assert risks(answers) == [("warning", f"{text} replace lost copies.")]
    assert page(answers).table("Nodes")[1][-1] == "does not respond"
    text = "etcd does not respond to a:1: this nsqd cannot take over groups or"
    answers = [nsqd("a.0", etcd=False), nsqd("b.0")]
    assert risks(answers) == [("warning", f"{text} replace lost copies.")]


def test_groups_that_are_not_open() -> None:
    text = "Topics with copies cannot be used yet on a:1: the groups are not open."
    assert risks([nsqd("a.0", ready=False)]) == [("warning", text)]


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
    assert copies.of_nsqd(answer) == NodeCopies("a:1", 1, 2, 3000, True)
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
