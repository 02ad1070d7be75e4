"""JSON of nsqadmin's API: groups of copies and their risks. Pure."""

from collections.abc import Sequence

from nsqcy.nsqadmin.api.stats_json import Json
from nsqcy.nsqadmin.cluster import copies
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.copies import Group, Member


def copies_json(answers: Sequence[NodeAnswer]) -> Json:
    """Return the groups, combined from the answers of all nsqds, and the risks, worst first."""
    groups = copies.groups(answers)
    return {
        "risks": [each._asdict() for each in copies.risks(groups, answers)],
        "groups": [_group(each) for each in groups],
    }


def _group(group: Group) -> Json:
    return {
        "group": group.id,
        "state": group.state,
        "topics": list(group.topics),
        "owner": _member(group.owner),
        "members": [_member(each) for each in group.members],
        "responding": group.responding,
        "copies": group.copies,
        "min_copies": group.min_copies,
        "durability": group.durability,
        "bytes": group.bytes,
        "joining": group.joining,
        "closed": group.is_closed,
    }


def _member(member: Member) -> Json:
    return {"id": member.id, "node": member.nsqd or None, "whole": member.is_whole}
