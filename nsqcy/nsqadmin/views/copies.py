"""The copies page: risks, groups with their nodes, and nsqds with their groups.

Pure: maps fetched data to template values.
"""

from collections.abc import Mapping, Sequence

from nsqcy.cluster.copies import COMPLETE, STATES, Group
from nsqcy.nsqadmin.cluster import copies
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.copies import NodeCopies
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.tables import Columns, Table, table

MAX_TOPICS = 3  # maximum number of a group's topics to show without a fold

_COLUMNS: Columns[Group] = [
    ("Topics", lambda row: ", ".join(row.topics)),
    ("Owner", lambda row: row.owner.name),
    ("Members", lambda row: len(row.members)),
    ("Copies", lambda row: -1 if row.responding is None else row.responding),
    ("Minimum", lambda row: row.min_copies),
    ("Durability", lambda row: row.durability),
    ("Bytes", lambda row: row.bytes),
    ("State", lambda row: float(len(STATES) - STATES.index(row.state))),
    ("Group", lambda row: row.id),
]
_NODE_COLUMNS: Columns[NodeCopies] = [
    ("NSQd Host", lambda row: row.nsqd),
    ("Groups Owned", lambda row: row.owned),
    ("Groups Held", lambda row: row.held),
    ("Bytes", lambda row: row.bytes),
    ("etcd", lambda row: float(row.has_etcd)),
]


def page(
    answers: Sequence[NodeAnswer], location: Location, earlier: Mapping[str, str] | None = None
) -> View:
    """earlier: addresses of nsqds by node id, for nodes that currently do not respond."""
    groups = copies.groups(answers, earlier)
    nodes = [each for each in map(copies.of_nsqd, answers) if each is not None]
    values = {
        "risks": copies.risks(groups, answers),
        "groups": _by_id(table("Groups", _COLUMNS, groups, location)),
        "nodes": table("Nodes", _NODE_COLUMNS, nodes),
        "refused": [each for each in answers if not each.is_done and not each.is_missing],
        "complete": COMPLETE,
        "max_topics": MAX_TOPICS,
    }
    return View("copies.html", values)


def _by_id(found: Table[Group]) -> Table[Group]:
    """Return the table with rows identified by group, because topics do not identify a row."""
    names = [each.id for each in found.rows]
    return Table(found.caption, found.headings, found.rows, names)
