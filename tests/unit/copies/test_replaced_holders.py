"""A holder whose process is being replaced counts as responding, so that publishes wait instead of
being refused; but only for as long as a publish would wait for it."""

from typing import Any

import pytest

from nsqcy.copies.feed import REPLACED, Status
from nsqcy.copies.group import Group
from nsqcy.copies.messages import Confirm, Have, Refuse
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Limits

GROUP = Group("g", 1, "a", "a.1", ("a", "b"), 2, 2, "n", "os")
LIMITS = Limits()


class Anything:
    """A host, or a copy without files."""

    def nonce(self) -> str:
        return "nonce"

    def files(self) -> dict[str, Any]:
        return {}

    def candidates(self, group: Group) -> list[str]:
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def join(owner: Owner, now: float) -> None:
    owner.opened("b", now)
    owner.received("b", Have({}), now)
    owner.received("b", Confirm(owner.position), now)


@pytest.fixture
def owner() -> Owner:
    owner = Owner(GROUP, "a", Anything(), Anything(), LIMITS, 0.0)
    join(owner, 0.0)
    assert owner.accepts() and owner.has_fed({"a", "b"})
    return owner


def test_it_counts_as_responding_until_it_is_back(owner: Owner) -> None:
    owner.received("b", Refuse(REPLACED), 1.0)
    assert owner.feeds["b"].status == Status.CLOSED
    owner.tick(2.0)
    assert owner.accepts() and not owner.has_fed({"a", "b"})
    position = owner.write("file", 0, b"data", 2.0)
    assert owner.committed < position
    join(owner, 3.0)
    assert owner.committed == position
    owner.disconnected("b", 4.0)
    owner.tick(4.0)
    assert not owner.accepts()


def test_it_counts_only_for_a_while(owner: Owner) -> None:
    owner.received("b", Refuse(REPLACED), 1.0)
    for now in range(2, 3 + int(LIMITS.copy_timeout)):
        owner.tick(float(now))
    assert not owner.accepts()


@pytest.mark.parametrize("reason", ["leaving", "full"])
def test_others_do_not_count(owner: Owner, reason: str) -> None:
    owner.received("b", Refuse(reason), 1.0)
    assert not owner.accepts()


def test_a_holder_that_was_not_live_does_not_count(owner: Owner) -> None:
    owner.disconnected("b", 1.0)
    owner.tick(1.0)
    owner.opened("b", 1.0)
    owner.received("b", Refuse(REPLACED), 1.0)
    assert not owner.accepts()
