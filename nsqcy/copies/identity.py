"""The registry's identity, and whether a given registry is the one that a node knows.

A registry may lose its data, go back to an older state, or be another cluster's. Its revision does
not reveal this: other programs' writes increase it as well. The registry therefore has a random id,
which every node stores on its disk. A registry whose contents cannot be trusted gets a new identity
with a higher generation. All earlier contents are then ignored (`nsqcy.copies.recall`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_ANCESTORS = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a registry."""

    id: str
    generation: int = 1
    ancestors: tuple[str, ...] = ()
    """Ids of the registries that this one has replaced, the latest one first."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A node's knowledge of its registry, as stored on its disk."""

    identity: Identity | None
    revision: int
    """Latest revision that the node has seen."""
    remembered: Mapping[str, int]
    """Revision of each value of this registry that the node remembers, by group."""
    mark: int
    """The node's mark in the registry: the revision of a value that the node has acted on."""
    generation: int
    """Latest generation in which the node has acted on a value."""


@dataclass(frozen=True, slots=True)
class Found:
    """The parts of a registry's contents that show whether it is the one that a node knows."""

    identity: Identity | None
    revision: int
    groups: Mapping[str, int]
    """Revision of each group's value."""
    mark: int
    """The node's mark; 0 if there is none."""


class Standing(StrEnum):
    """Relation between a registry and the one that a node knows."""

    CURRENT = "current"
    SUCCESSOR = "successor"
    """The registry has replaced the one that the node knows, or is the node's first one."""
    NEW = "new"
    """Neither the registry nor the node has an identity."""
    LOST = "lost"
    """The registry has lost its data."""
    OLDER = "older"
    """The registry has lost changes that the node has acted on."""
    FOREIGN = "foreign"
    """The registry is not the one that the node knows."""


BROKEN = frozenset({Standing.LOST, Standing.OLDER, Standing.FOREIGN})
"""The node ignores the contents of a registry with one of these relations."""


def judge(memory: Memory, found: Found) -> Standing:
    mine, theirs = memory.identity, found.identity
    if theirs is None:
        is_new = mine is None and found.revision >= memory.revision
        return Standing.NEW if is_new else Standing.LOST
    if mine is None:
        if found.revision < memory.revision:
            return Standing.OLDER
        return _newer(memory, theirs, Standing.FOREIGN)
    if theirs.id == mine.id:
        return Standing.OLDER if _is_older(memory, found) else Standing.CURRENT
    if mine.id in theirs.ancestors:
        return Standing.SUCCESSOR
    if theirs.id in mine.ancestors:
        return _newer(memory, theirs, Standing.OLDER)
    return Standing.FOREIGN


def _is_older(memory: Memory, found: Found) -> bool:
    """Return whether a registry lacks values that the node has acted on. Other values do not
    matter to the node.

    Without its mark, a node would not detect whether other nodes had changed its groups since.
    """
    return found.mark < memory.mark or any(
        found.groups.get(group_id, revision) < revision
        for group_id, revision in memory.remembered.items()
    )


def _newer(memory: Memory, theirs: Identity, otherwise: Standing) -> Standing:
    """Accept a registry, unless the node has acted on values of that generation or a later one."""
    known = memory.generation if memory.identity is None else memory.generation - 1
    return Standing.SUCCESSOR if known < theirs.generation else otherwise


def successor(memory: Memory, found: Identity | None, new_id: str) -> Identity:
    """Return the identity of the registry that replaces both the registry that was found and the
    one that the node knows. These two come first among its ancestors: a node that knows one of them
    must accept it."""
    earlier = [each for each in (found, memory.identity) if each is not None]
    generation = max(1, memory.generation, *(each.generation for each in earlier))
    ids = [each.id for each in earlier] + [name for each in earlier for name in each.ancestors]
    return Identity(new_id, generation + 1, _unique(ids))


def _unique(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:MAX_ANCESTORS]
