"""A stream, driven as Spark drives it, with a broker controlled by the test."""

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from nsqcy.spark.errors import DataLoss, NsqError, OptionError, Refused, Unreachable
from nsqcy.spark.offsets import View
from nsqcy.spark.source import MIN_ROWS
from nsqcy.testing.http_requests import eventually
from support.fake_log_nsqd import FakeTopic, LogBroker
from support.runs import runs
from support.spark_engine import Checkpoint, Crash, Engine
from support.spark_sources import stream

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
Start = Callable[..., Engine]


@pytest.fixture
def broker() -> Iterator[LogBroker]:
    broker = LogBroker()
    broker.topics["t"] = FakeTopic(A, 10)
    yield broker
    broker.close()


@pytest.fixture
def query(broker: LogBroker) -> Iterator[Start]:
    """Starts a run: `query(checkpoint, available_now=False, maxOffsetsPerTrigger="3")`."""
    engines = []

    def start(
        checkpoint: Checkpoint | None = None,
        *columns: str,
        available_now: bool = False,
        **options: str,
    ) -> Engine:
        given = {
            "topic": "t",
            "nsqdTcpAddresses": broker.address,
            "startingOffsets": "earliest",
            "fetchOffset.numRetries": "1",
        } | options
        engine = Engine(
            lambda: stream(given, *(columns or ("log_id", "seq", "body"))),
            checkpoint if checkpoint is not None else Checkpoint(),
            available_now=available_now,
        )
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


def seqs(engine: Engine) -> list[int]:
    return [row["seq"] for row in engine.checkpoint.rows]


def numbers(first: int, end: int) -> list[int]:
    return list(range(first, end))


def test_everything_in_spark_s_order_of_calls(query: Start, broker: LogBroker) -> None:
    engine = query(maxOffsetsPerTrigger="4")
    engine.run()
    assert [len(rows) for rows in engine.checkpoint.sink.values()] == [4, 4, 2]
    assert [row["body"] for row in engine.checkpoint.rows] == [b"%d" % n for n in numbers(1, 11)]
    first = json.loads(engine.checkpoint.offsets[0])
    split = [os.cpu_count(), MIN_ROWS]
    assert first == {"from": {"t": {A: 1}}, "pos": {"t": {A: 5}}, "split": split, "v": 1}
    assert json.loads(engine.checkpoint.offsets[2]) == {
        "pos": {"t": {A: 11}},
        "split": split,
        "v": 1,
    }
    assert engine.calls[:6] == [
        "getDefaultReadLimit",
        "initialOffset",
        "latestOffset",
        "initialOffset",
        "partitions",
        "latestOffset",
    ]
    broker.topics["t"].publish(3)
    engine.run()
    assert seqs(engine) == numbers(1, 14)
    assert engine.reader.reportLatestOffset() == {"pos": {"t": {A: 14}}, "v": 1}


def test_latest_is_pinned_by_the_first_batch(query: Start, broker: LogBroker) -> None:
    checkpoint = Checkpoint()
    assert query(checkpoint, startingOffsets="latest").trigger()
    assert checkpoint.sink == {0: []}
    broker.topics["t"].publish(3)
    engine = query(checkpoint, startingOffsets="latest")
    engine.run()
    assert seqs(engine) == [11, 12, 13]


def test_the_beginning_stays_where_it_is(query: Start, broker: LogBroker) -> None:
    """Spark queries the initial offset twice, and messages may arrive in between."""
    reader = query(startingOffsets="latest").reader
    first = reader.initialOffset()
    broker.topics["t"].publish(3)
    assert reader.initialOffset() == first == {"init": 1, "pos": {"t": {A: 11}}, "v": 1}


def test_a_reader_in_use_can_be_sent_away(query: Start) -> None:
    engine = query()
    engine.run()
    sent = cloudpickle.loads(cloudpickle.dumps(engine.reader))
    assert sent._cluster is None and sent._options == engine.reader._options


