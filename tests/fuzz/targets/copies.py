"""Responses of etcd, values of the registry, and messages between workers: each is read, or refused
with an error of the right type.

The first byte of an input selects the kind of the rest.
"""

import contextlib
import json
from collections.abc import Callable

from fuzz.garbage import ODD_JSON
from nsqcy.copies.group import Group
from nsqcy.copies.messages import Align, Confirm, Extent, Filled, Have, Refuse, Rename, Write
from nsqcy.copies.ports import Claim
from nsqcy.copies.values import (
    InvalidValue,
    decode_claim,
    decode_group,
    encode_claim,
    encode_group,
)
from nsqcy.etcd import messages
from nsqcy.etcd.messages import EtcdError
from nsqcy.nsqd.copies.copy_files import Data
from nsqcy.nsqd.copies.wire import MAX_FRAME, Decoder, Greeting, Message, WireError, encode

COVERS = ["copies/values.py", "etcd/messages.py", "nsqd/copies/wire.py"]
KEY_VALUE = {"key": "L2E=", "value": "MQ==", "mod_revision": "7", "lease": "5"}
HEADER = {"revision": "9", "member_id": "1"}
EVENTS = [{"kv": KEY_VALUE}, {"type": "DELETE", "kv": {"key": "L2E="}}]
RESPONSES = [
    {"header": HEADER, "kvs": [KEY_VALUE], "count": "1", "more": True},
    {"header": HEADER, "succeeded": True},
    {"result": {"header": HEADER, "events": EVENTS}},
    {"result": {"canceled": True, "compact_revision": "5", "cancel_reason": "r"}},
    {"error": {"grpc_code": 14, "message": "no leader", "http_code": 503}},
    {"error": "etcdserver: no leader", "code": 14},
]
GROUP = Group("g", 3, "a", "a/1", ("a", "b"), 3, 2, "n", "os", closed=True)
MESSAGES: list[Message] = [
    Greeting("production", "n1", "n2", "g", "token"),
    Align("t.topic/1.seg", 64),
    Write("t.topic/1.seg", 64, Data(b"data", are_records=True), 5),
    Rename("t.topic/journal.tmp", "t.topic/journal", 6),
    Filled(["t.topic/1.seg", "t.topic/journal"], 7),
    Have({"t.topic/1.seg": Extent(64, bytes(64))}),
    Refuse("epoch"),
    Confirm(7),
]
WORDS = [f'"{name}":'.encode() for each in RESPONSES for name in each]
WORDS += [f'"{name}":'.encode() for name in (*KEY_VALUE, *json.loads(encode_group(GROUP)))]
WORDS += [b"null", b"1e999", b"-1", b"[[", b"{}", b"\\ud800", b'"=="', b"true"]


def seeds() -> list[bytes]:
    found = [bytes([kind]) + json.dumps(each).encode() for each in RESPONSES for kind in range(3)]
    found += [b"\3" + encode_group(GROUP), b"\4" + encode_claim(Claim("n", 1, 5))]
    found += [b"\5" + encode(each) for each in MESSAGES]
    found += [b"\5" + b"".join(map(encode, MESSAGES))]
    return found + [bytes([kind % 5]) + each[:300] for kind, each in enumerate(ODD_JSON)]


def one(data: bytes) -> None:
    reads: list[Callable[[bytes], object]] = [
        _page,
        messages.changes,
        _failure,
        _group,
        _claim,
        _wire,
    ]
    if data:
        with contextlib.suppress(EtcdError, InvalidValue, WireError):
            reads[data[0] % len(reads)](data[1:])


def _page(body: bytes) -> None:
    messages.page(messages.parsed(body))


def _failure(body: bytes) -> None:
    assert len(str(messages.failure(body, 500))) <= 300


def _group(body: bytes) -> None:
    group = decode_group("g", body)
    assert decode_group("g", encode_group(group)) == group


def _claim(body: bytes) -> None:
    claim = decode_claim(body)
    assert decode_claim(encode_claim(claim)) == claim


def _wire(data: bytes) -> None:
    for message in Decoder(MAX_FRAME).feed(data):
        assert list(Decoder(MAX_FRAME).feed(encode(message))) == [message]
