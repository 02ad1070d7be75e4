"""Writing, task by task, to nsqds controlled by the test."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from nsqcy.spark import publish, sink
from nsqcy.spark.errors import NsqError, OptionError, Refused, Unreachable
from nsqcy.spark.source import NsqDataSource
from support.fake_chunk_nsqd import DROP, LOSE, ChunkBroker, Taken
from support.fake_lookup_http import LookupPages
from support.runs import runs
from support.spark_on_disk import save
from support.spark_sinks import QUERY, run, table, write, writer

STRINGS = pa.map_(pa.string(), pa.string())
BYTES = pa.map_(pa.string(), pa.binary())


@pytest.fixture
def broker() -> Iterator[ChunkBroker]:
    broker = ChunkBroker()
    yield broker
    broker.close()


@pytest.fixture
def brokers() -> Iterator[list[ChunkBroker]]:
    found = sorted((ChunkBroker() for _ in range(3)), key=lambda broker: broker.address)
    yield found
    for broker in found:
        broker.close()


def to(*brokers: ChunkBroker, **options: str) -> dict[str, str]:
    addresses = ",".join(broker.address for broker in brokers)
    return {"topic": "t", "nsqdTcpAddresses": addresses} | options


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def refusal(kind: type[NsqError], how: Callable[..., object], *args: Any, **named: Any) -> str:
    with pytest.raises(kind) as caught:
        how(*args, **named)
    return str(caught.value)


# publishing


def test_bodies(broker: ChunkBroker) -> None:
    assert write(to(broker), {"body": bodies(5)}) == sink.Written(0, 5)
    write(to(broker), {"value": ["fünf", "x"]})
    assert broker.bodies() == [*bodies(5), "fünf".encode(), b"x"]
    assert write(to(broker), {"body": []}) == sink.Written(0, 0)
    assert broker.connections == 2, "without rows there is no connection"


def test_chunks_end_where_their_bytes_do(broker: ChunkBroker) -> None:
    """The record batches of the input do not matter; a message too long for any chunk is sent
    alone."""
    rows = table({"body": [b"x" * 10] * 7 + [b"y" * 200] + [b"z" * 60] * 2})
    made = writer(to(broker, batchBytes="74"), rows)
    for piece in (1, 4, 100):
        broker.asked.clear()
        run(made, rows, piece=piece, task=piece)
        ends = [int(line.split()[-1]) for line in broker.said("LOG_PUB")]
        assert ends == [5, 7, 8, 9, 10]
    assert broker.bodies() == rows["body"].to_pylist() * 3


def test_topics_of_rows(broker: ChunkBroker) -> None:
    topics = ["a", None, "b", "a", "t"]
    write(to(broker), {"topic": topics, "body": bodies(5)}, topic=pa.string())
    assert broker.bodies("a") == [b"0", b"3"]
    assert broker.bodies("b") == [b"2"]
    assert broker.bodies("t") == [b"1", b"4"]
    ends = {line.split()[1]: line.split()[-1] for line in broker.asked}
    assert ends == {"a": "4", "b": "3", "t": "5"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (STRINGS, [{"trace": "4b", "ttl": "500"}, {}, None]),
        (BYTES, [{"trace": b"4b", "ttl": b"500"}, {}, None]),
        (pa.binary(), [b"\5trace\0\0024b\3ttl\0\003500", b"", None]),
    ],
)
def test_headers(kind: pa.DataType, values: list[Any], broker: ChunkBroker) -> None:
    write(to(broker), {"headers": values, "body": bodies(3)}, headers=kind)
    assert broker.topics["t"] == [
        Taken(b"0", b"\5trace\0\0024b\3ttl\0\003500"),
        Taken(b"1"),
        Taken(b"2"),
    ]


def test_deferred_messages(broker: ChunkBroker) -> None:
    columns = {"defer_ms": [0, 5000, None, 7], "body": bodies(4)}
    write(to(broker, idempotent="false"), columns, defer_ms=pa.int16())
    assert sorted(broker.topics["t"], key=lambda each: each.body) == [
        Taken(b"0"),
        Taken(b"1", defer_ms=5000),
        Taken(b"2"),
        Taken(b"3", defer_ms=7),
    ]
    columns["headers"] = [{"a": "b"}] * 4
    broker.topics.clear()
    write(to(broker, idempotent="false"), columns, defer_ms=pa.int64(), headers=STRINGS)
    assert {each.headers for each in broker.topics["t"]} == {b"\1a\0\1b"}


def test_many_rows_are_held_on_disk(broker: ChunkBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqcy.spark.sink.HELD_BYTES", 100)
    monkeypatch.setattr("nsqcy.spark.messages.PIECE", 300)
    rows = table({"body": bodies(500)})
    run(writer(to(broker), rows), rows, piece=100)
    assert broker.bodies() == bodies(500)


def test_several_chunks_go_ahead_of_their_answers(broker: ChunkBroker) -> None:
    broker.silent_for = publish.CHUNKS_AHEAD - 1
    write(to(broker, batchBytes="1k"), {"body": [b"x" * 496] * 40})
    assert len(broker.asked) == 20
    assert broker.connections == 1


# exactly once


def test_a_batch_that_is_repeated(broker: ChunkBroker) -> None:
    """Repeated attempts of the same job, as after the failure of a task."""
    rows = table({"body": bodies(100)})
    made = writer(to(broker, batchBytes="40"), rows)
    run(made, rows)
    run(made, rows)
    assert broker.bodies() == bodies(100)
    run(writer(to(broker, batchBytes="40"), rows), rows)
    assert len(broker.bodies()) == 200, "a different job is a different batch"


def test_a_batch_with_a_name(broker: ChunkBroker) -> None:
    rows = table({"body": bodies(100)})
    for _ in range(2):
        run(writer(to(broker, producerId="backfill-7"), rows), rows)
    assert broker.bodies() == bodies(100)
    assert broker.asked[0].startswith("LOG_PUB t backfill-7 0 ")


def test_a_stream_s_batch_that_is_repeated(broker: ChunkBroker) -> None:
    """The driver has crashed, so a new writer repeats the batch."""
    first, second = table({"body": bodies(50)}), table({"body": bodies(10, 50)})
    run(writer(to(broker), first, stream=True), first, batch=0)
    for _ in range(2):
        run(writer(to(broker), second, stream=True), second, batch=1)
    assert broker.bodies() == bodies(60)
    _, _, name, _, _, chunk = broker.asked[-1].split()
    assert (name, chunk) == (QUERY, "10")
    named = to(broker, producerId="copier")
    for query in (QUERY, QUERY.replace("5", "6")):
        run(writer(named, first, stream=True), first, batch=0, query=query)
    assert len(broker.bodies()) == 160, "a new checkpoint counts from 0 again"
    assert all(line.split()[2].startswith("copier.") for line in broker.asked[-2:])


@pytest.fixture
def plan(tmp_path: Path) -> Callable[[int, object], str]:
    """Plans a batch, as Spark does, and returns the checkpoint."""

    def plan(number: int, end: object) -> str:
        save(tmp_path / "metadata", json.dumps({"id": QUERY}))
        save(tmp_path / "offsets" / str(number), f"v1\n{{}}\n{json.dumps(end)}")
        return f"file://{tmp_path}"

    return plan


def test_a_batch_comes_again_with_other_rows(
    plan: Callable[[int, object], str], brokers: list[ChunkBroker]
) -> None:
    """Nothing is published, even if the batch's rows now belong to other nsqds or topics."""
    checkpoint = plan(4, 30)
    given_ = to(*brokers, checkpointLocation=checkpoint)
    rows = table({"body": bodies(30)})
    for _ in range(2):
        run(writer(given_, rows, stream=True), rows, batch=4)
    plan(4, 40)
    text = refusal(Refused, writer, given_, rows, stream=True)
    assert "batch 4 now has different rows" in text
    assert "topic 't' has batches up to 4 of this query" in text
    assert f"{checkpoint} is older than the published data" in text
    plan(5, 40)
    run(writer(given_, rows, stream=True), rows, batch=5)
    assert sum(len(broker.bodies()) for broker in brokers) == 60


