"""A cluster's groups, merged from its nsqds' responses, and what is at risk. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nsqcy.cli.copies.answers import Answer
from nsqcy.cluster import copies

OK = "ok"
NEW = "being created"
NO_OWNER = "no owner"
NOT_QUERIED = "owner not queried"
MOVING = "moving messages"
REFUSES = "refuses publishes"
LACKS = "lacks copies"


@dataclass(frozen=True)
class Node:
    """A worker that keeps copies."""

    name: str
    address: str
    """HTTP address of its nsqd."""
    etcd: bool
    """Whether etcd responds to it."""
    ready: bool
    """Whether it has opened its groups."""
    trouble: str = ""
    """Why its copies are not protected although etcd responds."""


@dataclass(frozen=True)
class Group:
    """A group, as described by its owner or by the holder that has its latest value."""

    id: str
    owner: str
    owner_address: str
    """Empty if the owner's nsqd did not respond."""
    members: Sequence[str]
    copies: int
    min_copies: int
    durability: str
    epoch: int
    closed: bool
    responding: int | None
    """Members that respond to the owner, including itself; None if the owner did not respond."""
    accepts: bool
    joining: str
    states: Sequence[str]
    topics: Sequence[str]
    bytes: int
    present: Sequence[str]
    """Members that have a session."""


@dataclass(frozen=True)
class Cluster:
    nodes: Sequence[Node]
    groups: Sequence[Group]
    risks: Sequence[str]
    answered: int
    """Number of nsqds that responded."""


def merged(answers: Sequence[Answer]) -> Cluster:
    workers = [(answer.address, worker) for answer in answers for worker in answer.workers]
    nodes = [
        Node(worker["node"], address, worker["etcd"], worker["ready"], copies.trouble(worker))
        for address, worker in workers
    ]
    addresses = {node.name: node.address for node in nodes}
    sessions = copies.sessions([worker for _, worker in workers])
    views: dict[str, list[dict[str, Any]]] = {}
    for _, worker in workers:
        for view in worker["groups"]:
            views.setdefault(view["group"], []).append(view)
    groups = [_group(its, addresses, sessions) for _, its in sorted(views.items())]
    alive = [answer for answer in answers if not answer.error]
    risks = [
        *(f"{each.daemon} {each.address}: {each.error}" for each in answers if each.error),
        *_etcd_risks(nodes),
        *(
            f"node {shown(node.name, node.address)}: {node.trouble}; publishes are refused"
            for node in nodes
            if node.trouble
        ),
        *(
            f"node {shown(node.name, node.address)} has not opened its groups yet"
            for node in nodes
            if not node.ready
        ),
        *(risk for group in groups for risk in _risks(group, addresses)),
    ]
    return Cluster(nodes, groups, risks, len(alive))


def shown(node: str, address: str) -> str:
    return f"{address} ({node})" if address else node


def as_json(cluster: Cluster) -> dict[str, Any]:
    return {
        "nodes": [
            {"node": each.name, "address": each.address, "etcd": each.etcd, "ready": each.ready}
            for each in cluster.nodes
        ],
        "groups": [
            {
                "group": each.id,
                "owner": each.owner,
                "owner_address": each.owner_address,
                "members": list(each.members),
                "members_with_session": list(each.present),
                "epoch": each.epoch,
                "copies": each.copies,
                "min_copies": each.min_copies,
                "durability": each.durability,
                "closed": each.closed,
                "responding": each.responding,
                "accepts": each.accepts,
                "joining": each.joining,
                "state": ", ".join(each.states),
                "topics": list(each.topics),
                "bytes": each.bytes,
            }
            for each in cluster.groups
        ],
        "risks": list(cluster.risks),
    }


# --- groups -------------------------------------------------------------------------------------


def _group(views: Sequence[dict[str, Any]], addresses: dict[str, str], sessions: set[str]) -> Group:
    best = max(views, key=copies.rank)
    is_owners = best["role"] == copies.OWNER
    owner = best["owner"]
    return Group(
        id=best["group"],
        owner=owner,
        owner_address=addresses.get(owner, ""),
        members=best["members"],
        copies=best["copies"],
        min_copies=best["min_copies"],
        durability=best["durability"],
        epoch=best["epoch"],
        closed=best["closed"],
        responding=best["responding"] if is_owners else None,
        accepts=best["accepts"],
        joining=best["joining"],
        states=_states(best, is_queried=owner in addresses, is_back=owner in sessions),
        topics=sorted({topic for view in views for topic in view["topics"]}),
        bytes=best["bytes"] if is_owners else max(view["bytes"] for view in views),
        present=[node for node in best["members"] if node in sessions],
    )


def _states(view: dict[str, Any], *, is_queried: bool, is_back: bool) -> list[str]:
    if view["role"] == copies.NEW:
        return [NEW]
    if view["role"] != copies.OWNER:
        return [NOT_QUERIED if is_back and not is_queried else NO_OWNER]
    states = []
    if view["closed"]:
        states.append(MOVING)
    elif not view["accepts"]:
        states.append(REFUSES)
    if view["joining"]:
        states.append(f"joining {view['joining']}")
    elif view["responding"] < view["copies"] and not states:
        states.append(LACKS)
    return states or [OK]


# --- risks --------------------------------------------------------------------------------------


def _etcd_risks(nodes: Sequence[Node]) -> Iterable[str]:
    away = [shown(node.name, node.address) for node in nodes if not node.etcd]
    if away and len(away) == len(nodes):
        yield (
            "etcd does not respond to any node: publishes and deliveries continue, but no group can"
            " get a new owner or a new member"
        )
    else:
        for name in away:
            yield f"etcd does not respond to {name}: it cannot take over groups"


def _risks(group: Group, addresses: dict[str, str]) -> Iterable[str]:
    name = f"topic {group.topics[0]}" if len(group.topics) == 1 else f"group {group.id}"
    if len(group.topics) > 1:
        name = f"topics {copies.listed(group.topics)}"
    if NEW in group.states:
        yield f"{name}: publishes are refused until the group has been created"
    elif NOT_QUERIED in group.states:
        yield (
            f"{name}: unknown, because the owner's nsqd ({group.owner}) was not queried or did not"
            " answer"
        )
    elif group.responding is None:
        yield _ownerless(group, name, addresses)
    elif group.responding < group.copies:
        yield f"{name}: {_too_few(group, group.responding, addresses)}"
    elif REFUSES in group.states:
        yield f"{name}: publishes are refused while the group changes owners"


def _too_few(group: Group, responding: int, addresses: dict[str, str]) -> str:
    verb = "responds" if responding == 1 else "respond"
    text = f"{responding} of {group.copies} copies {verb}"
    if group.closed:
        moving = "its messages are being moved to another log"
        text += f", {moving if group.topics else 'the group is ending: no messages are left'}"
    elif not group.accepts:
        text += ", publishes are refused"
    if group.joining:
        text += f"; joining {shown(group.joining, addresses.get(group.joining, ''))}"
    return text


def _ownerless(group: Group, name: str, addresses: dict[str, str]) -> str:
    absent = [node for node in group.members if node not in group.present]
    back = [shown(node, addresses.get(node, "")) for node in group.present]
    text = f"{name}: group {group.id} has no owner, so its messages are not delivered"
    if not absent:
        return f"{text}; all members are back: one of them will take over"
    text += f"; absent: {', '.join(absent)}; back: {', '.join(back) or 'none'}"
    return f"{text}. If the absent nodes never return: nsqcy copies force {group.id} --config=FILE"
