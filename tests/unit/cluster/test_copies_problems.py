"""Groups and problems of topics with copies, for reports that agree, differ or are missing."""

from typing import Any

import pytest

from nsqcy.cluster import copies
from nsqcy.cluster.copies import MISSING, REFUSING, Group
from nsqcy.cluster.problems import Place, Problem, Severity
from support.copies_reports import NODES, NSQDS, group, placed, with_holders, worker

NOTE, WARNING, ERROR = Severity

LEFT = ["b.0", "c.0"]
LOST_NODE = "see docs/runbooks/lost-node.md"
CHECK_DISK = "check the disk; see docs/runbooks/damaged-copies.md"


def groups(*workers: dict[str, Any]) -> list[Group]:
    return copies.groups(placed(*workers))


def problems(*workers: dict[str, Any]) -> list[Problem]:
    return copies.problems(groups(*workers), placed(*workers))


def judged(*workers: dict[str, Any]) -> list[tuple[Severity, str]]:
    return [(each.severity, each.text) for each in problems(*workers)]


def states(*workers: dict[str, Any]) -> list[str]:
    return [each.state for each in groups(*workers)]


def test_a_healthy_group() -> None:
    workers = with_holders(group("owner"))
    (found,) = groups(*workers)
    assert (found.state, found.bytes, found.responding) == ("complete", 2048, 3)
    assert [each.full_name for each in found.members] == ["a:1 (a.0)", "b:1 (b.0)", "c:1 (c.0)"]
    assert all(each.has_session and each.answers and each.is_whole for each in found.members)
    assert problems(*workers) == []


SHORT = {"responding": 1, "accepts": False}
TAKEN = {"closed": True, "accepts": False}
MOVING = "its messages are being moved to another log"
TOO_FEW = "at least 2 must respond: see docs/runbooks/too-few-copies.md"
HANDOVER = (
    "its owner is handing the group over, or a lost member cannot leave it until etcd responds:"
    " see docs/runbooks/etcd-away.md"
)
PERSISTS = f"if this persists, check firewalls and the log; {LOST_NODE}"
MACHINES = (
    "only 3 nsqds have a session in etcd: start or add nsqds with the same --cluster, or lower"
)


@pytest.mark.parametrize(
    ("fields", "state", "severity", "text", "advice"),
    [
        (SHORT, REFUSING, ERROR, "1 of 3 copies responds, publishes are refused", TOO_FEW),
        (
            *(SHORT | {"joining": "d.0"}, REFUSING, ERROR),
            *("1 of 3 copies responds, publishes are refused; joining d.0", TOO_FEW),
        ),
        (
            *({"accepts": False}, REFUSING, ERROR),
            *("publishes are refused while the group changes owners", HANDOVER),
        ),
        (
            *(SHORT | {"responding": 2}, REFUSING, ERROR),
            *("2 of 3 copies respond, publishes are refused", HANDOVER),
        ),
        (
            *({"responding": 2}, MISSING, WARNING, "2 of 3 copies respond"),
            f"if one more fails, publishes are refused; {PERSISTS}",
        ),
        (
            *({"responding": 2, "min_copies": 1, "joining": "c.0"}, MISSING, WARNING),
            *("2 of 3 copies respond; joining c:1 (c.0)", PERSISTS),
        ),
        (
            *({"copies": 5}, MISSING, WARNING, "3 of 5 copies respond"),
            f"{MACHINES} copies",
        ),
        (
            *(TAKEN | {"responding": 2}, copies.MOVING, WARNING),
            *(f"2 of 3 copies respond, {MOVING}", PERSISTS),
        ),
        (
            TAKEN,
            copies.MOVING,
            NOTE,
            MOVING,
            f"this follows a takeover; if it persists, {LOST_NODE}",
        ),
    ],
)
def test_groups_with_an_owner(
    fields: dict[str, Any], state: str, severity: Severity, text: str, advice: str
) -> None:
    (found,) = problems(*with_holders(group("owner", **fields)))
    text = f"topic orders: {text}"
    assert found == (
        severity,
        found.kind,
        Place("orders", node="a:1", group="g"),
        state,
        text,
        advice,
    )
    assert copies.text_with_owner(found) == f"{text} (owner: a:1)"


def test_many_topics_are_counted() -> None:
    (found,) = groups(worker("a.0", group("owner", topics=list("vzwyx"))))
    assert found.title == "topics v, w, x and 2 more"


def test_a_closed_group_without_topics_ends() -> None:
    view = group("owner", closed=True, accepts=False, responding=2, topics=[])
    text = "group g: 2 of 3 copies respond, the group is ending: no messages are left"
    assert judged(worker("a.0", view)) == [(WARNING, text)]


def test_a_group_that_etcd_does_not_have_yet() -> None:
    found = worker("a.0", group("new", topics=[]), ready=False)
    assert states(found) == ["refuses publishes"]
    assert judged(found) == [
        (WARNING, "node a:1 (a.0) has not opened its groups yet"),
        (ERROR, "group g: publishes are refused until the group has been created"),
    ]


