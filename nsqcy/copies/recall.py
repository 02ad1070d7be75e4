"""A node's memory of the registry's groups, and how lost values return to the registry.

A node stores the latest value of each of its groups before it acts on the value. A group that the
node remembers but the registry lacks is *unregistered*: it has no protection, because no other node
could take it over. Its value is restored:

- by the process that owns the group. Only this process can have acknowledged publishes since then:
  a successor that is unknown to the process accepts none.
- otherwise from the members' statements. The latest value is used once all of its members have
  made their statements: only one of them can have acted on a later value.
- after `nsqcy copies repair`, even without the members that do not return.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nsqcy.copies.group import Group

Stamp = tuple[int, int]
"""Generation of a registry, and its revision when a value was set: larger for later values."""


class Known(NamedTuple):
    """A value that a node remembers."""

    stamp: Stamp
    group: Group


@dataclass(frozen=True, slots=True)
class Statement:
    """Everything that a node remembers. A running process keeps it in the registry while any node
    needs it."""

    known: Mapping[str, Known]
    is_repaired: bool = False
    """Whether the node may continue without members that do not return."""
    since: int = 0
    """The node remembers all values from this generation on."""
    revision: int = field(default=0, compare=False)
    """Revision of the registry when the statement was made."""


class Recall:
    """The values that a node remembers, compared with those in the registry."""

    def __init__(self, node: str, known: Mapping[str, Known], *, is_repaired: bool = False) -> None:
        self.node = node
        self.known = dict(known)
        self.is_repaired = is_repaired
        self.since = 0
        self.generation = 0
        """Generation of the registry that the process uses; 0 if there is none."""
        self.entered_at = float("-inf")
        self._registered: set[str] = set()
        self._ended: set[str] = set()
        """Groups whose ends this node has missed."""
        self._statements: Mapping[str, Statement] = {}

    # -- the registry

    def entered(self, generation: int, since: int, now: float) -> None:
        """Use another registry, whose values are not known yet.

        since: the node remembers all values from this generation on
        """
        self.leave()
        self.generation = generation
        self.since = since
        self.entered_at = now

    def leave(self) -> None:
        """Stop using the registry, and ignore all its values."""
        self._registered.clear()
        self._statements = {}

    def registered(self, group: Group, revision: int) -> bool:
        """Remember a value in the registry, if it is later than the known one; return whether it
        is."""
        self._registered.add(group.id)
        self._ended.discard(group.id)
        stamp = self.generation, revision
        old = self.known.get(group.id)
        if old is None and self.node not in group.members:
            return False
        if old is not None and old.stamp >= stamp:
            return False
        self.known[group.id] = Known(stamp, group)
        return True

    def holds(self, group: Group, stamp: Stamp) -> bool:
        """Remember a group because this node begins to hold a copy; return whether it is new."""
        if group.id in self.known:
            return False
        self.known[group.id] = Known(stamp, group)
        return True

    def listed(
        self, found: Iterable[str], revision: int, statements: Mapping[str, Statement]
    ) -> bool:
        """Compare with all groups in the registry at a revision; return whether the node has
        forgotten any that have ended."""
        limit = self.generation, revision
        later = {
            each
            for each in self._registered
            if each in self.known and self.known[each].stamp > limit
        }
        self._registered = {*found, *later}
        self._statements = statements
        ended = [
            each
            for each, known in self.known.items()
            if known.group.done
            and known.stamp[0] == self.generation
            and each not in self._registered
        ]
        for each in ended:
            del self.known[each]
        return bool(ended)

    def forget(self, group_id: str) -> bool:
        """Forget a group that has ended."""
        return self.known.pop(group_id, None) is not None

    # -- unregistered groups

    def is_registered(self, group_id: str) -> bool:
        return group_id in self._registered

    def unregistered(self) -> list[str]:
        return [
            each for each in self.known if each not in self._registered and each not in self._ended
        ]

    def unprotected(self) -> list[Group]:
        """Return the unregistered groups that this node is a member of."""
        return [
            known.group
            for group_id, known in self.known.items()
            if group_id not in self._ended and self._is_missed(self.node, known.group)
        ]

    def _is_missed(self, node: str, group: Group) -> bool:
        is_registered = group.id in self._registered
        return node in group.members and not (group.done or is_registered)

    def statement(self) -> Statement | None:
        """Return the statement that this node should have in the registry, if any."""
        is_needed = self.unprotected() or any(
            self._is_missed(node, known.group)
            for node, each in self._statements.items()
            if node != self.node
            for known in each.known.values()
        )
        if not is_needed:
            return None
        known = {each: known for each, known in self.known.items() if each not in self._ended}
        return Statement(known, self.is_repaired, self.since)

    def has_stated(self, statement: Statement | None) -> bool:
        return self._statements.get(self.node) == statement

    def agreed(self, group_id: str, session: str, nonce: str, *, is_overdue: bool) -> Group | None:
        """Return the value that this node should restore, if the members' statements suffice.

        session: this process, if its copy is whole, so that it can resume the group; otherwise ""
        is_overdue: whether to stop waiting for members that have not returned after a repair
        """
        stated = {
            node: each.known[group_id]
            for node, each in self._statements.items()
            if group_id in each.known
        }
        if not stated:
            return None
        latest = max(stated.values(), key=lambda each: each.stamp)
        group = latest.group
        if group.done:
            return group.unchanged(nonce) if self.node == min(stated) else None
        repaired = [each for each in group.members if each in stated and self._is_repaired(each)]
        if not repaired and any(self._has_seen_the_end(each, latest) for each in group.members):
            self._ended.add(group_id)
            return None
        if all(node in stated for node in group.members):
            if self.node != group.owner:
                return None
            return group.resumed(session, nonce) if session else group.unchanged(nonce)
        if is_overdue and repaired and self.node == repaired[0]:
            # With fewer than min_copies, `nsqcy copies force` may be needed as well.
            is_enough = len(repaired) >= group.min_copies
            return group.forced(repaired, nonce) if is_enough else group.released(nonce)
        return None

    def _is_repaired(self, node: str) -> bool:
        return self._statements[node].is_repaired

    def _has_seen_the_end(self, node: str, latest: Known) -> bool:
        """Return whether a member has seen the end of a group: it remembered the values of that
        time, but no longer remembers the group."""
        statement = self._statements.get(node)
        return (
            statement is not None
            and latest.group.id not in statement.known
            and latest.stamp[0] >= statement.since
            and (self.generation, statement.revision) > latest.stamp
        )
