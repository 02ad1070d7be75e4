"""Responses to /copies for tests: a group that a.0 owns, and workers on a:1, b:1 and c:1."""

from typing import Any

from nsqcy.cluster.copies import Workers

NODES = ("a.0", "b.0", "c.0")
NSQDS = {"a.0": "a:1", "b.0": "b:1", "c.0": "c:1"}


def group(role: str, **fields: Any) -> dict[str, Any]:
    """Return the report of a node with this role about group g."""
    found = {
        "group": "g",
        "role": role,
        "owner": "a.0",
        "members": list(NODES),
        "epoch": 1,
        "copies": 3,
        "min_copies": 2,
        "durability": "os",
        "closed": False,
        "bytes": 2048,
        "whole": True,
        "topics": ["orders"],
    }
    if role == "owner":
        found |= {"responding": 3, "accepts": True, "joining": "", "waiting": 0}
    return found | fields


def worker(node: str, *groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "worker": 0,
        "node": node,
        "etcd": True,
        "ready": True,
        "sessions": list(NODES),
        "groups": list(groups),
    } | fields


def with_holders(owner: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """Return the workers of the owner, which reports this group, and of the holders."""
    holder = group("holder", epoch=owner["epoch"], bytes=1024)
    return [
        worker("a.0", owner, **fields),
        *(worker(node, holder, **fields) for node in NODES[1:]),
    ]


def placed(*workers: dict[str, Any]) -> Workers:
    """Return the workers with the addresses of their nsqds."""
    return [(NSQDS[each["node"]], each) for each in workers]
