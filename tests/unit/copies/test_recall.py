"""When a group that the registry has lost is restored, and by which node."""

from dataclasses import replace

from nsqcy.copies.group import Group
from nsqcy.copies.recall import Known, Recall, Statement

OLD = Group("g", 1, "a", "a.1", ("a", "b", "c"), 3, 2, "n", "os")
NEW = replace(OLD, epoch=2, members=("a", "b"), nonce="m")


def said(group: Group | None, at: int = 5, *, repaired: bool = False, since: int = 0) -> Statement:
    known = {} if group is None else {"g": Known((1, at), group)}
    return Statement(known, repaired, since, revision=3)


def agreed(node: str, overdue: bool = False, **statements: Statement) -> Group | None:
    recall = Recall(node, {})
    recall.entered(2, 0, 0.0)
    recall.listed([], 10, statements)
    return recall.agreed("g", "", "new", is_overdue=overdue)


def test_all_members_must_have_stated() -> None:
    assert agreed("a", a=said(OLD), b=said(OLD)) is None
    assert agreed("a", overdue=True, a=said(OLD), b=said(OLD)) is None  # not without a repair
    assert agreed("a", a=said(OLD), b=said(OLD), c=said(OLD)) == OLD.unchanged("new")
    assert agreed("b", a=said(OLD), b=said(OLD), c=said(OLD)) is None  # the owner restores it


def test_the_latest_value_and_its_members_count() -> None:
    assert agreed("a", a=said(NEW, 7), b=said(OLD)) == NEW.unchanged("new")
    assert agreed("a", a=said(OLD), c=said(OLD), b=said(NEW, 7)) == NEW.unchanged("new")


def test_the_end_of_a_group_needs_no_agreement() -> None:
    assert agreed("c", c=said(OLD.finished("m"), 7)) == OLD.finished("m").unchanged("new")


def test_a_member_that_remembers_nothing_has_seen_the_end() -> None:
    recall = Recall("a", {"g": Known((1, 5), OLD)})
    recall.entered(2, 0, 0.0)
    assert recall.unprotected() == [OLD]
    recall.listed([], 10, {"a": said(OLD), "b": said(None)})
    assert recall.agreed("g", "", "new", is_overdue=False) is None
    assert recall.unprotected() == [] and "g" in recall.known


def test_a_member_that_may_have_forgotten_values_says_nothing() -> None:
    recall = Recall("a", {"g": Known((1, 5), OLD)})
    recall.entered(2, 0, 0.0)
    recall.listed([], 10, {"a": said(OLD), "b": said(None, since=2)})
    assert recall.agreed("g", "", "new", is_overdue=False) is None
    assert recall.unprotected() == [OLD]


def test_after_a_repair_absent_members_are_given_up() -> None:
    b, c = said(OLD, repaired=True), said(OLD, repaired=True)
    assert agreed("b", b=b, c=c) is None
    assert agreed("b", True, b=said(OLD), c=said(OLD)) is None
    assert agreed("b", True, b=b, c=c) == OLD.forced(("b", "c"), "new")
    assert agreed("c", True, b=b, c=c) is None
    assert agreed("b", True, b=b) == OLD.released("new")


def test_a_value_of_an_earlier_generation_is_older() -> None:
    recall = Recall("a", {"g": Known((1, 50), OLD)})
    recall.entered(2, 0, 0.0)
    assert recall.registered(NEW, 3)
    assert recall.known["g"] == Known((2, 3), NEW) and recall.unprotected() == []
