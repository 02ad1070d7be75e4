"""Message bodies as pages show them, and the answers of nsqds that lack the feature."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsqcy.cluster import answer_forms
from nsqcy.cluster.web_client import Answer
from nsqcy.nsqadmin.cluster import answers
from nsqcy.nsqadmin.html import message_bodies
from support.runs import runs


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"", "text", ""),
        (b"plain\n\ttext", "text", "plain\n\ttext"),
        (b"17", "text", "17"),
        (b'{"b":1.0,"a":[],"b":{}}', "JSON", '{\n  "b": 1.0,\n  "a": [],\n  "b": {}\n}'),
        (b"[12345678901234567890, 1e999]", "JSON", "[\n  12345678901234567890,\n  1e999\n]"),
        (b'{"a": "\\u202e, {x}"}', "JSON", '{\n  "a": "\\u202e, {x}"\n}'),
        (b'{"a": ', "text", '{"a": '),
        ("a\u202eb\u200b".encode(), "text", "a\\u202eb\\u200b"),
        (b"a\rb", "text", "a\\u000db"),
        (b"\xff", "hex", "00000000  ff" + " " * 47 + "|.|"),
        (b"\x1b[31m", "hex", "00000000  1b 5b 33 31 6d" + " " * 35 + "|.[31m|"),
    ],
)
def test_what_a_body_seems_to_be(body: bytes, kind: str, text: str) -> None:
    assert message_bodies.body_text(body, cut=False)[:2] == (kind, text)


def test_a_body_that_is_cut() -> None:
    """The body is truncated in the middle of a character, or of JSON."""
    assert message_bodies.body_text("ä".encode()[:1], cut=True)[:2] == ("text", "")
    assert message_bodies.body_text(b"[1]", cut=True).kind == "text"


def test_as_hex() -> None:
    shown = message_bodies.body_text(bytes(range(97, 117)), cut=False, as_hex=True)
    assert shown.text.split("\n") == [
        "00000000  61 62 63 64 65 66 67 68  69 6a 6b 6c 6d 6e 6f 70 |abcdefghijklmnop|",
        "00000010  71 72 73 74" + " " * 38 + "|qrst|",
    ]
    assert (
        message_bodies.body_text(bytes(20_000), cut=False).left_out
        == 20_000 - message_bodies.MAX_HEX
    )


def test_json_that_would_grow_is_left_alone() -> None:
    deep = "[" * 400 + "]" * 400
    assert message_bodies.lay_out(deep) is None
    assert message_bodies.lay_out("[" * 100_000) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=runs(40))
@given(st.lists(VALUES))
def test_laid_out_json_is_the_same(value: list[Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))):
        laid_out = message_bodies.lay_out(text)
        assert laid_out is None or json.loads(laid_out) == value


@given(st.binary())
@example("\u05c8".encode())
def test_nothing_unseen_is_shown(body: bytes) -> None:
    shown = message_bodies.body_text(body, cut=False)
    assert all(each.isprintable() or each in "\n\t" or each.isspace() for each in shown.text)


@pytest.mark.parametrize(
    ("status", "body", "done", "missing", "reason"),
    [
        (200, b"", True, False, ""),
        (200, b'{"a":1}', True, False, ""),
        (200, b"<html>", False, False, "unreadable response with status 200"),
        (404, b'{"message":"NOT_FOUND"}', False, True, answers.NOT_SUPPORTED),
        (404, b'{"message":"TOPIC_NOT_FOUND"}', False, False, "TOPIC_NOT_FOUND"),
        (405, b'{"message":"METHOD_NOT_ALLOWED"}', False, True, answers.NOT_SUPPORTED),
        (400, b'{"message":"INVALID_OPTION"}', False, True, answers.NOT_SUPPORTED),
        (400, b'{"message":"INVALID_TO"}', False, False, "INVALID_TO"),
        (503, b"{}", False, False, "got response 503"),
        (400, b'{"message":"a\\r\\nb"}', False, False, "a  b"),
        (500, b"[" * 100_000, False, False, "unreadable response with status 500"),
    ],
)
def test_what_nsqds_say(status: int, body: bytes, done: bool, missing: bool, reason: str) -> None:
    said = answers.read_answer("n", Answer(status, {}, body))
    assert (said.is_done, said.is_missing, said.reason) == (done, missing, reason)


MESSAGE = {
    "id": "0123456789abcdef",
    "seq": 1,
    "timestamp": None,
    "attempts": 1,
    "size": 2,
    "body": "aGk=",
    "cut": False,
}
MESSAGE |= {"headers": {"a": "b"}, "start": "1.0"}


@pytest.mark.parametrize(
    "changes",
    [
        {"size": None},
        {"body": "aGk"},
        {"body": "é"},
        {"seq": 1 << 63},
        {"seq": True},
        {"headers": {"a": 1}},
        {"headers": []},
        {"consumer": {"client_id": "a"}},
        {"due": "soon"},
        {"id": 'x"\r\nSet-Cookie: a=b'},
        {"id": "0123456789abcdeg"},
        {"id": "0123456789abcdef\n"},
        {"start": "1.0\r\nX: y"},
        {"start": "1.0\n"},
        {"consumer": {"client_id": "a", "remote_address": "a\x1b[2J"}},
    ],
)
def test_a_message_of_another_form(changes: dict[str, Any]) -> None:
    assert answer_forms.PEEKED({"messages": [MESSAGE], "next": None, "more": 1})
    assert answer_forms.PEEKED(
        {"messages": [MESSAGE | {"body": None, "size": None}], "next": "1.0"}
    )
    assert not answer_forms.PEEKED({"messages": [MESSAGE | changes], "next": None})
    for name in MESSAGE:
        lacking = {key: value for key, value in MESSAGE.items() if key != name}
        assert not answer_forms.PEEKED({"messages": [lacking], "next": None})


@pytest.mark.parametrize(
    ("form", "value", "fits"),
    [
        (answer_forms.PEEKED, {"messages": []}, False),
        (answer_forms.PEEKED, {"messages": {}, "next": None}, False),
        (answer_forms.POLICY, {"config": {"rate": {"value": [], "from": "http"}}}, True),
        (answer_forms.POLICY, {"config": {"rate": {"value": 5}}}, False),
        (answer_forms.POLICY, {"config": {"rate": 5}}, False),
        (
            answer_forms.POLICY,
            {"config": {"dead_letter_topic": {"value": [], "from": "http"}}},
            False,
        ),
        (answers.LOG, {"channels": {"c": 1}, "fanout_seq": 2}, True),
        (answers.LOG, {"channels": {"c": 1}, "fanout_seq": 2, "at": "1"}, False),
        (answers.LOG, {"channels": {"c": None}, "fanout_seq": 2}, False),
        (answers.DRAIN, {"draining": False, "left": None}, True),
        (answers.DRAIN, {"draining": True, "left": {"messages": 5}}, False),
        (answers.DRAIN, {"draining": 1, "left": None}, False),
    ],
)
def test_forms_of_answers(form: answer_forms.Form, value: Any, fits: bool) -> None:
    assert form(value) == fits
    said = answers.read_answer("n", Answer(200, {}, json.dumps(value).encode()), form)
    assert said.is_done == fits
    refusal = answers.read_answer("n", Answer(400, {}, json.dumps(value).encode()), form)
    assert refusal.reason == "got response 400"


@pytest.mark.parametrize("status", [101, 204, 304, 200])
def test_a_strange_status_is_not_passed_on(status: int) -> None:
    said = answers.read_answer("n", Answer(status, {}, b"[]"))
    assert (said.status, said.is_done) == (502, False)


def test_half_a_character_is_not_shown() -> None:
    said = answers.read_answer("n", Answer(200, {}, b'{"a": "\\ud800"}'))
    assert said.reason == "unreadable response with status 200"
    assert answers.read_answer("n", Answer(200, {}, b'{"a": "\\ud83d\\ude00"}')).is_done
