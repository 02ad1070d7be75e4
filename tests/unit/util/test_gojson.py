"""JSON readers: the fast one for many objects gives the same results as the plain one."""

import json
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.util import gojson

FIELDS: gojson.Fields = {
    "depth": (gojson.int64, 7),
    "paused": (gojson.flag, False),
    "name": (gojson.text, "?"),
}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([(1 << 63) - 1, 1 << 63, -1 << 63, (-1 << 63) - 1]),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=1),
)
OBJECTS = st.one_of(
    st.fixed_dictionaries(
        {"depth": st.integers(0, 9), "paused": st.booleans(), "name": st.text(max_size=3)},
        optional={"other": VALUES, "DEPTH": VALUES, "Name": VALUES},
    ),
    st.dictionaries(st.sampled_from(["depth", "paused", "name", "Paused", "x"]), VALUES),
    VALUES,
)


def read(reader: gojson.Reader, value: Any) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        return str(error)


@given(st.lists(OBJECTS, max_size=8))
def test_quick_is_the_same_as_plain(values: list[Any]) -> None:
    quick, plain = gojson.alike(FIELDS), gojson.structure(FIELDS)
    for value in values:
        wanted = read(plain, value)
        if isinstance(wanted, dict):
            wanted = tuple(wanted.values())
        found = read(quick, value)
        assert (found, [*map(type, found)]) == (wanted, [*map(type, wanted)])


def test_the_sets_of_keys_that_are_remembered_are_few() -> None:
    quick = gojson.alike(FIELDS)
    for number in range(1000):
        assert quick({"depth": number, f"other{number}": 1}) == (number, False, "?")


@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b'{"A":1,"a":2}', b'{"a":9,"A":2}'])
def test_of_keys_that_are_equal_the_last_counts(body: bytes) -> None:
    fields: gojson.Fields = {"a": (gojson.int64, 0)}
    assert gojson.decode(body, fields) == gojson.decode_large(body, fields) == {"a": 2}


def test_null_is_as_if_absent() -> None:
    fields: gojson.Fields = {"a": (gojson.int64, 5)}
    assert gojson.decode(b'{"a":1,"a":null}', fields) == {"a": 1}
    assert gojson.decode_large(b'{"a":null}', fields) == {"a": 5}
    assert gojson.decode(b"null", fields) == gojson.decode_large(b"null", fields) == {"a": 5}


LARGE: gojson.Fields = {
    "rows": (gojson.array(gojson.structure({"n": (gojson.int64, 0)}), gojson.EMPTY), []),
    "a": (gojson.int64, 5),
}


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b" { } ",
        b'{"rows":[]}',
        b'{"rows":[ ] , "a" : 1 }',
        b'{"rows":[{"n":1},{"N":2},{},null],"other":[1,{"x":[2]}],"a":3}',
        b'\n{"ROWS":[{"n":1}\t,\r\n{"n":2,"n":3}]}\n',
        b'{"rows":null,"a":null}',
        b'{"r\\u006fws":[{"n":7}]}',
        b'{"A":1,"a":null}',
    ],
)
def test_a_large_body_is_read_like_any(body: bytes) -> None:
    assert gojson.decode_large(body, LARGE) == gojson.decode(body, LARGE)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b'{"rows":[', b'{"rows":[{"n":1}', b'{"rows":[{"n":1},', b'{"rows":[,]}'),
        *(b'{"rows":[{"n":1},]}', b'{"rows":[{"n":1} {"n":2}]}', b'{"rows":[{"n":1}]'),
        *(b'{"rows":[{"n":1}]}x', b'{"rows" [1]}', b"{1:2}", b'{"a":1,}', b'{"a":}', b'{"a"}'),
        *(b'{"rows":[NaN]}', b'{"rows":[{"n":"x"}]}', b'{"rows":[1]}', b'{"rows":{}}', b"[]"),
        *(b'{"rows":[' + b"[" * 100_000, b'{"a' + b"\\ud800" * 3),
    ],
)
def test_a_large_body_is_refused_like_any(body: bytes) -> None:
    for decode in (gojson.decode, gojson.decode_large):
        with pytest.raises(ValueError, match=r"^[^{\[]*$"):
            decode(body, LARGE)


def test_other_threads_run_while_a_large_value_is_decoded() -> None:
    body = json.dumps([{"a": 1}] * 200_000).encode()
    turns, ended = 0, threading.Event()

    def work() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        before = turns
        gojson.decode_any(body)
        seen = turns
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert seen - before > 100
