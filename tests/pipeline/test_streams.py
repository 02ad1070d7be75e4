"""Streams without Spark: reports about batches, and the handling of failed queries."""

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.options.kinds import BOOLEAN
from nsqcy.options.option import Option
from nsqcy.pipeline import stats, streams
from nsqcy.pipeline.__main__ import main, terminable
from nsqcy.pipeline.options import DURATION, Options
from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.streams import Watch, lags

OFFSET = '{"pos": {"orders": {"a": %d, "b": %d}}, "v": 1}'
TABLE = (Option("once", BOOLEAN, False, "to the end"), Option("every", DURATION, 60.0, "how often"))
AWAY = f"[STREAM_FAILED]\nTraceback (most recent call last):\n  x\n{streams.AWAY}nsq: h:1 is away"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_lags() -> None:
    assert lags(OFFSET % (10, 20), OFFSET % (4, 20)) == {"orders": {"a": 6, "b": 0}}
    for nothing in (None, "", "null", "not available"):
        assert lags(OFFSET % (10, 20), nothing) == lags(nothing, OFFSET % (4, 20)) == {}
    assert lags(OFFSET % (3, 20), OFFSET % (4, 20)) == {"orders": {"a": 0, "b": 0}}
    new = '{"pos": {"orders": {"a": 4}}, "v": 1}'
    assert lags(OFFSET % (4, 20), new) == {"orders": {"a": 0, "b": 0}}


def progress(rows: int, batch: int = 1) -> Any:
    source = SimpleNamespace(latestOffset=OFFSET % (10, 20), endOffset=OFFSET % (4, 20))
    return SimpleNamespace(numInputRows=rows, batchDuration=1500, batchId=batch, sources=[source])


def test_batches_of_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch(Report("archive", json_lines=True), Metrics("archive", 0))
    watch.seen(progress(100))
    watch.seen(progress(0, 2))
    watch.seen(progress(50, 3))
    assert (watch.rows, watch.batches) == (150, 2)
    last = lines(capsys)[-1]
    assert (last["done"], last["rows"], last["seconds"], last["behind"]) == (150, 50, 1.5, 6)
    assert last["lag"] == {"orders": {"a": 6, "b": 0}}


class Sink(streams.Sink):
    def __init__(self) -> None:
        super().__init__()
        self.prepared = 0
        self.written: list[tuple[str, int]] = []

    def prepare(self) -> None:
        super().prepare()
        self.prepared += 1

    def write(self, frame: Any, query_id: str, number: int) -> None:
        self.written.append((query_id, number))


def test_a_batch_waits_for_the_name_of_its_query() -> None:
    sink, frame = Sink(), None
    sink.prepare()
    batch = threading.Thread(target=sink, args=(frame, 7))
    batch.start()
    assert sink.written == []
    sink.begin("query")
    batch.join(10)
    assert sink.written == [("query", 7)]


class Query:
    """Query that ends successfully if `end` is empty, or else with an exception with this text."""

    id = "query"

    def __init__(self, end: str) -> None:
        self._end = end

    def awaitTermination(self) -> None:
        if self._end:
            raise RuntimeError(self._end)


Run = Callable[..., Sink]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run consecutive queries that end with these texts. `start`: error at the start of a query."""

    def go(*ends: str, start: str = "", **given: str) -> Sink:
        left, sink = list(ends), Sink()

        def started(*_: Any) -> Any:
            if start:
                raise RuntimeError(start)
            sink.prepare()
            return Query(left.pop(0))

        watch = Watch(Report("archive", json_lines=True), Metrics("archive", 0))
        spark = SimpleNamespace(streams=SimpleNamespace(removeListener=lambda _: None))
        spark.streams.addListener = lambda _: watch._ended.set()
        monkeypatch.setattr(streams, "make_session", lambda options, job: spark)
        monkeypatch.setattr(streams, "started", started)
        monkeypatch.setattr(streams, "check_topics", lambda given: None)
        monkeypatch.setattr(streams, "AGAIN_SECONDS", 0.01)
        options = Options(TABLE, {"once": False} | given)
        streams.run(options, {}, sink, tmp_path, watch)
        assert left == []
        return sink

    return go


def test_a_query_whose_nsqd_is_away_is_started_again(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(AWAY, AWAY, "").prepared == 3
    text = "nsq: h:1 is away; the batch will be retried in 0.01 s"
    assert [line["text"] for line in lines(capsys)] == [text] * 2


@pytest.mark.parametrize("once", [True, False])
def test_a_source_that_starts_too_slowly_is_started_again(
    once: bool, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark waits ten seconds for its Python worker."""
    slow = f"[STREAM_FAILED] Query terminated with exception: {streams.SLOW}. SQLSTATE: XXKST"
    assert run(slow, slow, "", once=once).prepared == 3
    text = "Spark's worker did not start within 10 s: starting it again"
    assert [line["text"] for line in lines(capsys)] == [text] * 2
    with pytest.raises(RuntimeError, match=streams.SLOW):
        run(start=slow, once=once)


class Endless:
    """Query that runs until it is stopped, and sends SIGTERM to this process while it is
    awaited."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def awaitTermination(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        self.stopped.wait(60)
        raise RuntimeError("stopped")

    def stop(self) -> None:
        self.stopped.set()


def test_a_job_is_stopped_by_a_signal() -> None:
    query = Endless()
    with terminable(threading.Event()):
        streams.follow(query)  # type: ignore[arg-type]
    assert query.stopped.is_set()


def test_what_a_signal_broke_off_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal interrupts a call to the JVM, so later calls may fail in any way."""

    def run(_options: Options, _report: Report) -> int:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)
        raise RuntimeError("Answer from Java side is empty")

    monkeypatch.setattr(stats, "run", run)
    assert main(["stats"]) == 0
    assert capsys.readouterr().err == ""


def test_other_ends_are_the_job_s(run: Run) -> None:
    for ends, given in [
        (["nsqcy.spark.errors.DataLoss: nsq: rows are lost"], {}),
        ([AWAY], {"once": True}),
        ([AWAY, "nsqcy.spark.errors.DataLoss: nsq: rows are lost"], {}),
    ]:
        with pytest.raises(RuntimeError, match=ends[-1].splitlines()[-1]):
            run(*ends, **given)
    with pytest.raises(RuntimeError, match="is away"):
        run(start=AWAY)
