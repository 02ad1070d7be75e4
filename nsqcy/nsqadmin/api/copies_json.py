"""JSON for nsqadmin's API: groups of copies and their risks. Pure."""

from collections.abc import Mapping, Sequence

from nsqcy.cluster.copies import Group, Member
from nsqcy.nsqadmin.api.stats_json import Json
from nsqcy.nsqadmin.cluster import copies
from nsqcy.nsqadmin.cluster.answers import NodeAnswer


def copies_json(answers: Sequence[NodeAnswer], earlier: Mapping[str, str] | None = None) -> Json:
    """Return the groups, combined from all nsqds' responses, and the risks, worst first.

    earlier: addresses of nsqds by node id, for nodes that currently do not respond
    """
    groups = copies.groups(answers, earlier)
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
        "joining": group.joining.id,
        "closed": group.is_closed,
    }


def _member(member: Member) -> Json:
    return {
        "id": member.id,
        "node": member.nsqd or None,
        "answers": member.answers,
        "whole": member.is_whole,
    }
