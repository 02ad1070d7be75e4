"""A batch query, and how a task handles failures of its nsqd."""

import contextlib
import dataclasses
import datetime
import operator
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from nsqcy.spark.errors import CorruptBlock, DataLoss, NsqError, Refused, Unreachable
from nsqcy.spark.source import MIN_ROWS, NsqDataSource
from support.fake_log_nsqd import FakeTopic, LogBroker, Record
from support.runs import runs
from support.spark_sources import batch, rows

A, B = ("a" * 32, "b" * 32)


NOT_FOUND = "topic 'u' not found on 1 nsqd; publish a message to it, or correct the name"


@pytest.fixture
def broker() -> Iterator[LogBroker]:
    broker = LogBroker()
    broker.topics["t"] = FakeTopic(A, 10)
    yield broker
    broker.close()


def given(broker: LogBroker, **options: str) -> dict[str, str]:
    return {"topic": "t", "nsqdTcpAddresses": broker.address, "minPartitions": "1"} | options


def seqs(broker: LogBroker, **options: str) -> list[int]:
    return [row["seq"] for row in rows(batch(given(broker, **options), "seq", "body"))]


def refusal(broker: LogBroker, kind: type[NsqError], **options: str) -> str:
    with pytest.raises(kind) as caught:
        seqs(broker, **options)
    return str(caught.value)


def test_rows(broker: LogBroker) -> None:
    broker.topics["t"].logs[0].records[3].defer = 2_500_000_000
    found = rows(batch(given(broker)))
    assert len(found) == 10
    assert found[3] | {"timestamp": None} == {
        "topic": "t",
        "nsqd": broker.address,
        "log_id": A,
        "seq": 4,
        "id": "0000000000abc004",
        "timestamp": None,
        "defer_ms": 2500,
        "body": b"4",
    }
    assert found[3]["timestamp"].timestamp() == 1_700_000_004


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": f'{{"t": {{"{A}": 4}}}}'}, (4, 11)),
        ({"endingOffsets": f'{{"t": {{"{A}": 4}}}}'}, (1, 4)),
        ({"endingOffsets": f'{{"t": {{"{A}": -1}}}}'}, (1, 11)),
        ({"startingTimestamp": "1700000003000", "endingTimestamp": "1700000006000"}, (3, 6)),
        ({"startingTimestamp": "1800000000000"}, (11, 11)),
        ({"endingTimestamp": "5"}, (1, 1)),
        ({"minPartitions": "4"}, (1, 11)),
        ({"fetchBytes": "3"}, (1, 11)),
    ],
)
def test_bounds(options: dict[str, str], expected: tuple[int, int], broker: LogBroker) -> None:
    assert seqs(broker, **options) == list(range(*expected))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"endingOffsets": f'{{"t": {{"{A}": 40}}}}'},
            "had rows up to seq 40, but now ends before 11",
        ),
        (
            {"startingOffsets": f'{{"t": {{"{A}": 40}}}}'},
            "had rows up to seq 40, but now ends before 11",
        ),
        ({"startingOffsets": f'{{"t": {{"{B}": 4}}}}'}, f"log {B} is on none of the nsqds"),
    ],
)
def test_bounds_that_are_not_there(options: dict[str, str], text: str, broker: LogBroker) -> None:
    assert text in refusal(broker, DataLoss, **options)


@pytest.mark.parametrize("options", [{"topic": "empty"}, {"startingTimestamp": "1800000000000"}])
def test_no_rows(options: dict[str, str], broker: LogBroker) -> None:
    broker.topics["empty"] = FakeTopic(B, 0)
    assert seqs(broker, **options) == []


def test_every_incarnation(broker: LogBroker) -> None:
    broker.topics["t"].begin(B)
    broker.topics["t"].publish(3)
    assert seqs(broker) == list(range(1, 14))


