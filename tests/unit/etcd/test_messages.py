"""Requests to etcd's JSON gateway, and damaged responses."""

from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.etcd import messages
from nsqcy.etcd.client import parse_endpoint
from nsqcy.etcd.messages import Change, EtcdError, Expected, Put

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
HEADER = b'{"result":{"header":{"revision":"7"}'


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


@given(st.text(min_size=1), st.text())
def test_a_listing_covers_exactly_its_prefix(prefix: str, key: str) -> None:
    request = messages.listing(prefix, limit=1)
    first, end = b64decode(request["key"]), b64decode(request["range_end"])
    assert (first <= key.encode() < end) == key.startswith(prefix)


def test_the_next_page_begins_behind_a_key() -> None:
    assert b64decode(messages.listing("/a", after="/ab", limit=1)["key"]) == b"/ab\0"


def test_a_transaction() -> None:
    found = messages.transaction(
        [Expected("/a", b"1"), Expected("/b", None)], [Put("/c", b"2", 5)], ["/d"]
    )
    assert found == {
        "compare": [
            {"key": encoded("/a"), "target": "VALUE", "value": encoded("1")},
            {"key": encoded("/b"), "target": "CREATE", "create_revision": "0"},
        ],
        "success": [
            {"request_put": {"key": encoded("/c"), "value": encoded("2"), "lease": "5"}},
            {"request_delete_range": {"key": encoded("/d")}},
        ],
    }


def test_changes() -> None:
    line = HEADER + (
        b',"events":[{"kv":{"key":"L2E=","value":"MQ==","mod_revision":"7"}},'
        b'{"type":"DELETE","kv":{"key":"L2I=","mod_revision":"7"}}]}}'
    )
    assert messages.changes(line) == [Change("/a", b"1", 7), Change("/b", None, 7)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"error":{"message":"no leader","grpc_code":14}}', "no leader"),
        (b'{"error":"no leader","code":14}', "no leader"),
        (HEADER + b',"canceled":true,"cancel_reason":"auth"}}', "watch canceled: auth"),
        (HEADER + b',"canceled":true,"compact_revision":"9"}}', "changes were compacted"),
        (b"{}", "response has an unexpected form"),
        (b"[]", "response has an unexpected form"),
        (b"{", "response is not JSON"),
        (b"[" * 100_000, "response is not JSON"),
        (HEADER + b',"events":[{}]}}', "response has an unexpected form"),
        (HEADER + b',"events":[{"kv":{"key":"/"}}]}}', "key or value in the response"),
        (HEADER + b',"events":[{"kv":{"mod_revision":"x"}}]}}', "mod_revision in the response"),
    ],
)
def test_a_watch_that_ends_or_is_damaged(line: bytes, text: str) -> None:
    with pytest.raises(EtcdError, match=text):
        messages.changes(line)


@given(JSON)
def test_no_response_raises_anything_else(value: Any) -> None:
    response = value if isinstance(value, dict) else {"kvs": value, "header": value}
    for read in (messages.page, messages.revision):
        try:
            read(response)
        except EtcdError:
            pass


def test_errors() -> None:
    body = b'{"error":"etcdserver: requested lease not found","code":5}'
    error = messages.failure(body, 404)
    assert (str(error), error.code) == ("etcdserver: requested lease not found", 5)
    assert str(messages.failure(b"<html>", 502)) == "status 502"
    assert str(messages.failure(b"[]", 502)) == "status 502"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("a", "http://a:2379"),
        ("a:1", "http://a:1"),
        ("https://a", "https://a:2379"),
        ("http://[::1]:5/", "http://[::1]:5"),
    ],
)
def test_endpoints(text: str, url: str) -> None:
    assert parse_endpoint(text).url == url


@pytest.mark.parametrize("text", ["", "ftp://a", "http://", "http://u:p@a", "http://a/v3", "a:b"])
def test_invalid_endpoints(text: str) -> None:
    with pytest.raises(ValueError, match="invalid address"):
        parse_endpoint(text)
