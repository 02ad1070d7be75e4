"""A group's value in the registry, and all changes to it that may be proposed.

A group consists of one worker's copied logs that share a durability class and members. Its value
changes only through a transaction that compares the entire value. Each proposal has its own nonce,
so a value never occurs twice.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Group:
    """A group of logs, as recorded in the registry."""

    id: str
    epoch: int
    """Increases whenever a process begins to own the group."""
    owner: str
    """Node that appends to the logs, or drains them if the group is closed."""
    session: str
    """The owner's process; empty after a hand-over."""
    members: tuple[str, ...]
    """Nodes that have all committed changes, including the owner."""
    copies: int
    min_copies: int
    nonce: str
    durability: str = "memory"
    """Durability class of the group's logs: `memory`, `os` or `fsync`."""
    closed: bool = False
    """The group accepts no publishes: it was taken over, and its messages are moved to other
    logs."""
    done: bool = False
    """The group is drained: all its copies may be deleted."""

    @property
    def is_complete(self) -> bool:
        """Whether the group may commit. A complete group stays complete until it is `forced`."""
        return len(self.members) >= self.min_copies

    def resumed(self, session: str, nonce: str) -> "Group":
        """Own the group again, in a new process on the same node."""
        return replace(self, epoch=self.epoch + 1, session=session, nonce=nonce)

    def taken_over(self, node: str, session: str, nonce: str) -> "Group":
        """Make a member the owner of the group, and close the group.

        The old owner stays a member until the new owner has found that the old one does not
        respond. The old owner may have the only other copy, because the new owner may have lost its
        copy since it sent the transaction.
        """
        others = tuple(each for each in self.members if each != node)
        return replace(
            self,
            epoch=self.epoch + 1,
            owner=node,
            session=session,
            members=(node, *others),
            nonce=nonce,
            closed=True,
        )

    def released(self, nonce: str) -> "Group":
        """Let any member take over the group immediately."""
        return replace(self, session="", nonce=nonce)

    def joined(self, node: str, nonce: str) -> "Group":
        return replace(self, members=(*self.members, node), nonce=nonce)

    def left(self, node: str, nonce: str) -> "Group":
        return replace(self, members=self.without(node), nonce=nonce)

    def exchanged(self, node: str, other: str, nonce: str) -> "Group":
        """Replace the member `node` with `other`."""
        return replace(self, members=(*self.without(node), other), nonce=nonce)

    def finished(self, nonce: str) -> "Group":
        return replace(self, done=True, nonce=nonce)

    def forced(self, nodes: Collection[str], nonce: str) -> "Group":
        """Remove the members that are not among `nodes`, with all data that only they have.

        The remaining members claim the group, and the best of their copies is used. If the owner is
        removed, the group is closed: otherwise, it would open topics on a node that has other
        topics with the same names. The group may be left with fewer than `min_copies` members. It
        commits once others have joined. At least one member must be among `nodes`.
        """
        members = tuple(each for each in self.members if each in nodes)
        owner = self.owner if self.owner in members else members[0]
        return replace(
            self,
            owner=owner,
            session="",
            members=members,
            nonce=nonce,
            closed=self.closed or owner != self.owner,
        )

    def unchanged(self, nonce: str) -> "Group":
        """Change only the nonce, so that all other proposals based on this value fail."""
        return replace(self, nonce=nonce)

    def without(self, node: str) -> tuple[str, ...]:
        """Return the other members."""
        return tuple(each for each in self.members if each != node)
