"""Transitions of a group that the simulation does not cover."""

import pytest

from nsqcy.copies.group import Group

GROUP = Group("g", 3, "a", "a/1", ("a", "b", "c"), 3, 2, "n", "os")


@pytest.mark.parametrize(
    ("nodes", "members", "closed"),
    [
        ({"a", "x"}, ("a",), False),
        ({"c", "a"}, ("a", "c"), False),
        ({"b", "c"}, ("b", "c"), True),
        ({"c"}, ("c",), True),
    ],
)
def test_the_first_remaining_member_owns_a_forced_group(
    nodes: set[str], members: tuple[str, ...], closed: bool
) -> None:
    found = GROUP.forced(nodes, "m")
    assert (found.owner, found.members, found.closed) == (members[0], members, closed)
    assert (found.session, found.nonce, found.epoch) == ("", "m", 3)
    assert found.is_complete == (len(members) >= 2)
