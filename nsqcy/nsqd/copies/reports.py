"""A worker's reports about its groups: the objects in /copies and the figures in /metrics."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from nsqcy.copies.group import Group
from nsqcy.copies.owner import Owner
from nsqcy.nsqd.copies.copy_files import CopyFiles

ALL_FILES = "*"
"""Used instead of topic names if the copy could not be opened."""
ROLES = ("owner", "holder", "member")


def describe(
    group: Group, role: str, copy: CopyFiles | None, owner: Owner | None
) -> dict[str, Any]:
    """Return a group's entry in /copies."""
    found: dict[str, Any] = {
        "group": group.id,
        "role": role,
        "owner": group.owner,
        "members": list(group.members),
        "epoch": group.epoch,
        "copies": group.copies,
        "min_copies": group.min_copies,
        "durability": group.durability,
        "closed": group.closed,
    }
    if copy is not None:
        found["bytes"] = copy.table.total()
        found["whole"] = copy.whole
        found["damaged"] = sorted(copy.damaged)
        found["unreadable"] = sorted(copy.unreadable)
    if owner is not None:
        found["responding"] = owner.responding()
        found["accepts"] = owner.accepts()
        found["joining"] = owner.joiner
        found["waiting"] = _waiting(owner)
    return found


def figures(owners: Sequence[Owner]) -> dict[str, int]:
    """Return the figures of the groups that this process owns."""
    return {
        "short": sum(not owner.group.closed and not owner.accepts() for owner in owners),
        "missing": sum(owner.group.copies - owner.responding() for owner in owners),
        "waiting": sum(_waiting(owner) for owner in owners),
    }


def roles(found: Iterable[str]) -> dict[str, int]:
    """Return the number of groups in each role."""
    counts = Counter(found)
    return {role: counts[role] for role in ROLES}


def _waiting(owner: Owner) -> int:
    return owner.position - max(owner.committed, 0)
