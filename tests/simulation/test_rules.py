"""Single rules of the state machine, each on simulated disks, without a schedule."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from nsqcy.copies.feed import Feed, Status
from nsqcy.copies.fetching import Outcome, Part
from nsqcy.copies.group import Group
from nsqcy.copies.holder import Holder
from nsqcy.copies.messages import Alive, Confirm, Fetch, Fetched, Have, Received
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Claim, Limits
from nsqcy.copies.roles_and_takeover import Worker
from simulation.clock import Clock
from simulation.disk import Disk, DiskCopy

LOG = "log.1"
ITEMS = ["1 a/1", *range(12)]
LIMITS = Limits(fill_bytes=2, fill_window=2)
GROUP = Group("g", 2, "b", "b/1", ("b", "a"), 2, 2, "n", "os", closed=True)


class Node:
    """A disk with a copy of the group. Its files are verified when the test calls `verify`."""

    def __init__(self) -> None:
        self.disk = Disk(Clock(), Random(1), "os")
        self.pending: list[Callable[[bool], object]] = []
        self.copy = self.open()

    def open(self) -> DiskCopy:
        return DiskCopy(self.disk, "g", lambda group_id, path, done: self.pending.append(done))

    def damage(self, index: int) -> None:
        self.disk.apply("g", ("damage", LOG, index, self.disk.life, 0.0))

    def mend(self, index: int) -> None:
        self.copy.write(LOG, index, [ITEMS[index]])
        self.disk.mends["g", LOG] += 1

    def verify(self) -> None:
        pending, self.pending = self.pending, []
        for done in pending:
            done(True)

    def items(self) -> list[Any]:
        return self.copy.image.files.get(LOG, [])


def owner_node() -> Node:
    node = Node()
    node.copy.own(1)
    node.copy.write(LOG, 0, ITEMS)
    return node


class Link:
    """The stream from an owner to a holder. Each message arrives at once, or never after a cut."""

    def __init__(self, owner: Node, holder: Node, feed: Feed | None = None) -> None:
        self.owner = owner
        self.is_cut = False
        self.confirmed = -1
        self.feed = feed or Feed("b", "g", self, 0.0)
        self.feed.host = self
        self.feed.status = Status.OFFERED
        self._replies: list[Any] = []
        self.holder = Holder("g", "a", 1, holder.copy, self, 0.0)
        self.run()

    def send(self, node: str, group_id: str, message: Any) -> None:
        if not self.is_cut:
            self.holder.received(message, 0.0)

    def reply(self, node: str, group_id: str, message: Any) -> None:
        self._replies.append(message)

    def run(self) -> None:
        """Exchange messages until nothing is left to send."""
        while self._replies and not self.is_cut:
            match self._replies.pop(0):
                case Have(files):
                    self.feed.align(self.owner.copy, files, 0.0)
                case Received():
                    self.feed.unacknowledged -= 1
                case Confirm(position):
                    self.confirmed = position
            self.fill()

    def fill(self) -> None:
        if self.feed.status == Status.FILLING:
            self.feed.fill(self.owner.copy, 0, LIMITS, lambda is_final: True)

    def verify(self) -> None:
        """Verify what was sent, and continue."""
        while self.owner.pending and not self.is_cut:
            self.owner.verify()
            self.fill()
            self.run()

    def cut(self) -> None:
        self.is_cut = True
        self.holder.end()
        self.feed.closed(0.0)


def test_a_fill_after_a_cut_replaces_what_was_not_verified() -> None:
    owner, holder = owner_node(), Node()
    owner.damage(5)
    first = Link(owner, holder)
    assert len(holder.items()) == len(ITEMS)
    first.cut()
    owner.mend(5)
    Link(owner, holder).verify()
    assert holder.items() == ITEMS
    assert holder.copy.whole


def test_a_fill_after_a_restart_replaces_what_was_not_verified() -> None:
    owner, holder = owner_node(), Node()
    owner.damage(5)
    Link(owner, holder).cut()
    holder.disk._written = len(holder.disk._operations)
    holder.disk.kill()
    holder.copy = holder.open()
    owner.mend(5)
    Link(owner, holder).verify()
    assert holder.items() == ITEMS


def test_a_fill_after_a_cut_keeps_what_was_verified() -> None:
    owner, holder = owner_node(), Node()
    owner.copy.write("log.2", 0, ["1 a/2", *range(6)])
    first = Link(owner, holder)
    assert len(holder.copy.image.files["log.2"]) == 7
    owner.pending[0](True)  # log.1 is verified, log.2 is not
    first.cut()
    assert {path: each.size for path, each in holder.copy.offered().items()} == {
        LOG: len(ITEMS),
        "log.2": 0,
    }


def test_a_file_is_sent_again_if_it_was_mended_while_it_was_sent() -> None:
    owner, holder = owner_node(), Node()
    owner.damage(5)
    link = Link(owner, holder)
    owner.mend(5)  # as the log or the scrubber does before the fill verifies the file
    link.verify()
    assert holder.items() == ITEMS


class Process:
    """The host of a worker that has just become the owner of a group."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.proposed: list[Group] = []
        self.is_owner = False
        self.fetches: list[tuple[str, Fetch]] = []

    def copy(self, group_id: str) -> DiskCopy:
        return self.node.copy

    def propose(self, base: Group | None, value: Group, absent: str = "") -> None:
        self.proposed.append(value)

    def owned(self, group: Group) -> None:
        self.is_owner = True

    def send(self, node: str, group_id: str, message: Any) -> None:
        if isinstance(message, Fetch):
            self.fetches.append((node, message))

    def nonce(self) -> str:
        return "m"

    def candidates(self, group: Group) -> list[str]:
        return []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


