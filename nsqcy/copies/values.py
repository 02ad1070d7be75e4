"""Registry values as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.ports import Claim
from nsqcy.copies.recall import Known, Statement
from nsqcy.formats import REGISTRY

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
_IDENTITY: dict[str, type] = {"id": str, "generation": int, "ancestors": list}
_STATEMENT: dict[str, type] = {"groups": dict, "repaired": bool, "since": int}
_KNOWN: dict[str, type] = {"generation": int, "revision": int, "value": dict}
_MARK: dict[str, type] = {"revision": int}


class InvalidValue(ValueError):
    """A registry value that this version cannot use."""


def encode_group(group: Group) -> bytes:
    """Return a group's value. It omits the id, which is in the key."""
    return _encoded(_fields(group, _GROUP))


def decode_group(group_id: str, data: bytes) -> Group:
    """Return a group. Raises InvalidValue."""
    return _group(group_id, _checked(_parsed(data), _GROUP))


def _group(group_id: str, fields: dict[str, Any]) -> Group:
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
        raise InvalidValue("min_copies: expected from 1 to the value of copies")
    if group.durability not in DURABILITIES:
        raise InvalidValue(f"durability: expected one of {', '.join(DURABILITIES)}")
    return group


def encode_claim(claim: Claim) -> bytes:
    return _encoded(_fields(claim, _CLAIM))


def decode_claim(data: bytes) -> Claim:
    """Return a claim. Raises InvalidValue."""
    return Claim(**_checked(_parsed(data), _CLAIM))


def encode_identity(identity: Identity) -> bytes:
    return _encoded(_fields(identity, _IDENTITY))


def decode_identity(data: bytes) -> Identity:
    """Return a registry's identity. Raises InvalidValue."""
    fields = _checked(_parsed(data), _IDENTITY)
    ancestors = fields.pop("ancestors")
    if not all(isinstance(each, str) for each in ancestors):
        raise InvalidValue("ancestors: expected a list of ids")
    return Identity(ancestors=tuple(ancestors), **fields)


def encode_mark(revision: int) -> bytes:
    return _encoded({"revision": revision})


def decode_mark(data: bytes) -> int:
    """Return a node's mark. Raises InvalidValue."""
    revision: int = _checked(_parsed(data), _MARK)["revision"]
    return revision


def encode_statement(statement: Statement) -> bytes:
    return _encoded(
        {
            "groups": known_as_json(statement.known),
            "repaired": statement.is_repaired,
            "since": statement.since,
        }
    )


def decode_statement(data: bytes, revision: int) -> Statement:
    """Return a statement that was made at a revision. Raises InvalidValue."""
    fields = _checked(_parsed(data), _STATEMENT)
    known = known_from_json(fields["groups"])
    return Statement(known, fields["repaired"], fields["since"], revision)


def known_as_json(known: Mapping[str, Known]) -> dict[str, Any]:
    """Return the values that a node remembers, as an object."""
    return {
        group_id: {
            "generation": stamp[0],
            "revision": stamp[1],
            "value": {"format": REGISTRY.number, **_fields(group, _GROUP)},
        }
        for group_id, (stamp, group) in known.items()
    }


def known_from_json(found: Mapping[str, Any]) -> dict[str, Known]:
    """Return the values that a node remembers. Raises InvalidValue."""
    known = {}
    for group_id, each in found.items():
        own = {"format": REGISTRY.number}  # only the value inside has a number
        fields = _checked(own | each if isinstance(each, dict) else each, _KNOWN)
        group = _group(group_id, _checked(fields["value"], _GROUP))
        known[group_id] = Known((fields["generation"], fields["revision"]), group)
    return known


def _fields(value: Any, types: Mapping[str, type]) -> dict[str, Any]:
    """Return a value's fields in their JSON form: lists instead of tuples."""
    return {name: kind(getattr(value, name)) for name, kind in types.items()}


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps({"format": REGISTRY.number, **fields}, separators=(",", ":")).encode()


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidValue("not JSON") from None


def _checked(value: Any, types: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue("not a JSON object")
    # A newer version may add fields that a change by this version would remove.
    if not REGISTRY.reads(value.get("format")):
        raise InvalidValue(REGISTRY.refusal(value.get("format")))
    for name, kind in types.items():
        if type(value.get(name)) is not kind:
            raise InvalidValue(f"{name}: missing, or not of type {kind.__name__}")
    return {name: value[name] for name in types}