@pytest.mark.parametrize("where", ["plan", "read", "commit"])
@pytest.mark.parametrize("triggers", [0, 1])
def test_a_batch_is_the_same_after_a_crash(
    query: Start, broker: LogBroker, where: str, triggers: int
) -> None:
    checkpoint = Checkpoint()
    engine = query(checkpoint, maxOffsetsPerTrigger="4")
    for _ in range(triggers):
        engine.trigger()
    with pytest.raises(Crash):
        engine.trigger(where)
    broker.topics["t"].publish(5)
    again = query(checkpoint, maxOffsetsPerTrigger="100", startingOffsets="latest")
    assert len(checkpoint.sink[triggers]) == 4
    again.run()
    assert seqs(again) == numbers(1, 16)


def test_retention_passes_a_batch_that_crashed_first(query: Start, broker: LogBroker) -> None:
    checkpoint = Checkpoint()
    with pytest.raises(Crash):
        query(checkpoint).trigger("plan")
    broker.topics["t"].logs[0].let_go(4)
    with pytest.raises(DataLoss) as caught:
        query(checkpoint)
    assert str(caught.value) == (
        f"nsq: rows are lost: topic 't', log {A} on nsqd {broker.address}: "
        "retention removed 4 rows from seq 1 on, and the first available seq is 5; set "
        "failOnDataLoss=false to continue without them"
    )
    engine = query(checkpoint, failOnDataLoss="false")
    assert seqs(engine) == numbers(5, 11)


