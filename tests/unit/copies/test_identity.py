"""A node's relation to a registry, from the registry's identity and the values that the node has
acted on."""

import pytest

from nsqcy.copies.identity import (
    MAX_ANCESTORS,
    Found,
    Identity,
    Memory,
    Standing,
    judge,
    successor,
)

MINE = Identity("b", 2, ("a",))
MEMORY = Memory(MINE, 50, {"g": 40}, 40, 2)


def found(identity: Identity | None, groups: int = 40, mark: int = 40, revision: int = 90) -> Found:
    return Found(identity, revision, {"g": groups}, mark)


@pytest.mark.parametrize(
    ("registry", "standing"),
    [
        (found(MINE), Standing.CURRENT),
        (found(MINE, groups=60, mark=40), Standing.CURRENT),
        (found(MINE, revision=45), Standing.CURRENT),  # no relevant data is lost
        (found(MINE, groups=39), Standing.OLDER),
        (found(MINE, groups=60, mark=39), Standing.OLDER),
        (found(None), Standing.LOST),
        (found(Identity("c", 3, ("b", "a"))), Standing.SUCCESSOR),
        (found(Identity("a")), Standing.OLDER),
        (found(Identity("x", 9)), Standing.FOREIGN),
    ],
)
def test_a_node_that_knows_a_registry(registry: Found, standing: Standing) -> None:
    assert judge(MEMORY, registry) is standing


def test_an_ancestor_is_used_again_if_nothing_has_happened_since() -> None:
    assert judge(Memory(MINE, 0, {}, 0, 1), found(Identity("a"))) is Standing.SUCCESSOR


@pytest.mark.parametrize(
    ("memory", "registry", "standing"),
    [
        (Memory(None, 0, {}, 0, 0), found(None), Standing.NEW),
        (Memory(None, 0, {}, 0, 0), found(Identity("x")), Standing.SUCCESSOR),
        # Values from an older version, which recorded only revisions.
        (Memory(None, 50, {}, 0, 0), found(None), Standing.NEW),
        (Memory(None, 50, {}, 0, 0), found(None, revision=49), Standing.LOST),
        (Memory(None, 50, {}, 0, 0), found(Identity("x"), revision=49), Standing.OLDER),
        # After a repair.
        (Memory(None, 0, {}, 0, 2), found(Identity("x", 3)), Standing.SUCCESSOR),
        (Memory(None, 0, {}, 0, 2), found(Identity("x", 2)), Standing.FOREIGN),
        (Memory(None, 0, {}, 0, 2), found(None), Standing.NEW),
    ],
)
def test_a_node_that_knows_none(memory: Memory, registry: Found, standing: Standing) -> None:
    assert judge(memory, registry) is standing


def test_a_successor_is_of_a_later_generation_than_both() -> None:
    assert successor(MEMORY, Identity("x", 7, ("w",)), "n") == Identity(
        "n", 8, ("x", "b", "w", "a")
    )
    assert successor(MEMORY, None, "n") == Identity("n", 3, ("b", "a"))


def test_all_nodes_accept_a_successor_after_many() -> None:
    """A registry that was replaced often loses its data again. Some nodes know the latest identity;
    others know an earlier one, from a backup. Nodes must not replace each other's identities
    forever."""
    identities = [Identity("0")]
    for number in range(1, 2 * MAX_ANCESTORS):
        memory = Memory(identities[-1], 5, {}, 0, 0)
        identities.append(successor(memory, identities[-1], str(number)))
    *_, backup, latest = identities
    new = successor(Memory(latest, 5, {}, 0, 0), backup, "new")
    for each in (latest, backup):
        assert judge(Memory(each, 5, {}, 0, 0), Found(new, 7, {}, 0)) is Standing.SUCCESSOR