def test_small_ranges_are_not_split(broker: LogBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    reader = batch(given(broker) | {"minPartitions": "1"}, "seq")
    broker.topics["t"].logs[0].records *= MIN_ROWS // 4
    assert len(reader.partitions()) == 1
    options = given(broker)
    del options["minPartitions"]
    assert len(batch(options, "seq").partitions()) == 2


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThan(("seq",), 3), LessThanOrEqual(("seq",), 5)], [4, 5]),
        ([EqualTo(("seq",), 7)], [7]),
        ([EqualTo(("topic",), "t"), EqualTo(("id",), "x")], list(range(1, 11))),
        ([EqualTo(("log_id",), B)], []),
        ([GreaterThan(("seq",), 300)], []),
    ],
)
def test_filters(filters: list[Filter], expected: list[int], broker: LogBroker) -> None:
    reader: Any = batch(given(broker, pushdown="true"), "seq")
    assert list(reader.pushFilters(filters)) == filters, "Spark filters once more"
    assert [row["seq"] for row in rows(reader)] == expected


COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda found, values: found in values,
    StringStartsWith: lambda found, value: str(found).startswith(value),
    StringContains: lambda found, value: value in str(found),
}
SECOND = datetime.timedelta(seconds=1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "seq": st.sampled_from([-(2**63), -1, 0, 1, 2, 4, 9, 10, 11, 2**63 - 1]),
    "topic": st.sampled_from(["t", "T", "t ", "", "u"]),
    "nsqd": st.sampled_from(["here", "HERE", "127.0.0.1:1"]),
    "log_id": st.sampled_from([A, A.upper(), A[:5], B]),
    "timestamp": st.integers(-1, 11).map(
        lambda n: datetime.datetime(2023, 11, 14, 22, 13, 20, 1, datetime.UTC) + n * SECOND
    ),
    "body": st.sampled_from([b"5", b"", b"10"]),
}


@st.composite
def comparisons(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from(sorted(COMPARISONS, key=lambda each: each.__name__)))
    if kind in (StringStartsWith, StringContains):
        name, value = "log_id", draw(VALUES["log_id"])
    else:
        value = draw(VALUES[name])
    found = kind((name,), (value,) if kind is In else value)  # type: ignore[call-arg]
    return Not(found) if draw(st.booleans()) and draw(st.booleans()) else found


def matches(row: dict[str, Any], one: Filter) -> bool:
    if isinstance(one, Not):
        return not matches(row, one.child)
    found: Any = one
    return COMPARISONS[type(one)](row[found.attribute[0]], found.value)


@drawn(st.lists(comparisons(), max_size=4))
@settings(max_examples=runs(40), deadline=None)
def test_any_filters_leave_the_rows_that_match(filters: list[Filter]) -> None:
    """Spark filters the rows again: the source may return too many rows, but never too few."""
    with contextlib.closing(LogBroker()) as broker:
        broker.topics["t"] = FakeTopic(A, 10)
        named = ("seq", "topic", "nsqd", "log_id", "timestamp", "body")
        here: list[Filter] = [
            dataclasses.replace(each, value=broker.address)  # type: ignore[type-var]
            if getattr(each, "value", "") == "here"
            else each
            for each in filters
        ]
        every = rows(batch(given(broker), *named))
        reader: Any = batch(given(broker, pushdown="true"), *named)
        reader.pushFilters(here)
        wanted = [row for row in every if all(matches(row, each) for each in here)]
        assert len(every) == 10
        assert [row for row in rows(reader) if all(matches(row, each) for each in here)] == wanted


def test_without_pushdown_there_is_none(broker: LogBroker) -> None:
    """If a reader merely defines pushFilters, Spark refuses the reader unless a configuration key
    is set."""
    assert "pushFilters" not in vars(type(batch(given(broker))))


# errors while loading


def loading(options: dict[str, str]) -> str:
    quick = {"fetchOffset.retryIntervalMs": "1", "connectTimeoutMs": "5000"}
    with pytest.raises(NsqError) as caught:
        NsqDataSource(quick | options).schema()
    return str(caught.value)