def test_a_batch_that_nsqds_have_forgotten(
    plan: Callable[[int, object], str], broker: ChunkBroker
) -> None:
    given_ = to(broker, checkpointLocation=plan(9, 90))
    rows = table({"body": bodies(3)})
    run(writer(given_, rows, stream=True), rows, batch=9)
    plan(9, 90)
    (Path(given_["checkpointLocation"].removeprefix("file://")) / "offsets" / "9").unlink()
    plan(7, 70)
    text = refusal(Refused, writer, given_, rows, stream=True)
    assert "batch 7 now has different rows, or nsqds have forgotten it" in text
    anyway = given_ | {"onChangedBatch": "publish"}
    run(writer(anyway, rows, stream=True), rows, batch=7)
    assert broker.bodies() == bodies(3) * 2


def test_topics_of_a_batch_that_comes_again(
    plan: Callable[[int, object], str], brokers: list[ChunkBroker]
) -> None:
    """A task queries the topics in its rows."""
    given_ = to(*brokers, checkpointLocation=plan(0, 2))
    del given_["topic"]
    rows = table({"body": bodies(2), "topic": ["a", "b"]}, topic=pa.string())
    run(writer(given_, rows, stream=True), rows, batch=0)
    plan(0, 3)
    made = writer(given_, rows, stream=True)
    text = refusal(Refused, run, made, rows, batch=0, task=1)
    assert "topic 'a' has batches up to 0" in text
    assert sum(len(broker.bodies(topic)) for broker in brokers for topic in "ab") == 2


