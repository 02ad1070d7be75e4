"""An nsqd's response to /copies: its fields, and the rules for combining several responses.

Pure. Each worker reports its groups as it sees them, so that reports of the same group can differ.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nsqcy.cluster import answers
from nsqcy.util import gojson

OWNER, NEW = "owner", "new"  # roles of the node that appends to a group; NEW: not in etcd yet

BROKEN = {
    "lost": "etcd has lost its data",
    "older": "etcd has been restored from a backup",
    "foreign": "etcd contains another registry",
}

MAX_NAMES = 3  # maximum number of names to list; the others are counted

_TEXTS: tuple[gojson.Reader, Any] = (gojson.array(answers.line, ""), [])
_NAMES: tuple[gojson.Reader, Any] = (gojson.array(answers.name, ""), [])
_GROUP: gojson.Fields = {
    "group": (answers.line, ""),
    "role": (answers.line, ""),
    "owner": (answers.line, ""),
    "members": _TEXTS,
    "epoch": (gojson.int64, 0),
    "copies": (gojson.int64, 0),
    "min_copies": (gojson.int64, 0),
    "durability": (answers.line, ""),
    "closed": (gojson.flag, False),
    "bytes": (gojson.int64, 0),
    "whole": (gojson.flag, False),
    "damaged": _TEXTS,
    "unreadable": _TEXTS,
    "topics": _NAMES,
    "responding": (gojson.int64, 0),
    "accepts": (gojson.flag, False),
    "joining": (answers.line, ""),
    "waiting": (gojson.int64, 0),
}
_WORKER: gojson.Fields = {
    "worker": (gojson.int64, 0),
    "node": (answers.line, ""),
    "etcd": (gojson.flag, False),
    "registry": (gojson.text, ""),
    "unregistered": _TEXTS,
    "ready": (gojson.flag, False),
    "sessions": _TEXTS,
    "mended": (gojson.int64, 0),
    "groups": (gojson.array(gojson.structure(_GROUP), gojson.EMPTY), []),
}
FIELDS: gojson.Fields = {
    "workers": (gojson.array(gojson.structure(_WORKER), gojson.EMPTY), []),
}


def is_owners(report: Mapping[str, Any]) -> bool:
    """Whether a group is reported by the node that appends to it."""
    return report["role"] in (OWNER, NEW)


def rank(report: Mapping[str, Any]) -> tuple[int, bool]:
    """Return a report's precedence over others of the same group. A node that was cut off may
    report an old owner; the owner's report has the most details."""
    return report["epoch"], is_owners(report)


def sessions(workers: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the nodes with a session. Workers to which etcd does not respond count only if there
    are no others: they may list sessions that have ended."""
    current = [worker for worker in workers if worker["etcd"]] or workers
    return {node for worker in current for node in worker.get("sessions", ())}


def trouble(worker: Mapping[str, Any]) -> str:
    """Return why a worker's copies are not protected although etcd responds; empty if they are."""
    count = len(worker.get("unregistered", ()))
    missing = f"etcd lacks {count} of its groups" if count else ""
    return BROKEN.get(worker.get("registry", ""), missing)


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    others = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {others} more" if others > 0 else "")