def test_loading(broker: LogBroker) -> None:
    source = NsqDataSource(given(broker, columns="seq,body"))
    assert source.schema() == "seq bigint not null, body binary not null"
    assert source.name() == "nsq"


def test_an_unknown_topic(broker: LogBroker) -> None:
    assert loading(given(broker, topic="u")) == f"nsq: {NOT_FOUND}"
    NsqDataSource(given(broker, topic="u", waitForTopic="true")).schema()


def test_a_topic_without_retention(broker: LogBroker) -> None:
    broker.topics["t"].kept = False
    assert loading(given(broker)) == (
        f"nsq: topic 't' keeps no log on nsqd {broker.address}; start nsqd with "
        "--retention-time, or "
        "set a retention policy for the topic"
    )


def test_an_nsqd_without_logs() -> None:
    broker = LogBroker(settings={"version": "1.3.0"})
    text = loading(given(broker))
    broker.close()
    assert text == (
        f"nsq: {broker.address} does not support topic_log (version nsqd/1.3.0); use nsq_to_nsq "
        "to copy its messages to an nsqcy nsqd"
    )


def test_nobody_answers(broker: LogBroker) -> None:
    broker.close()
    answer = f"nsq: topic 't': no answer from nsqd {broker.address}"
    expected = f"{answer}; start nsqd there, or correct its address"
    assert loading(given(broker)) == expected


def test_one_does_not_answer(broker: LogBroker) -> None:
    other = LogBroker()
    other.close()
    both = {"nsqdTcpAddresses": f"{broker.address},{other.address}"}
    assert refusal(broker, Unreachable, **both) == (
        f"nsq: no answer from nsqd {other.address}; set failOnUnreachable=false "
        "to continue without it"
    )
    assert seqs(broker, failOnUnreachable="false", **both) == list(range(1, 11))


# failures during a task


def spoiling(*which: int) -> Any:
    """Return a function that breaks the checksum of the blocks with these numbers."""
    count = -1

    def spoil(data: bytearray) -> None:
        nonlocal count
        count += 1
        if count in which:
            data[-1] ^= 1

    return spoil


def test_a_bad_block_is_requested_again(broker: LogBroker) -> None:
    broker.max_records = 3
    broker.spoil = spoiling(1)
    assert seqs(broker) == list(range(1, 11))
    broker.spoil = spoiling(2, 3)
    assert refusal(broker, CorruptBlock) == (
        f"nsq: nsqd {broker.address} sent a corrupt block twice (reading topic 't', log {A}, "
        "seq 1 to 11, at seq 7): a block has a wrong checksum"
    )


def test_a_block_of_other_records(broker: LogBroker) -> None:
    def shift(data: bytearray) -> None:
        struct.pack_into("<Q", data, 32, 2)
        struct.pack_into("<I", data, 12, crc32c(bytes(data[16:])))

    from nsqcy.base.core import crc32c

    broker.spoil = shift
    told = refusal(broker, CorruptBlock)
    assert "sent a corrupt block twice" in told
    assert told.endswith(": the block contains records other than those requested")


def test_a_connection_that_is_lost(broker: LogBroker) -> None:
    broker.max_records = 3
    failures = iter([False, True, False, True, True])
    broker.refuse = lambda line: (
        "E_LOG_FAILED input/output error" if "FETCH" in line and next(failures, False) else ""
    )
    assert seqs(broker) == list(range(1, 11))
    broker.refuse = lambda line: "E_LOG_FAILED input/output error" if "FETCH" in line else ""
    assert refusal(broker, Unreachable, **{"fetchOffset.numRetries": "1"}) == (
        f"nsq: {broker.address} failed to read its disk: input/output error; reading topic 't', "
        f"log {A}, seq 1 to 11, at seq 1"
    )
    assert len(broker.said("LOG_FETCH")) >= 2