@pytest.mark.parametrize("where", ["s3a://lake/checkpoint", "/nowhere"])
def test_a_checkpoint_that_cannot_be_read(where: str, broker: ChunkBroker) -> None:
    """Without the checkpoint, only its number and its rows identify a batch."""
    rows = table({"body": bodies(3)})
    for _ in range(2):
        made = writer(to(broker, checkpointLocation=where), rows, stream=True)
        run(made, rows, batch=0)
    assert broker.bodies() == bodies(3)


def test_an_nsqd_that_cannot_say_what_it_has(
    plan: Callable[[int, object], str], brokers: list[ChunkBroker]
) -> None:
    given_ = to(*brokers, checkpointLocation=plan(0, 2))
    given_["fetchOffset.numRetries"] = "1"
    brokers[1].close()
    rows = table({"body": bodies(2)})
    assert brokers[1].address in refusal(Unreachable, writer, given_, rows, stream=True)
    given_["onNodeFailure"] = "failover"
    run(writer(given_, rows, stream=True), rows, batch=0)
    assert brokers[0].bodies() == bodies(2)


def test_a_stream_whose_batches_have_no_names(
    broker: ChunkBroker, caplog: pytest.LogCaptureFixture
) -> None:
    rows = table({"body": bodies(5)})
    run(writer(to(broker), rows, stream=True), rows)
    assert broker.bodies() == bodies(5)
    assert "a batch that is rerun is published again" in caplog.messages[0]


def test_very_many_tasks(broker: ChunkBroker) -> None:
    """An epoch has at most 10,000 parts."""
    rows = table({"body": [b"x"]})
    made = writer(to(broker, producerId="p"), rows)
    for task in (7, 8192 + 7):
        run(made, rows, task=task)
    found = [[int(word) for word in line.split()[3:]] for line in broker.asked]
    content = found[0][1] % (1 << 19)
    assert found == [[0, (7 << 19) + content, 1], [1 << 56, (7 << 19) + content, 1]]