@pytest.mark.parametrize("index", [None, 0], ids=["intact", "damaged"])
def test_a_copy_that_was_damaged_during_the_takeover_is_given_back(index: int | None) -> None:
    node = owner_node()
    node.copy.whole = True
    if index is not None:
        node.damage(index)
    process: Any = Process(node)
    worker = Worker("b", "b/1", process, LIMITS)
    worker.entered(1, 0, 0.0)
    worker.updated(GROUP, 7, 0.0)
    worker.tick(1.0)
    assert process.is_owner == (index is None)
    if index is not None:
        assert process.proposed == [GROUP.released("m")]
        assert not node.copy.whole


def test_a_group_that_the_registry_lacks_accepts_no_publishes() -> None:
    group = Group("g", 1, "b", "b/1", ("b",), 1, 1, "n", "os")
    process: Any = Process(owner_node())
    worker = Worker("b", "b/1", process, LIMITS)
    worker.entered(1, 0, 0.0)
    worker.listed([(group, 7)], 7, {}, 0.0)
    owner = worker.owner("g")
    assert owner is not None and owner.accepts()
    worker.entered(2, 0, 1.0)
    assert not owner.accepts()
    worker.listed([], 9, {}, 2.0)
    assert not owner.accepts()
    worker.listed([(group.unchanged("m"), 10)], 10, {}, 3.0)
    assert owner.accepts()


@pytest.mark.parametrize(
    ("members", "answers", "outcome"),
    [
        ("abc", {"b": "missing", "c": "missing"}, Outcome.MISSING),
        ("abc", {"b": "missing", "c": "unreadable"}, Outcome.LATER),
        ("abc", {"b": "missing"}, Outcome.LATER),  # c does not respond
        ("ab", {"b": "missing"}, Outcome.LATER),  # a member that has left may have the part
    ],
)
def test_a_part_is_missing_once_all_members_have_said_so(
    members: str, answers: dict[str, str], outcome: Outcome
) -> None:
    group = Group("g", 1, "a", "a/1", tuple(members), 3, 2, "n", "os")
    node = owner_node()
    process: Any = Process(node)
    owner = Owner(group, "a", node.copy, process, LIMITS, 0.0)
    for each in answers:
        owner.opened(each, 0.0)
        owner.received(each, Have({}), 0.0)
        owner.received(each, Alive(fetches=True), 0.0)
    outcomes: list[Outcome] = []
    owner.fetch(Part(LOG, ITEMS[0], 5, 1, bool), lambda found, _: outcomes.append(found), 0.0)
    while process.fetches:
        holder, request = process.fetches.pop()
        owner.received(holder, Fetched(request.number, answers[holder]), 0.0)
    assert outcomes == [outcome]


def test_no_node_claims_a_group_that_an_owner_may_still_fill() -> None:
    node = owner_node()
    node.copy.whole = False
    process: Any = Process(node)
    worker = Worker("b", "b/1", process, LIMITS)
    worker.entered(1, 0, 0.0)
    group = Group("g", 2, "a", "a/1", ("a", "b"), 2, 2, "n", "os")
    worker.updated(group, 7, 0.0)
    for each in group.members:
        worker.claimed("g", each, Claim("n", 1, len(ITEMS)))
    worker.tick(1.0)
    assert process.proposed == []
    worker.tick(1.0 + LIMITS.unclaimed_timeout + 1.0)
    assert process.proposed == [group.released("m")]
    released = process.proposed.pop()
    worker.updated(released, 8, 50.0)
    worker.claimed("g", "a", Claim("m", 1, 0))
    worker.tick(51.0)
    assert process.proposed == [released.taken_over("b", "b/1", "m")]


def owner_of_three() -> tuple[Owner, Any]:
    """Return the owner of a group of which b and c have all changes, and its process."""
    group = Group("g", 1, "a", "a/1", ("a", "b", "c"), 3, 2, "n", "os")
    node = owner_node()
    process: Any = Process(node)
    owner = Owner(group, "a", node.copy, process, LIMITS, 0.0)
    for each in "bc":
        owner.opened(each, 0.0)
        owner.received(each, Have({}), 0.0)
        while owner.feeds[each].status != Status.LIVE:
            node.verify()
            owner.received(each, Received(), 0.0)
        owner.received(each, Confirm(0), 0.0)
    assert owner.accepts()
    return owner, process


def pass_without_c(owner: Owner, begin: float, end: float) -> None:
    """Let time pass, while b responds and c does not."""
    now = begin
    while now < end:
        now += 1.0
        owner.received("b", Alive(fetches=True), now)
        owner.received("b", Confirm(owner.position), now)
        owner.tick(now)


def test_publishes_are_refused_while_a_failed_member_cannot_leave() -> None:
    """Without the registry, the members stay the same. Publishes must not wait for c forever."""
    owner, process = owner_of_three()
    owner.write(LOG, len(ITEMS), [12], 1.0)
    owner.disconnected("c", 1.0)
    pass_without_c(owner, 1.0, 1.0 + LIMITS.copy_timeout)
    assert owner.accepts() and owner.waits(11.0)  # c may return
    pass_without_c(owner, 11.0, 12.0 + LIMITS.copy_timeout + LIMITS.retry_interval)
    assert owner.responding() == 2 and not owner.accepts()
    assert owner.committed < owner.position
    pass_without_c(owner, 24.0, 36.0)
    assert not owner.waits(36.0)
    assert {each.members for each in process.proposed} == {("a", "b")}
    proposals = len(process.proposed)
    pass_without_c(owner, 36.0, 60.0)
    assert len(process.proposed) > proposals
    owner.update(owner.group.left("c", "n2"), 60.0)
    assert owner.accepts() and owner.waits(60.0)
    assert owner.committed == owner.position
