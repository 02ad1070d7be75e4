"""The building blocks of tools: status lines, the JSON filter, splitting of input, the throttle."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.tools.json_filter import DROP, SHOWN, Filtered, JsonFilter, Verdict
from nsqcy.tools.message_splitter import Pieces, TooLong
from nsqcy.tools.status import StatusMeter, StatusMeters
from nsqcy.tools.throttle import Throttle

# -- status lines


def test_a_line_after_one_more_than_so_many() -> None:
    meter = StatusMeter("[aggregate]:", 2)
    lines = [meter.add(seconds) for seconds in (0.001, 0.002, 0.003, 0.004, 0.0051)]
    assert [line is not None for line in lines] == [False, False, True, False, True]
    # The first line covers 2 and 3 ms, the second one 4 and 5.1 ms.
    assert lines[2] == "[aggregate]: finished 2 - 99th: 3.00ms - 95th: 3.00ms - avg: 2.50ms"
    assert lines[4] == "[aggregate]: finished 2 - 99th: 5.10ms - 95th: 5.10ms - avg: 4.55ms"


def test_percentiles() -> None:
    meter = StatusMeter("[x]:", 200)
    lines = [meter.add(number / 1000) for number in range(200, -1, -1)]
    assert lines[-1] == "[x]: finished 200 - 99th: 198.00ms - 95th: 190.00ms - avg: 99.50ms"


def test_a_meter_for_each_of_several_and_one_for_all() -> None:
    meters = StatusMeters(["a", "b"], 1)
    assert meters.add(0, 1.0) == meters.add(1, 1.0)[:0] == []
    assert [line.partition(" fin")[0] for line in meters.add(1, 1.0)] == ["[b]:", "[aggregate]:"]
    assert (
        meters.warnings
        == ["Warning: use more than 100 status values for accurate percentiles (configured with 1)"]
        * 3
    )


def test_one_destination_has_no_meter_of_its_own() -> None:
    meters = StatusMeters(["a"], 100)
    assert meters.warnings == []
    lines = [line for _ in range(101) for line in meters.add(0, 0.0)]
    assert [line.partition(" fin")[0] for line in lines] == ["[aggregate]:"]


@pytest.mark.parametrize("every", [0, -1])
def test_no_meters(every: int) -> None:
    meters = StatusMeters(["a", "b"], every)
    assert meters.warnings == []
    assert [line for _ in range(9) for line in meters.add(0, 1.0)] == []


# -- the filter


def test_no_filter_looks_at_nothing() -> None:
    assert JsonFilter("", "5", []).apply(b"notjson") == Filtered(Verdict.PASS, b"notjson")
    assert not JsonFilter("", "5", []).active


@pytest.mark.parametrize("body", [b"notjson", b"[1]", b"5", b"", b"null", b'{"k":NaN}', b"{}{}"])
def test_what_is_no_object_is_dropped_and_told(body: bytes) -> None:
    found = JsonFilter("k", "", []).apply(body)
    shown = f"ERROR: Unable to decode json: {body.decode()}"
    assert found == Filtered(Verdict.DROP, complaint=shown)


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"k":' * 600 + b"1" + b"}" * 600, b'{"k":1e999}', b'{"k":"\x01"}']
)
def test_what_cannot_be_read_is_no_object(body: bytes) -> None:
    found = JsonFilter("", "", ["k"]).apply(body)
    assert (found.verdict, found.body) == (Verdict.DROP, b"")
    assert len(found.complaint) < SHOWN + 100


@pytest.mark.parametrize(
    "body, verdict",
    [
        ('{"k":5}', Verdict.PASS),
        ('{"k":"5"}', Verdict.PASS),
        ('{"k":5.0}', Verdict.PASS),
        ('{"k":50e-1}', Verdict.PASS),
        ('{"k":6}', Verdict.DROP),
        ('{"k":"5.0"}', Verdict.DROP),
        ('{"k":true}', Verdict.DROP),
        ('{"k":null}', Verdict.DROP),
        ('{"k":[5]}', Verdict.DROP),
        ("{}", Verdict.REQUEUE),
        ('{"K":5}', Verdict.REQUEUE),
    ],
)
def test_a_required_value(body: str, verdict: Verdict) -> None:
    found = JsonFilter("k", "5", []).apply(body.encode())
    assert found.verdict is verdict
    assert found.body == (body.encode() if verdict is Verdict.PASS else b"")
    missing = "ERROR: missing field to check required value"
    assert found.complaint == (missing if verdict is Verdict.REQUEUE else "")


def test_one_is_not_true() -> None:
    assert JsonFilter("k", "1", []).apply(b'{"k":true}') == DROP


@pytest.mark.parametrize("value", ["abc", "0x5", "inf", "nan", "9" * 2000])
def test_a_required_value_that_is_no_number_equals_none(value: str) -> None:
    assert JsonFilter("k", value, []).apply(b'{"k":5}') == DROP
    body = json.dumps({"k": value}).encode()
    assert JsonFilter("k", value, []).apply(body) == Filtered(Verdict.PASS, body)


def test_large_integers_are_told_apart() -> None:
    wanted = JsonFilter("k", "12345678901234567890", [])
    assert wanted.apply(b'{"k":12345678901234567890}').verdict is Verdict.PASS
    assert wanted.apply(b'{"k":12345678901234567891}') == DROP


def test_a_required_field() -> None:
    wanted = JsonFilter("k", "", [])
    assert wanted.apply(b'{ "k" : null }') == Filtered(Verdict.PASS, b'{ "k" : null }')
    assert wanted.apply(b'{"x":1}') == DROP


@pytest.mark.parametrize(
    "body, passed",
    [
        ('{"k":5,"b":"<x>&","a":1.0,"c":2}', r'{"a":1,"b":"\u003cx\u003e\u0026"}'),
        ('{"b":12345678901234567890}', '{"b":12345678901234567890}'),
        ('{"a":{"z":1.50, "y":[1.0, "é\u2028"]}}', r'{"a":{"y":[1,"é\u2028"],"z":1.5}}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":"\\ud800"}', '{"a":"\ufffd"}'),
        ('{"c":1}', "{}"),
    ],
)
def test_a_whitelist(body: str, passed: str) -> None:
    found = JsonFilter("", "", ["b", "a", "a"]).apply(body.encode())
    assert found == Filtered(Verdict.PASS, passed.encode())


TEXTS = st.text('ab<&>"\\\n\u2028é', max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e15, 1e15) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from("abcdef"), VALUES),
    st.sets(st.sampled_from("abcdefg"), min_size=1),
)
def test_a_whitelist_changes_no_value(value: dict[str, object], wanted: set[str]) -> None:
    found = JsonFilter("", "", wanted).apply(json.dumps(value).encode())
    assert json.loads(found.body) == {key: value[key] for key in value if key in wanted}


# -- pieces


def split(text: bytes, delimiter: bytes, size: int) -> list[bytes]:
    pieces = Pieces(delimiter)
    found = [
        piece
        for start in range(0, len(text), size)
        for piece in pieces.feed(text[start : start + size])
    ]
    return found + pieces.end()


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "text, delimiter, pieces",
    [
        (b"", b"\n", []),
        (b"\n\n", b"\n", []),
        (b"abc\n\ndef", b"\n", [b"abc", b"def"]),
        (b"abc\ndef\n", b"\n", [b"abc", b"def"]),
        (b"one,two,three\n", b",", [b"one", b"two", b"three"]),
        (b"one,two\n,three", b",", [b"one", b"two\n", b"three"]),
        (b"a,\n", b",", [b"a"]),
        (b"a,\n\n", b",", [b"a", b"\n"]),
        (b"\x00a\x00\x00b", b"\x00", [b"a", b"b"]),
    ],
)
def test_pieces(text: bytes, delimiter: bytes, pieces: list[bytes], size: int) -> None:
    assert split(text, delimiter, size) == pieces


@given(st.lists(st.binary(min_size=1).filter(lambda piece: b"," not in piece)), st.integers(1, 50))
def test_splitting_reverses_joining(pieces: list[bytes], size: int) -> None:
    assert split(b"".join(piece + b"," for piece in pieces), b",", size) == pieces


@pytest.mark.parametrize("text", [b"12345,123456,", b"1,123456", b"123456,"])
def test_a_piece_may_be_only_so_long(text: bytes) -> None:
    assert Pieces(b",", 6).feed(text) is not None
    with pytest.raises(TooLong, match=r"^no delimiter in 5 bytes of input"):
        Pieces(b",", 5).feed(text)
    with pytest.raises(TooLong):
        pieces = Pieces(b",", 5)
        for byte in text:
            pieces.feed(bytes([byte]))


def test_endless_input_costs_no_more_than_a_piece() -> None:
    pieces = Pieces(b"\n", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(TooLong):
            while True:
                pieces.feed(bytes(1 << 16))
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


# -- the throttle


def test_twenty_at_ten_a_second_take_two_seconds() -> None:
    throttle, now = Throttle(10, 100.0), 100.0
    for _ in range(20):
        now += throttle.delay(now)
    assert now == pytest.approx(101.9)


def test_nobody_saves_more_than_a_second() -> None:
    throttle = Throttle(10, 0.0)
    delays = [throttle.delay(50.0) for _ in range(12)]
    assert delays[:10] == [0.0] * 10
    assert delays[10:] == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("rate", [0, -3])
def test_no_throttle(rate: int) -> None:
    throttle = Throttle(rate, 0.0)
    assert [throttle.delay(0.0) for _ in range(5)] == [0.0] * 5