fates = st.lists(st.sampled_from(["", "", LOSE, DROP, "E_LOG_PUB_FAILED x"]), max_size=12)


@settings(max_examples=runs(40), deadline=None)
@given(fates, st.integers(1, 60), st.sampled_from(["30", "80", "1m"]), st.booleans())
def test_every_row_once_whatever_is_lost(
    fates: list[str], count: int, size: str, stream: bool
) -> None:
    """Answers, connections and entire attempts are lost; the order within a topic is kept."""
    broker = ChunkBroker()
    left = iter(fates)
    broker.meddle = lambda line: next(left, "") if line.startswith("LOG_PUB") else ""
    rows = table({"topic": ["a", "b", "b"] * count, "body": bodies(3 * count)}, topic=pa.string())
    options = to(broker, batchBytes=size, **{"fetchOffset.numRetries": "1"})
    made = writer(options, rows, stream=stream)
    for attempt in range(20):
        try:
            run(made, rows, batch=3 if stream else None, piece=7 + attempt)
            break
        except Unreachable:
            pass
    broker.close()
    everything = bodies(3 * count)
    assert broker.bodies("a") == everything[::3]
    assert broker.bodies("b") == [body for index, body in enumerate(everything) if index % 3]


CHANGES: list[tuple[dict[str, str], list[bytes]]] = [
    ({"batchBytes": "100"}, bodies(100)),
    ({"maxMessagesPerSecond": "10000"}, bodies(100)),
    ({}, list(reversed(bodies(100)))),
    ({}, [*bodies(99), b"another"]),
    ({}, [b"".join(bodies(12)), *bodies(88, 12)]),
]


@pytest.mark.parametrize(("options", "again"), CHANGES)
def test_what_is_repeated_otherwise_is_published_again(
    options: dict[str, str], again: list[bytes], broker: ChunkBroker
) -> None:
    """If rows, their order or chunks differ, rows may be duplicated, but none is missing."""
    broker.meddle = lambda line: "" if line.endswith(" 26") else "E_LOG_PUB_FAILED x"
    given_ = to(broker, producerId="p", batchBytes="150", **{"fetchOffset.numRetries": "0"})
    with pytest.raises(Unreachable):
        run(writer(given_, rows := table({"body": bodies(100)})), rows)
    assert broker.bodies() == bodies(26)
    broker.meddle = lambda _line: ""
    run(writer(given_ | options, rows := table({"body": again})), rows)
    assert broker.bodies() == bodies(26) + again


def test_other_nsqds_get_everything(brokers: list[ChunkBroker]) -> None:
    rows = table({"k": list(range(40)), "body": bodies(40)}, k=pa.int64())
    options = {"producerId": "p", "partitioner": "hash(k)"}
    run(writer(to(*brokers[:2], **options), rows), rows)
    run(writer(to(*brokers[1:], **options), rows), rows)
    assert sum(len(broker.bodies()) for broker in brokers) == 80


def test_columns_of_every_kind_add_up(broker: ChunkBroker) -> None:
    """The counts are right regardless of how the rows are split into record batches."""
    columns = {
        "body": bodies(30),
        "topic": ["a", "b", None] * 10,
        "defer_ms": [0] * 30,
        "headers": [{"a": "b"}, None, {}] * 10,
    }
    rows = table(columns, topic=pa.string(), defer_ms=pa.int16(), headers=STRINGS)
    made = writer(to(broker), rows)
    for piece in (30, 7, 1):
        run(made, rows, piece=piece)
    assert len(set(broker.asked)) == 3
    rows = rows.set_column(1, "topic", pa.array(["a", "c", None] * 10))
    run(made, rows)
    assert len(set(broker.asked)) == 6


# selecting the nsqd