def test_retention_passes_a_query_that_stopped(
    query: Start, broker: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Checkpoint()
    query(checkpoint, maxOffsetsPerTrigger="2").trigger()
    broker.topics["t"].logs[0].let_go(5)
    with pytest.raises(DataLoss, match=r"retention removed 3 rows from seq 3 on, .* is 6;"):
        query(checkpoint).trigger()
    engine = query(checkpoint, failOnDataLoss="false")
    engine.run()
    assert seqs(engine) == [1, 2, *numbers(6, 11)]
    assert json.loads(checkpoint.offsets[-1])["from"] == {"t": {A: 6}}
    assert len([each for each in caplog.messages if "3 rows" in each]) == 1


def test_an_older_copy_of_a_log(query: Start, broker: LogBroker) -> None:
    checkpoint = Checkpoint()
    query(checkpoint).run()
    broker.topics["t"].logs[0].cut(6)
    with pytest.raises(DataLoss, match="had rows up to seq 11, but now ends before 6"):
        query(checkpoint).trigger()


def test_a_topic_that_was_made_anew(query: Start, broker: LogBroker) -> None:
    checkpoint = Checkpoint()
    query(checkpoint, maxOffsetsPerTrigger="2").trigger()
    broker.topics["t"] = FakeTopic(B, 3)
    with pytest.raises(DataLoss) as caught:
        query(checkpoint).trigger()
    assert str(caught.value) == (
        f"nsq: rows are lost: topic 't', log {A} is on none of the nsqds {broker.address}, so "
        f"seq 3 cannot be read; if the nsqd with the log is down, start it; the new log is {B}; "
        "set failOnDataLoss=false to continue without them"
    )
    engine = query(checkpoint, failOnDataLoss="false")
    engine.run()
    assert seqs(engine) == [1, 2, 1, 2, 3]


def test_a_topic_that_was_read_is_made_anew(query: Start, broker: LogBroker) -> None:
    engine = query()
    engine.run()
    broker.topics["t"] = FakeTopic(B, 3)
    engine.run()
    assert seqs(engine) == [*numbers(1, 11), 1, 2, 3]


def test_another_incarnation(query: Start, broker: LogBroker) -> None:
    checkpoint = Checkpoint()
    engine = query(checkpoint, maxOffsetsPerTrigger="8")
    engine.trigger()
    topic = broker.topics["t"]
    topic.publish(2)
    topic.begin(B)
    topic.publish(5)
    engine.run()
    assert seqs(engine) == numbers(1, 18)
    assert {row["log_id"] for row in checkpoint.rows[12:]} == {B}
    del topic.logs[0]  # none of the log's records remain, but all were read
    topic.publish(1)
    engine = query(checkpoint)
    engine.run()
    assert seqs(engine) == numbers(1, 19)


def test_the_rest_of_a_planned_range_is_gone(query: Start, broker: LogBroker) -> None:
    """nsqd lost records from a planned batch in a crash."""
    checkpoint = Checkpoint()
    with pytest.raises(Crash):
        query(checkpoint).trigger("plan")
    topic = broker.topics["t"]
    topic.logs[0].cut(8)
    topic.begin(B)
    with pytest.raises(DataLoss, match="had rows up to seq 11, but now ends before 8"):
        query(checkpoint)
    assert seqs(query(checkpoint, failOnDataLoss="false")) == numbers(1, 8)


def test_available_now_ends(query: Start, broker: LogBroker) -> None:
    engine = query(available_now=True, maxOffsetsPerTrigger="4")
    assert engine.calls == ["prepareForTriggerAvailableNow", "getDefaultReadLimit"]
    while engine.trigger():
        broker.topics["t"].publish(5)
    assert seqs(engine) == numbers(1, 11)
    broker.topics["t"].begin(B)
    engine = query(engine.checkpoint, available_now=True)
    broker.topics["t"].publish(5)
    engine.run()
    assert seqs(engine) == numbers(1, 26)


def test_rows_are_held_until_there_are_enough(
    query: Start, broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = query(minOffsetsPerTrigger="15", maxTriggerDelay="10m")
    engine.trigger()  # the first batch determines the start, regardless of its size
    broker.topics["t"].publish(14)
    assert not engine.trigger()
    broker.topics["t"].publish(1)
    assert engine.trigger()
    broker.topics["t"].publish(1)
    assert not engine.trigger()
    assert engine.reader._held_since is not None
    engine.reader._held_since -= 600
    assert engine.trigger()
    assert seqs(engine) == numbers(1, 27)


@pytest.mark.parametrize("maximum", [{"maxOffsetsPerTrigger": "10"}, {"maxBytesPerTrigger": "1"}])
def test_a_maximum_below_the_minimum_is_enough(
    query: Start, broker: LogBroker, maximum: dict[str, str]
) -> None:
    engine = query(minOffsetsPerTrigger="15", maxTriggerDelay="10m", **maximum)
    engine.trigger()
    broker.topics["t"].publish(14)
    assert engine.trigger()


def test_the_limit_by_bytes(query: Start, broker: LogBroker) -> None:
    broker.topics["t"] = FakeTopic(A)
    broker.topics["t"].publish(*[b"x" * 1000] * 20)
    engine = query(maxBytesPerTrigger="5k")
    engine.run()
    assert [len(rows) for rows in engine.checkpoint.sink.values()] == [5, 5, 5, 5]


def test_projection_leaves_bodies_where_they_are(query: Start, broker: LogBroker) -> None:
    engine = query(None, "seq")
    engine.run()
    assert engine.checkpoint.rows[0] == {"seq": 1}
    assert broker.said("LOG_FETCH") == [f"LOG_FETCH t {A} 1 11 8388608 id"]


def test_a_repeated_batch_has_the_same_tasks(query: Start, broker: LogBroker) -> None:
    """Tasks do not depend on cores or minPartitions, because sinks identify rows by task."""
    checkpoint = Checkpoint()
    with pytest.raises(Crash):
        query(checkpoint, minPartitions="3").trigger("plan")
    query(checkpoint, minPartitions="5")
    assert [line.split()[3:5] for line in broker.said("LOG_FETCH")] == [
        ["1", "4"],
        ["4", "7"],
        ["7", "11"],
    ]


def test_tasks(query: Start, broker: LogBroker) -> None:
    engine = query(minPartitions="3")
    engine.run()
    assert [line.split()[3:5] for line in broker.said("LOG_FETCH")] == [
        ["1", "4"],
        ["4", "7"],
        ["7", "11"],
    ]
    assert seqs(engine) == numbers(1, 11)


def test_the_named_cursor(query: Start, broker: LogBroker) -> None:
    checkpoint = Checkpoint()
    engine = query(checkpoint, cursor="archive", maxOffsetsPerTrigger="4")
    engine.trigger()
    assert broker.cursors == {("t", "archive"): (A, 1)}
    engine.trigger()
    assert broker.cursors == {("t", "archive"): (A, 5)}
    query(checkpoint, cursor="archive").trigger()
    assert broker.cursors == {("t", "archive"): (A, 9)}
    assert not query(checkpoint, cursor="archive").trigger(), "everything has been written"
    assert broker.cursors == {("t", "archive"): (A, 11)}
    broker.refuse = lambda line: "E_INVALID invalid command" if "CURSOR" in line else ""
    with pytest.raises(Refused) as caught:
        query(checkpoint, cursor="archive").trigger()
    assert str(caught.value) == (
        f"nsq: cursor 'archive' cannot be set: {broker.address} refused: E_INVALID invalid command"
    )


def test_a_cursor_that_does_not_move_is_set_again(
    query: Start, broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the cursor would expire."""
    engine = query(cursor="archive")
    engine.run()
    assert not engine.trigger()
    assert len(broker.said("LOG_CURSOR")) == 2
    monkeypatch.setattr("nsqcy.spark.source.CURSOR_SECONDS", 0.0)
    assert not engine.trigger()
    assert broker.said("LOG_CURSOR")[1:] == [f"LOG_CURSOR t {A} archive 11"] * 2


def test_a_cursor_keeps_a_log_that_nobody_else_keeps(query: Start, broker: LogBroker) -> None:
    broker.topics["t"].kept = False
    engine = query(cursor="archive")
    engine.run()
    assert seqs(engine) == numbers(1, 11)


def test_starting_positions(query: Start, broker: LogBroker) -> None:
    for value, first in [(f'{{"t": {{"{A}": 4}}}}', 4), (f'{{"t": {{"{A}": -1}}}}', 11), ("{}", 1)]:
        engine = query(startingOffsets=value)
        engine.run()
        assert seqs(engine) == numbers(first, 11)
    engine = query(startingTimestamp=str(1_700_000_007_000), startingOffsets="latest")
    engine.run()
    assert seqs(engine) == numbers(7, 11)
    with pytest.raises(DataLoss, match=f"log {B} is on none of the nsqds .*, so seq 4 cannot be"):
        query(startingOffsets=f'{{"t": {{"{B}": 4}}}}').trigger()


def test_checkpoints_of_other_topics(query: Start) -> None:
    checkpoint = Checkpoint()
    query(checkpoint).run()
    with pytest.raises(OptionError) as caught:
        query(checkpoint, topic="u").trigger()
    assert str(caught.value) == (
        "nsq: the checkpoint has topics t, but the query reads u; use a new checkpointLocation"
    )


def test_topics_that_are_not_there(query: Start, broker: LogBroker) -> None:
    with pytest.raises(Refused, match=r"^nsq: topic 'u' not found on 1 nsqd; publish"):
        query(topic="u").trigger()
    engine = query(topic="u", waitForTopic="true", startingOffsets="latest")
    assert engine.trigger() and not engine.trigger()
    broker.topics["u"] = FakeTopic(B, 2)
    engine.run()
    assert seqs(engine) == [1, 2]


class TestManyNodes:
    """Three brokers; one of them becomes unavailable and then returns."""

    @pytest.fixture
    def brokers(self) -> Iterator[list[LogBroker]]:
        found = [LogBroker() for _ in range(3)]
        for broker, log_id in zip(found, (A, B, C), strict=True):
            broker.topics["t"] = FakeTopic(log_id, 10)
        yield found
        for broker in found:
            broker.close()

    @pytest.fixture
    def everywhere(self, query: Start, brokers: list[LogBroker]) -> Start:
        addresses = ",".join(broker.address for broker in brokers)

        def start(*args: Any, **options: Any) -> Engine:
            return query(*args, **{"nsqdTcpAddresses": addresses} | options)

        return start

    def test_limits_are_split(self, everywhere: Start, brokers: list[LogBroker]) -> None:
        brokers[0].topics["t"].publish(30)
        engine = everywhere(maxOffsetsPerTrigger="6")
        engine.trigger()
        by_log = [row["log_id"] for row in engine.checkpoint.rows]
        assert [by_log.count(log_id) for log_id in (A, B, C)] == [4, 1, 1]
        engine.run()
        assert max(len(rows) for rows in engine.checkpoint.sink.values()) == 6
        assert len(engine.checkpoint.rows) == 60

    def test_one_that_is_away_is_held(self, everywhere: Start, brokers: list[LogBroker]) -> None:
        engine = everywhere(maxOffsetsPerTrigger="3")
        engine.trigger()
        port = brokers[2].port
        topic = brokers[2].topics["t"]
        brokers[2].close()
        engine.run()
        by_log = [row["log_id"] for row in engine.checkpoint.rows]
        assert [by_log.count(log_id) for log_id in (A, B, C)] == [10, 10, 1]
        again = everywhere(engine.checkpoint)  # a run that has never seen that broker
        assert not again.trigger()
        brokers[2] = LogBroker(port)
        brokers[2].topics["t"] = topic
        engine = everywhere(engine.checkpoint)
        engine.run()
        found = [(row["log_id"], row["seq"]) for row in engine.checkpoint.rows]
        assert sorted(found) == [(log_id, seq) for log_id in (A, B, C) for seq in range(1, 11)]

    @pytest.mark.parametrize("watched", [False, True])
    def test_one_that_hangs_is_held(
        self,
        watched: bool,
        everywhere: Start,
        brokers: list[LogBroker],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The positions of an nsqd are kept even if a query to it is open; the other nsqds wait for
        it only once."""
        monkeypatch.setattr("nsqcy.spark.cluster.PATIENCE", 1.0)
        engine, address = everywhere(pollTimeoutMs="1" if watched else "0"), brokers[2].address
        engine.run()
        if watched:
            eventually(lambda: not engine.trigger() and all(each.is_asked for each in brokers))
            engine.reader._opened()._watches["t", address].since -= 60  # the answer is overdue
        brokers[2].silent = True
        brokers[0].topics["t"].publish(5)
        brokers[0].answer_waiting()
        assert engine.trigger()
        asked = len(brokers[2].asked)
        brokers[1].topics["t"].publish(5)
        brokers[1].answer_waiting()
        assert engine.trigger()
        assert len(brokers[2].asked) == asked
        text = f"nsq: nsqd {address} did not answer within 1 s; its logs stay at their positions"
        assert caplog.messages == [text]
        brokers[2].silent = False
        brokers[2].topics["t"].publish(5)
        engine.reader._opened()._down[address].until = 0
        engine.run()
        assert len(engine.checkpoint.rows) == 45

    def test_one_that_hangs_at_the_start(
        self, everywhere: Start, brokers: list[LogBroker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The nsqd that hangs is not queried repeatedly."""
        monkeypatch.setattr("nsqcy.spark.cluster.ANSWER_SECONDS", 1.0)
        brokers[2].silent = True
        engine = everywhere(**{"fetchOffset.numRetries": "3"})
        engine.run()
        assert len(engine.checkpoint.rows) == 20
        assert brokers[2].asked == ["IDENTIFY"]

    def test_one_that_is_away_may_be_too_much(
        self, everywhere: Start, brokers: list[LogBroker]
    ) -> None:
        brokers[2].close()
        with pytest.raises(Unreachable) as caught:
            everywhere(failOnUnreachable="true").trigger()
        assert str(caught.value) == (
            f"nsq: no answer from nsqd {brokers[2].address}; set failOnUnreachable=false to "
            "continue without it"
        )

    def test_a_planned_range_that_is_away(
        self, everywhere: Start, brokers: list[LogBroker]
    ) -> None:
        checkpoint = Checkpoint()
        with pytest.raises(Crash):
            everywhere(checkpoint).trigger("plan")
        brokers[2].close()
        with pytest.raises(
            Unreachable, match=f"log {C}, seq 1 to 11 cannot be read: no responding nsqd"
        ):
            everywhere(checkpoint)

    def test_nobody_answers(self, everywhere: Start, brokers: list[LogBroker]) -> None:
        for broker in brokers:
            broker.close()
        with pytest.raises(Unreachable, match=r"^nsq: topic 't': no answer from nsqd 127.0.0.1:"):
            everywhere().trigger()

    def test_an_nsqd_under_two_addresses(self, query: Start, brokers: list[LogBroker]) -> None:
        port = brokers[0].port
        engine = query(nsqdTcpAddresses=f"127.0.0.1:{port},localhost:{port}")
        engine.run()
        assert seqs(engine) == numbers(1, 11)

    def test_connections_that_are_lost(self, everywhere: Start, brokers: list[LogBroker]) -> None:
        engine = everywhere(maxOffsetsPerTrigger="3")
        while engine.trigger():
            for broker in brokers:
                broker.hang_up()
        assert len(engine.checkpoint.rows) == 30


def test_an_idle_query_asks_rarely(query: Start, broker: LogBroker) -> None:
    engine = query(pollTimeoutMs="1")
    engine.run()
    eventually(lambda: not engine.trigger() and broker.is_asked)
    before = len(broker.asked)
    for _ in range(50):
        assert not engine.trigger()
    lines = broker.asked[before:]
    assert [line.split()[0] for line in lines if line != "IDENTIFY"] == []
    assert broker.said("LOG_META")[-1] == "LOG_META t 20000 11"


def test_slow_queries_leave_requests_open(
    query: Start, broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, each trigger would query every nsqd again."""
    engine = query(pollTimeoutMs="1")
    cluster = engine.reader._opened()
    view = cluster.view

    def slow_view(*, tries: int = 1) -> View:
        found = view(tries=tries)
        time.sleep(0.002)  # longer than the timeout of the trigger
        return found

    monkeypatch.setattr(cluster, "view", slow_view)
    engine.run()
    eventually(lambda: broker.is_asked)
    before = len(broker.asked)
    assert not engine.trigger()
    assert len(broker.asked) == before


def test_connections_are_used_again(query: Start, broker: LogBroker) -> None:
    """An open query has its own connection; the answer returns that connection for reuse."""
    engine = query(None, "seq", pollTimeoutMs="1")
    engine.run()
    for _ in range(5):
        eventually(lambda: not engine.trigger() and broker.is_asked)
        broker.topics["t"].publish(1)
        broker.answer_waiting()
        broker.asked.clear()
        eventually(engine.trigger)
        assert broker.said("IDENTIFY") == ["IDENTIFY"], "only from the task"
    broker.hang_up()
    broker.topics["t"].publish(1)
    engine.run()
    assert seqs(engine) == numbers(1, 17)


histories = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 9)),
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("trigger"), st.sampled_from(["", "plan", "read", "commit"])),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=runs(15), deadline=None)
@given(histories, st.integers(1, 9))
def test_any_history_gives_every_row_once(history: list[tuple[str, Any]], limit: int) -> None:
    broker = LogBroker()
    topic = broker.topics["t"] = FakeTopic(f"{0:032x}", 5)
    given_ = {
        "topic": "t",
        "nsqdTcpAddresses": broker.address,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(limit),
    }
    checkpoint = Checkpoint()
    engines = [Engine(lambda: stream(given_, "log_id", "seq", "body"), checkpoint)]
    try:
        for what, detail in history:
            if what == "publish":
                topic.publish(detail)
            elif what == "begin":
                topic.begin(f"{len(topic.logs):032x}")
            else:
                try:
                    engines[-1].trigger(detail)
                except Crash:
                    engines.append(
                        Engine(lambda: stream(given_, "log_id", "seq", "body"), checkpoint)
                    )
        engines[-1].run()
    finally:
        for engine in engines:
            engine.close()
        broker.close()
    found = [(row["log_id"], row["seq"]) for row in checkpoint.rows]
    everything = [
        (log.log_id, seq) for log in topic.logs for seq in range(log.first_seq, log.next_seq)
    ]
    assert sorted(found) == sorted(everything)
    assert all(len(rows) <= limit for rows in checkpoint.sink.values())


def test_errors_are_one_line(query: Start, broker: LogBroker) -> None:
    broker.refuse = lambda line: "E_BAD_TOPIC LOG_META\ntopic" if line.startswith("LOG_") else ""
    with pytest.raises(NsqError) as caught:
        query().trigger()
    assert str(caught.value) == f"nsq: {broker.address} refused: E_BAD_TOPIC LOG_META topic"