def test_a_group_without_an_owner() -> None:
    """The owner's session has ended, and no member has taken over yet."""
    holders = [worker(node, group("holder"), sessions=LEFT) for node in LEFT]
    assert states(*holders) == ["no owner"]
    (found,) = problems(*holders)
    assert found.severity == ERROR
    assert found.advice == (
        "this is normal for about a second during a takeover; if it persists for 30 s (longer than"
        " --copies-lease), see docs/runbooks/lost-node.md"
    )
    assert (
        copies.text_with_owner(found)
        == found.text
        == (
            "topic orders: group g has no owner, so its messages are not delivered; absent: a.0;"
            " back: b:1 (b.0), c:1 (c.0). If this persists for 30 s (longer than --copies-lease),"
            " and the absent nodes never return: nsqcy copies force g --config=FILE"
        )
    )
    holders = [worker(node, group("member", whole=False), sessions=LEFT) for node in LEFT]
    (found,) = problems(*holders)
    assert found.advice.endswith(
        "no responding member has a complete copy, so all members must return"
    )


def test_an_owner_that_has_not_resumed_its_group() -> None:
    workers = [worker("a.0", group("member")), worker("b.0", group("member"))]
    assert states(*workers) == ["no owner"]
    assert judged(*workers)[0][1].endswith("all members are back: one of them will take over")


def test_a_group_without_files_is_no_loss() -> None:
    found = worker("b.0", group("holder", bytes=0), sessions=["b.0"])
    assert [severity for severity, _ in judged(found)] == [NOTE]


def test_the_nsqd_of_the_owner_may_not_answer() -> None:
    found = worker("b.0", group("holder"))
    assert states(found) == ["owner does not answer"]
    text = "topic orders: unknown, because the owner's nsqd (a.0) was not queried or did not answer"
    assert judged(found) == [(WARNING, text)]


def test_nodes_that_have_answered_before_keep_their_addresses() -> None:
    (found,) = copies.groups(placed(*with_holders(group("owner"))[1:]), NSQDS)
    assert (found.owner.full_name, found.owner.answers) == ("a:1 (a.0)", False)
    assert found.state == "owner does not answer"


def test_sessions_of_a_worker_without_etcd_are_old() -> None:
    current = worker("b.0", group("holder"), sessions=LEFT)
    old = worker("c.0", group("holder"), etcd=False)
    assert states(current, old) == ["no owner"]
    assert states(old) == ["owner does not answer"]


def test_the_latest_value_of_a_group_counts() -> None:
    """The old owner was cut off and still reports that it owns the group."""
    old = worker("a.0", group("owner"), etcd=False, sessions=list(NODES))
    now = {"owner": "b.0", "epoch": 2, "closed": True, "accepts": False}
    new = worker("b.0", group("owner", **now), sessions=LEFT)
    (found,) = groups(old, new)
    assert (found.owner.nsqd, found.state) == ("b:1", "moving messages")
    assert [each.id for each in found.members if each.has_session] == LEFT


def test_topics_of_holders_count_without_an_owner() -> None:
    holders = [
        worker("b.0", group("holder", topics=["mails"])),
        worker("c.0", group("holder", topics=["orders", "mails"])),
    ]
    (found,) = groups(*holders)
    assert found.topics == ["mails", "orders"]
    (found,) = groups(worker("a.0", group("owner")), *holders)
    assert found.topics == ["orders"]


def test_etcd_does_not_respond() -> None:
    text = "etcd does not respond to a:1 (a.0): it cannot take over groups"
    assert judged(worker("a.0", etcd=False), worker("b.0")) == [(ERROR, text)]
    text = "etcd does not respond to any node: publishes and deliveries continue, except in"
    text += " groups that a lost node must leave; no group can get a new owner or a new member"
    assert judged(worker("a.0", etcd=False), worker("b.0", etcd=False)) == [(ERROR, text)]


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({"registry": "older"}, "etcd has been restored from a backup"),
        ({"registry": "current", "unregistered": ["g"]}, "etcd lacks 1 of the node's groups"),
    ],
)
def test_a_registry_that_cannot_be_used(fields: dict[str, Any], trouble: str) -> None:
    (found,) = problems(worker("a.0", **fields))
    assert (found.severity, found.label) == (ERROR, trouble)
    assert found.text == f"node a:1 (a.0): {trouble}; publishes are refused"
    assert found.advice == "see docs/runbooks/etcd-replaced.md"


def test_files_that_are_damaged() -> None:
    """Files and parts of all workers of an nsqd are reported together."""
    files = {"damaged": ["t.topic/1.seg"], "unreadable": ["*"]}
    one = worker("a.0", group("owner", **files), mended=2)
    other = worker("a.1", group("owner", group="h", owner="a.1", **files), mended=5)
    workers = [("a:1", one), ("a:1", other), ("b:1", worker("b.0"))]
    found = copies.problems(copies.groups(workers), workers)
    assert [(each.severity, each.text, each.advice) for each in found] == [
        (
            ERROR,
            "nsqd a:1 has damaged copies, and no other responding copy has the damaged parts"
            " intact: g/t.topic/1.seg, h/t.topic/1.seg",
            CHECK_DISK,
        ),
        (ERROR, "nsqd a:1 cannot read copies: g/*, h/*", CHECK_DISK),
        (
            WARNING,
            "nsqd a:1 has replaced 7 damaged parts of copies since its start",
            f"no message is lost: {CHECK_DISK}",
        ),
    ]


def test_a_node_that_started_without_etcd_does_not_know_what_etcd_lacks() -> None:
    started = worker("b.0", etcd=False) | {"unregistered": ["g"]}
    found = [text for _, text in judged(worker("a.0", etcd=False), started)]
    assert len(found) == 1 and found[0].startswith("etcd does not respond to any node")
    away = worker("b.0") | {"unregistered": ["g"]}
    assert any("etcd lacks 1" in text for _, text in judged(worker("a.0"), away))