def test_tasks_take_nsqds_in_turn(brokers: list[ChunkBroker]) -> None:
    rows = table({"body": bodies(4)})
    made = writer(to(*brokers), rows, stream=True)
    for task in range(4):
        run(made, rows, task=task, batch=0)
    assert [len(broker.bodies()) for broker in brokers] == [8, 4, 4]
    run(made, rows, task=0, batch=2)
    assert [len(broker.bodies()) for broker in brokers] == [8, 4, 8]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64()])
def test_a_value_has_its_nsqd(kind: pa.DataType, brokers: list[ChunkBroker]) -> None:
    keys = [number % 20 for number in range(200)]
    values = [str(key) for key in keys] if kind == pa.string() else keys
    columns = {"user": values, "body": bodies(200)}
    write(to(*brokers, partitioner="hash(user)"), columns, user=kind)
    found = [{int(body) % 20 for body in broker.bodies()} for broker in brokers]
    assert all(found) and sum(map(len, found)) == 20
    assert sum(len(broker.bodies()) for broker in brokers) == 200
    for broker in brokers:
        assert broker.bodies() == sorted(broker.bodies(), key=int)


def test_nsqds_that_lookupds_know(brokers: list[ChunkBroker]) -> None:
    nodes = [("127.0.0.1", int(broker.address.split(":")[1])) for broker in brokers[:2]]
    with LookupPages(*nodes) as one, LookupPages(status=500) as two:
        options = {"topic": "t", "lookupdHttpAddresses": f"{one.address},{two.address}"}
        rows = table({"body": bodies(4)})
        made = writer(options | {"nsqdTcpAddresses": brokers[2].address}, rows)
        for task in range(3):
            run(made, rows, task=task)
        assert [len(broker.bodies()) for broker in brokers] == [4, 4, 4]
        assert one.asked[0][0] == "/nodes"
    options["fetchOffset.numRetries"] = "1"
    for more in ({}, {"nsqdTcpAddresses": brokers[2].address}):
        text = refusal(Unreachable, writer, options | more, rows)
        assert text.startswith(f"nsq: no nsqlookupd answered: {one.address}: ")
    with LookupPages() as one:
        options["lookupdHttpAddresses"] = one.address
        text = refusal(Unreachable, writer, options, rows)
        assert text == f"nsq: no nsqd is known to nsqlookupd {one.address}"


def test_an_nsqd_that_does_not_answer(brokers: list[ChunkBroker]) -> None:
    rows = table({"body": bodies(10)})
    made = writer(to(*brokers, **{"fetchOffset.numRetries": "1"}), rows)
    brokers[1].close()
    assert refusal(Unreachable, run, made, rows, task=1) == (
        f"nsq: nsqd {brokers[1].address} cannot be reached: Connection refused; publishing to "
        "topic 't', task 1, at row 0"
    )
    assert [len(broker.bodies()) for broker in brokers] == [0, 0, 0], "no nsqd takes its place"


def test_failover(brokers: list[ChunkBroker], caplog: pytest.LogCaptureFixture) -> None:
    """Unacknowledged rows are resent to the next nsqd that responds, so rows may be duplicated."""
    rows = table({"k": list(range(60)), "body": bodies(60)}, k=pa.int64())
    options = to(*brokers, onNodeFailure="failover", partitioner="hash(k)", batchBytes="40")
    options["fetchOffset.numRetries"] = "0"
    made = writer(options, rows)
    fates = iter(["", LOSE])
    brokers[0].meddle = lambda _line: next(fates, DROP)
    brokers[1].close()
    run(made, rows)
    found = [body for broker in brokers for body in broker.bodies()]
    assert set(found) == set(bodies(60))
    assert 60 < len(found) < 90
    assert any(
        f"; publishing to nsqd {brokers[2].address} instead; some" in each
        for each in caplog.messages
    )
    brokers[2].close()
    assert "publishing to topic 't', task 0, at row" in refusal(Unreachable, run, made, rows)


# nsqds that lack the feature


