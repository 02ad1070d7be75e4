"""Registry values as JSON."""

import json
from typing import Any

from nsqcy.copies.group import Group
from nsqcy.copies.ports import Claim

FORMAT = 1
DURABILITIES = ("memory", "os", "fsync")

_GROUP: dict[str, type] = {
    "epoch": int,
    "owner": str,
    "session": str,
    "members": list,
    "copies": int,
    "min_copies": int,
    "durability": str,
    "nonce": str,
    "closed": bool,
    "done": bool,
}
_CLAIM: dict[str, type] = {"nonce": str, "epoch": int, "size": int}


class InvalidValue(ValueError):
    """A registry value that this version cannot use."""


def encode_group(group: Group) -> bytes:
    """Return a group's value, without the id, which is in the key."""
    return _encoded({name: getattr(group, name) for name in _GROUP})


def decode_group(group_id: str, data: bytes) -> Group:
    """Return a group. Raises InvalidValue."""
    fields = _decoded(data, _GROUP)
    members = fields.pop("members")
    if not members or not all(isinstance(each, str) for each in members):
        raise InvalidValue("members: expected a list of nodes")
    if len(set(members)) < len(members):
        raise InvalidValue("members: a node occurs twice")
    group = Group(id=group_id, members=tuple(members), **fields)
    if group.owner not in group.members:
        raise InvalidValue("owner: expected one of the members")
    if group.epoch < 1:
        raise InvalidValue("epoch: expected at least 1")
    if not 1 <= group.min_copies <= group.copies:
        raise InvalidValue("min_copies: expected at least 1 and at most copies")
    if group.durability not in DURABILITIES:
        raise InvalidValue(f"durability: expected one of {', '.join(DURABILITIES)}")
    return group


def encode_claim(claim: Claim) -> bytes:
    return _encoded({name: getattr(claim, name) for name in _CLAIM})


def decode_claim(data: bytes) -> Claim:
    """Return a claim. Raises InvalidValue."""
    return Claim(**_decoded(data, _CLAIM))


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def _decoded(data: bytes, types: dict[str, type]) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidValue("not JSON") from None
    if not isinstance(value, dict):
        raise InvalidValue("not a JSON object")
    # A newer version may have fields that a change made by this version would remove.
    if value.get("format") != FORMAT:
        raise InvalidValue(f"format: expected {FORMAT}; all nodes must run compatible versions")
    for name, kind in types.items():
        if type(value.get(name)) is not kind:
            raise InvalidValue(f"{name}: missing, or not of type {kind.__name__}")
    return {name: value[name] for name in types}
