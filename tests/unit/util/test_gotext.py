"""Strings as Go writes them."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.util.gotext import json_bytes, json_in_pieces, json_string, rfc3339


def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for zone, text in [
            ("UTC", "2026-11-20T11:18:30Z"),
            ("CET-1", "2026-11-20T12:18:30+01:00"),
            ("NST3:30", "2026-11-20T07:48:30-03:30"),
        ]:
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert rfc3339(1795173510) == text
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "value, text",
    [
        ({"b": [1, None, True], "a": {}}, '{"b":[1,null,true],"a":{}}'),
        ([1.0, 0.99, -2.5, 26897574.0], "[1,0.99,-2.5,26897574]"),
        ("<a&b>\u2028\u2029é", '"\\u003ca\\u0026b\\u003e\\u2028\\u2029é"'),
        ('\b\f\n\t\r\x01\\b\\\\f"', '"\\u0008\\u000c\\n\\t\\r\\u0001\\\\b\\\\\\\\f\\""'),
        ("bad \udcff byte", '"bad \ufffd byte"'),
    ],
)
def test_json(value: object, text: str) -> None:
    assert json_bytes(value) == json_in_pieces(value) == text.encode()


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    PLAIN | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=10
)


@given(VALUES)
def test_json_means_what_it_was_made_from(value: object) -> None:
    assert json.loads(json_bytes(value)) == value


@given(st.text() | st.text(st.characters(max_codepoint=0x7F)))
def test_a_single_text(text: str) -> None:
    assert json_string(text).encode() == json_bytes(text)


@given(st.dictionaries(st.text(), st.lists(st.dictionaries(st.text(), st.integers() | st.text()))))
def test_pieces_make_the_same_json(value: object) -> None:
    assert json_in_pieces(value) == json_bytes(value)