def test_an_nsqd_without_chunks(caplog: pytest.LogCaptureFixture) -> None:
    broker = ChunkBroker({"version": "1.3.0"})
    for _ in range(2):
        write(to(broker), {"body": bodies(5)})
    assert broker.asked == ["MPUB t"] * 2
    assert broker.bodies() == bodies(5) * 2
    assert caplog.messages == [
        f"nsq: {broker.address} does not support topic_log (version nsqd/1.3.0): rows are sent "
        "by MPUB, at least once"
    ]
    assert refusal(Refused, write, to(broker), {"body": [b"x"], "headers": [b""]}) == (
        f"nsq: {broker.address} does not support message headers (version nsqd/1.3.0); leave the "
        "column out"
    )
    broker.close()


def test_without_idempotence(broker: ChunkBroker, caplog: pytest.LogCaptureFixture) -> None:
    fates = iter([LOSE])
    broker.meddle = lambda _line: next(fates, "")
    write(to(broker, idempotent="false"), {"body": bodies(5)})
    assert broker.asked == ["MPUB t"] * 2
    assert broker.bodies() == bodies(5) * 2, "at least once"
    assert not caplog.messages


LONG = {"body": [bytes(1_000_000)] * 32}  # chunks too large for any socket buffer


def test_what_nsqd_refuses_is_not_tried_again(broker: ChunkBroker) -> None:
    """nsqd sends the error and closes the connection while more chunks are on their way."""
    broker.meddle = lambda _line: "E_BAD_BODY LOG_PUB body too big 40 > 30"
    assert refusal(Refused, write, to(broker, batchBytes="8m"), LONG) == (
        f"nsq: {broker.address} refused: E_BAD_BODY LOG_PUB body too big 40 > 30"
    )
    assert len(broker.asked) <= 2


# refusals before anything is sent


TOPIC = "is not a topic name (1 to 64 characters: .a-zA-Z0-9_-)"
WRONG: list[tuple[str, list[Any], pa.DataType, str]] = [
    ("body", [b"x", None], pa.binary(), "its body is null"),
    ("body", [b"x", b""], pa.binary(), "its body is empty"),
    ("body", [b"x", b"y" * 101], pa.binary(), "its body has 101 bytes, but maxMessageBytes is 100"),
    ("topic", ["x", "a b"], pa.string(), f"'a b' {TOPIC}"),
    ("topic", ["x", "a#ephemeral"], pa.string(), f"'a#ephemeral' {TOPIC}"),
    ("topic", ["x", ""], pa.string(), "it has no topic"),
    ("defer_ms", [0, -5], pa.int64(), "its defer_ms is -5"),
    (
        "defer_ms",
        [0, 5],
        pa.int64(),
        "its defer_ms is 5, and deferred messages are published at least once: set "
        "idempotent=false to allow that",
    ),
    ("headers", [{}, {"A": ""}], STRINGS, "header name 'A' (allowed: 1 to 255 of a-z, 0-9 and"),
    ("headers", [{}, {"a": "x" * 5000}], STRINGS, "headers of 5004 bytes (at most 4096)"),
    ("headers", [{}, {str(i): "" for i in range(33)}], STRINGS, "33 headers (at most 32)"),
    ("headers", [{}, {"ttl": "0"}], STRINGS, "header 'ttl' is not a number of milliseconds"),
    ("headers", [b"", b"\5x"], pa.binary(), "header 0 extends beyond the last of 2 bytes"),
    ("headers", [b"", b"\1a\0\0" * 2], pa.binary(), "header 'a' twice"),
]


@pytest.mark.parametrize(("name", "values", "kind", "why"), WRONG)
def test_bad_rows(
    name: str, values: list[Any], kind: pa.DataType, why: str, broker: ChunkBroker
) -> None:
    """The bad rows are the second of each twenty and, in a separate batch, the last."""
    good, bad = values
    column = ([good] + [bad] + [good] * 18) * 2 + [good] * 10 + [bad]
    columns = {"body": [b"x"] * 51} | {name: column}
    said = refusal(Refused, write, to(broker, maxMessageBytes="100"), columns, **{name: kind})
    assert said.startswith(
        "nsq: 3 of 51 rows of task 0 cannot be published, so none was published; the first is row "
        f"1: {why}"
    )
    assert broker.connections == 0


