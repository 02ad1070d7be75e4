"""Values of the registry: every group survives encoding, and every other value is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.ports import Claim
from nsqcy.copies.recall import Known, Statement
from nsqcy.copies.values import (
    InvalidValue,
    decode_claim,
    decode_group,
    decode_identity,
    decode_mark,
    decode_statement,
    encode_claim,
    encode_group,
    encode_identity,
    encode_mark,
    encode_statement,
)

GROUP = Group("g", 3, "a", "a/1", ("a", "b"), 3, 2, "n", "os", closed=True)


@st.composite
def groups(draw: Any) -> Group:
    members = draw(st.lists(st.text(), min_size=1, max_size=5, unique=True))
    copies = draw(st.integers(1, 5))
    return Group(
        id="g",
        epoch=draw(st.integers(min_value=1)),
        owner=draw(st.sampled_from(members)),
        session=draw(st.text()),
        members=tuple(members),
        copies=copies,
        min_copies=draw(st.integers(1, copies)),
        nonce=draw(st.text()),
        durability=draw(st.sampled_from(["memory", "os", "fsync"])),
        closed=draw(st.booleans()),
        done=draw(st.booleans()),
    )


@given(groups())
def test_a_group_survives(group: Group) -> None:
    assert decode_group("g", encode_group(group)) == group


@given(st.text(), st.integers(), st.integers())
def test_a_claim_survives(nonce: str, epoch: int, records: int) -> None:
    claim = Claim(nonce, epoch, records)
    assert decode_claim(encode_claim(claim)) == claim


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": 2}, r"registry format version 2 is newer than this nsqcy supports \(1\)"),
        ({"epoch": "3"}, "epoch: missing, or not of type int"),
        ({"epoch": True}, "epoch: missing, or not of type int"),
        ({"epoch": 0}, "epoch: expected at least 1"),
        ({"members": []}, "members: expected a list of nodes"),
        ({"members": ["a", 1]}, "members: expected a list of nodes"),
        ({"members": ["a", "a"]}, "members: a node occurs twice"),
        ({"owner": "c"}, "owner: expected one of the members"),
        ({"min_copies": 4}, "min_copies: expected from 1 to the value of copies"),
        ({"durability": "disk"}, "durability: expected one of memory, os, fsync"),
        ({"closed": None}, "closed: missing, or not of type bool"),
    ],
)
def test_an_invalid_field_is_named(changes: dict[str, Any], text: str) -> None:
    value = json.loads(encode_group(GROUP)) | changes
    with pytest.raises(InvalidValue, match=text):
        decode_group("g", json.dumps(value).encode())


@given(st.one_of(st.binary(), st.text().map(str.encode), st.just(b"[" * 100_000)))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode_group("g", data)


def test_what_a_node_remembers_survives() -> None:
    statement = Statement({"g": Known((2, 7), GROUP)}, True, 1, 9)
    assert decode_statement(encode_statement(statement), 9) == statement
    identity = Identity("b", 2, ("a",))
    assert decode_identity(encode_identity(identity)) == identity
    assert decode_mark(encode_mark(7)) == 7


@pytest.mark.parametrize(
    "data",
    [
        b'{"format":1,"id":"a","generation":1}',
        b'{"format":1,"id":"a","generation":1,"ancestors":[1]}',
        b'{"format":2,"id":"a","generation":1,"ancestors":[]}',
    ],
)
def test_invalid_identities(data: bytes) -> None:
    with pytest.raises(InvalidValue):
        decode_identity(data)


@pytest.mark.parametrize("known", [[], {"generation": 1, "revision": 1, "value": {}}])
def test_invalid_statements(known: object) -> None:
    value = {"format": 1, "groups": {"g": known}, "repaired": False, "since": 0}
    with pytest.raises(InvalidValue):
        decode_statement(json.dumps(value).encode(), 1)
