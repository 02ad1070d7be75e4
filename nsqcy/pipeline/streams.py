"""Jobs that are streams: a query whose batches a function of ours writes, and what is told of them.

Exactly once has two halves: Spark repeats a batch with the same rows until it has noted it as
written, and a `Sink` takes the place of what the same batch had left.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqcy.pipeline.checkpoint import Positions
from nsqcy.pipeline.options import Options
from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.session import make_session, reason, uri
from nsqcy.spark import offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

LAST_WORDS = 10.0  # seconds that the end of a stream is waited for
AGAIN_SECONDS = 15.0
AWAY = "nsqcy.spark.errors.Unreachable: "  # in what Spark tells of a query that failed so


class Sink(ABC):
    """What Spark calls with each batch, perhaps more than once with the last one."""

    def __init__(self) -> None:
        self._query_id = ""
        self._begun = threading.Event()

    def prepare(self) -> None:
        """A query is going to be started."""
        self._begun.clear()

    def begin(self, query_id: str) -> None:
        """The first batch waits for this: Spark tells the id only when the query runs."""
        self._query_id = str(query_id)
        self._begun.set()

    def __call__(self, frame: "DataFrame", number: int) -> None:
        self._begun.wait()
        self.write(frame, self._query_id, number)

    @abstractmethod
    def write(self, frame: "DataFrame", query_id: str, number: int) -> None:
        """Batch `number` of a query; all of it, when this returns."""


# --- a run ------------------------------------------------------------------------------------


def run(
    options: Options, given: Mapping[str, str], sink: Sink, state: Path, watch: "Watch"
) -> None:
    """The query over `format("nsq")` with the options `given`, to its end: with `--once` that of
    what there is, otherwise that of the job.

    A batch has its rows from when it was planned, so a query fails where an nsqd goes that has some
    of them. A job that goes on begins that batch again until the nsqd is back.
    """
    spark = make_session(options, watch.report.job)
    has_run = False
    while True:
        try:
            with watch.on(spark):
                query = started(options, spark, given, sink, state)
                has_run = True
                follow(query)
            return
        except Exception as error:
            if options["once"] or not has_run or AWAY not in str(error):
                raise
            watch.report.warn(f"{reason(error)}; the batch is begun again in {AGAIN_SECONDS:g} s")
        time.sleep(AGAIN_SECONDS)


def started(
    options: Options, spark: "SparkSession", given: Mapping[str, str], sink: Sink, state: Path
) -> "StreamingQuery":
    reader = spark.readStream.format("nsq").options(**given)
    writer = reader.load().writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", uri(state))
    if options["once"]:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{options['every']:g} seconds")
    sink.prepare()
    query = writer.start()
    sink.begin(query.id)
    return query


def follow(query: "StreamingQuery") -> None:
    """Until the query ends, or somebody stops the job: what was not written then is written by the
    next run."""
    over = threading.Event()
    failures = []

    def wait() -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            failures.append(error)
        over.set()

    # In a thread of its own: a signal in the midst of a call to the JVM would leave the connection
    # with half an answer, and the next call would get the rest.
    try:
        threading.Thread(target=wait, daemon=True).start()
        over.wait()
    except KeyboardInterrupt:
        query.stop()
        return
    if failures:
        raise failures[0]


# --- what is told -----------------------------------------------------------------------------


def positions(offset: str | None) -> Positions:
    """Of an offset's text. Spark has words of its own where there is none."""
    try:
        return offsets.positions(json.loads(offset or "")["pos"])
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {}


def lags(latest: str | None, end: str | None) -> Positions:
    """How many records each log has behind the end of the last batch, of two offsets as texts."""
    ends, there = positions(end), positions(latest)
    if not ends:
        return {}
    return {
        topic: {
            log_id: max(0, next_seq - ends.get(topic, {}).get(log_id, next_seq))
            for log_id, next_seq in logs.items()
        }
        for topic, logs in there.items()
    }


class Watch:
    """Reports the batches of a stream, from what Spark says of them."""

    def __init__(self, report: Report, metrics: Metrics) -> None:
        self.report = report
        self._metrics = metrics
        self._ended = threading.Event()
        self.rows = 0
        self.batches = 0

    @contextmanager
    def on(self, spark: "SparkSession") -> Iterator[None]:
        """While the stream runs in there. Spark speaks of the last batch after it has ended."""
        self._ended.clear()
        listener = self._listener()
        spark.streams.addListener(listener)
        try:
            yield
            self._ended.wait(LAST_WORDS)
        finally:
            spark.streams.removeListener(listener)

    def _listener(self) -> "StreamingQueryListener":
        from pyspark.sql.streaming.listener import StreamingQueryListener

        watch = self

        class Listener(StreamingQueryListener):
            def onQueryStarted(self, event: Any) -> None:
                pass

            def onQueryProgress(self, event: Any) -> None:
                watch.seen(event.progress)

            def onQueryTerminated(self, event: Any) -> None:
                watch._ended.set()

        return Listener()

    def seen(self, progress: Any) -> None:
        """A batch that is over."""
        rows = progress.numInputRows
        seconds = progress.batchDuration / 1000
        lag: Positions = {}
        for source in progress.sources:
            lag |= lags(source.latestOffset, source.endOffset)
        self.rows += rows
        self.batches += bool(rows)
        self._metrics.batch(rows, seconds, lag)
        self.report.progress(
            done=self.rows,
            batch=progress.batchId,
            rows=rows,
            seconds=round(seconds, 3),
            behind=sum(records for logs in lag.values() for records in logs.values()),
            lag=lag,
        )