def test_the_first_bad_row_is_counted_over_batches(broker: ChunkBroker) -> None:
    rows = table({"body": [b"x"] * 70 + [None, b""]})
    made = writer(to(broker), rows)
    assert refusal(Refused, run, made, rows, task=3, piece=30) == (
        "nsq: 2 of 72 rows of task 3 cannot be published, so none was published; the first is row "
        "70: its body is null"
    )


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": pa.int64()}, "column 'body' is bigint, not binary or string"),
        ({"text": pa.string()}, "column 'text' cannot be written (allowed: body or value, topic,"),
        (
            {"topic": pa.string()},
            "exactly one of the columns body and value is required: neither exists",
        ),
        (
            {"body": pa.string(), "value": pa.string()},
            "exactly one of the columns body and value is required: both exist",
        ),
        ({"body": pa.string(), "topic": pa.int32()}, "column 'topic' is int, not string"),
        (
            {"body": pa.string(), "defer_ms": pa.float64()},
            "column 'defer_ms' is double, not an int",
        ),
        (
            {"body": pa.string(), "headers": pa.string()},
            "column 'headers' is string, not map<string,string>, map<string,binary> or binary",
        ),
    ],
)
def test_columns(columns: dict[str, pa.DataType], text: str) -> None:
    rows = pa.schema(columns).empty_table()
    said = refusal(OptionError, writer, {"topic": "t", "nsqdTcpAddresses": "a:1"}, rows)
    assert said.startswith(f"nsq: {text}")


def test_columns_and_options() -> None:
    rows = table({"body": [b"x"]})
    here = {"nsqdTcpAddresses": "a:1"}
    text = "nsq: option 'topic' or a 'topic' column is required"
    assert refusal(OptionError, writer, here, rows) == text
    here["topic"] = "t"
    text = "nsq: option 'partitioner' hashes 'user', which is not a column"
    assert refusal(OptionError, writer, here | {"partitioner": "hash(user)"}, rows) == text
    wrong = pa.schema({"body": pa.binary(), "user": pa.float64()}).empty_table()
    text = "nsq: column 'user' is double, not binary, string or integer"
    assert refusal(OptionError, writer, here | {"partitioner": "hash(user)"}, wrong) == text


def test_a_topic_is_not_overwritten() -> None:
    source = NsqDataSource({"topic": "t", "nsqdTcpAddresses": "a:1"})
    schema = from_arrow_schema(table({"body": []}).schema)
    for how in (source.writer, source.streamWriter):
        assert refusal(OptionError, how, schema, True) == (
            "nsq: a topic cannot be overwritten: use mode('append') or, for a stream, output "
            "mode append or update"
        )


# rate limit


def test_messages_per_second(broker: ChunkBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks share the limit, and each chunk holds a tenth of a second's messages."""
    clock = [1000.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    class Time:
        monotonic = staticmethod(lambda: clock[0])
        sleep: Any = None

    Time.sleep = staticmethod(sleep)
    monkeypatch.setattr(publish, "time", Time)
    options = to(broker, maxMessagesPerSecond="200", parallelTasks="2")
    write(options, {"body": bodies(1000)})
    assert broker.bodies() == bodies(1000)
    assert len(broker.asked) == 100
    assert sum(slept) == pytest.approx(9.9)


def test_its_share_by_default() -> None:
    rows = table({"body": []})
    made = writer({"topic": "t", "nsqdTcpAddresses": "a:1", "maxMessagesPerSecond": "10"}, rows)
    assert made._options.parallel == (os.cpu_count() or 1)