def test_retention_passes_a_task(broker: LogBroker) -> None:
    for fail, options in [(True, {}), (False, {"failOnDataLoss": "false"})]:
        reader = batch(given(broker, **options), "seq")
        part = next(iter(reader.partitions()))
        broker.topics["t"].logs[0].let_go(2)
        first = broker.topics["t"].logs[0].first_seq
        if fail:
            with pytest.raises(DataLoss) as caught:
                list(reader.read(part))
            assert str(caught.value) == (
                f"nsq: rows are lost: topic 't', log {A}, seq 1 to 11 on nsqd "
                f"{broker.address}: seq 1 "
                f"cannot be read: it was removed by retention; the first available seq is {first}; "
                f"set failOnDataLoss=false to continue without them"
            )
        else:
            assert sum(each.num_rows for each in reader.read(part)) == 11 - first


@pytest.mark.parametrize("what", ["cut", "made anew", "deleted"])
def test_a_log_ends_under_a_task(what: str, broker: LogBroker) -> None:
    for options in ({}, {"failOnDataLoss": "false"}):
        broker.topics["t"] = FakeTopic(A, 10)
        reader = batch(given(broker, **options), "seq")
        part = next(iter(reader.partitions()))
        match what:
            case "cut":
                broker.topics["t"].logs[0].cut(4)
            case "made anew":
                broker.topics["t"] = FakeTopic(B, 10)
            case "deleted":
                del broker.topics["t"]
        if options:
            found = [each.num_rows for each in reader.read(part)]
            assert sum(found) == (3 if what == "cut" else 0)
        else:
            with pytest.raises(
                DataLoss, match=r"^nsq: rows are lost: topic 't', log a+, seq 1 to 11 on"
            ):
                list(reader.read(part))


def test_damaged_records(broker: LogBroker) -> None:
    records = broker.topics["t"].logs[0].records
    records[4] = records[6] = Record(b"", 0, 0)
    assert refusal(broker, DataLoss) == (
        f"nsq: rows are lost: topic 't', log {A}, seq 1 to 11 on nsqd {broker.address}: 2 "
        "records from "
        "seq 5 are damaged on its disk; set failOnDataLoss=false to continue without them"
    )
    assert seqs(broker, failOnDataLoss="false") == [1, 2, 3, 4, 6, 8, 9, 10]


def test_a_rejected_request_is_not_retried(broker: LogBroker) -> None:
    broker.refuse = lambda line: "E_UNAUTHORIZED AUTH failed" if "META" in line else ""
    text = refusal(broker, Refused)
    assert text == f"nsq: {broker.address} refused: E_UNAUTHORIZED AUTH failed"
    assert len(broker.said("LOG_META")) == 1


@pytest.mark.parametrize(
    ("options", "said", "text"),
    [
        ({}, ["IDENTIFY"], "{} requires authSecret"),
        ({"authSecret": "hunter2"}, ["IDENTIFY", "AUTH"], "{} refused: E_AUTH_FAILED not ***"),
        ({"tls": "true"}, ["IDENTIFY"], "{} does not support TLS"),
    ],
)
def test_who_is_not_let_in_does_not_knock_again(
    options: dict[str, str], said: list[str], text: str
) -> None:
    guarded = LogBroker(settings={"topic_log": 1, "auth_required": True})
    guarded.refuse = lambda line: "E_AUTH_FAILED not hunter2" if line == "AUTH" else ""
    assert loading(given(guarded, **options)) == f"nsq: {text.format(guarded.address)}"
    assert guarded.asked == said
    guarded.close()


def test_an_answer_that_makes_no_sense(broker: LogBroker) -> None:
    broker.refuse = lambda line: "E_LOG_GONE 1" if "FETCH" in line else ""
    assert refusal(broker, Refused, failOnDataLoss="false") == (
        f"nsq: {broker.address} has the log from seq 1, but does not send seq 1"
    )


def test_a_batch_does_not_wait_for_a_topic(broker: LogBroker) -> None:
    text = refusal(broker, Refused, topic="u", waitForTopic="true")
    assert text == f"nsq: {NOT_FOUND}"
