"""Streaming jobs: a query whose batches are written by our own function, and its progress.

Exactly-once output has two halves: Spark repeats a batch until it has recorded it as written, and a
`Sink` writes only the rows that its output lacks.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqcy.pipeline import checkpoint
from nsqcy.pipeline.checkpoint import Positions
from nsqcy.pipeline.options import Options
from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.session import make_session, uri
from nsqcy.spark import offsets
from nsqcy.spark.failures import reason
from nsqcy.spark.offsets import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

LAST_WORDS = 10.0  # maximum seconds to wait for a stream to end
AGAIN_SECONDS = 15.0
SLOW = "Python worker failed to connect back"
TRIES = 5
AWAY = "nsqcy.spark.errors.Unreachable: "  # Spark's message for a query that failed in this way


class Sink(ABC):
    """A writer that Spark calls with each batch, and possibly several times with the last one."""

    def __init__(self) -> None:
        self._query_id = ""
        self._begun = threading.Event()

    def prepare(self) -> None:
        """Prepare for a query that is about to start."""
        self._begun.clear()

    def begin(self, query_id: str) -> None:
        """Set the query's id. The first batch waits for it, because the id is known only once
        the query is running."""
        self._query_id = str(query_id)
        self._begun.set()

    def __call__(self, frame: "DataFrame", number: int) -> None:
        self._begun.wait()
        self.write(frame, self._query_id, number)

    @abstractmethod
    def write(self, frame: "DataFrame", query_id: str, number: int) -> None:
        """Write batch `number` of a query, completely, before returning."""


def only(frame: "DataFrame", parts: list[Range]) -> "DataFrame":
    """Return the rows of these parts."""
    from pyspark.sql import functions as f

    wanted = f.lit(False)
    for part in parts:
        log = (f.col("topic") == part.topic) & (f.col("log_id") == part.log_id)
        wanted |= log & (f.col("seq") >= part.start) & (f.col("seq") < part.end)
    return frame.where(wanted)


# --- a run ------------------------------------------------------------------------------------


def run(
    options: Options, given: Mapping[str, str], sink: Sink, state: Path, watch: "Watch"
) -> None:
    """Run the query over `format("nsq")` with the options `given`: with `--once` until it has read
    all rows, otherwise until the job ends.

    The rows of a batch are fixed when it is planned. A query therefore fails if an nsqd with some
    of these rows becomes unreachable. A continuous job retries that batch until the nsqd is back.
    Every job retries a few times if the source's worker does not start within ten seconds, Spark's
    fixed limit, which may be too short on a busy machine.
    """
    check(state)
    check_topics(given)
    spark = make_session(options, watch.report.job)
    has_run = False
    too_slow = 0
    while True:
        try:
            with watch.on(spark):
                query = started(options, spark, given, sink, state)
                has_run = True
                is_over = follow(query)
            if options["once"] and not is_over:
                raise KeyboardInterrupt
            return
        except Exception as error:
            if SLOW in str(error) and too_slow < TRIES:
                too_slow += 1
                watch.report.warn("Spark's worker did not start within 10 s: starting it again")
                continue
            if options["once"] or not has_run or AWAY not in str(error):
                raise
            watch.report.warn(f"{reason(error)}; the batch will be retried in {AGAIN_SECONDS:g} s")
        time.sleep(AGAIN_SECONDS)


def absent(options: Options, given: Mapping[str, str], report: Report) -> bool:
    """Return whether an unresponsive nsqd has rows that a job with `--once` should have written,
    and report it."""
    from nsqcy.spark.cluster import Cluster
    from nsqcy.spark.options import parse

    asked = parse(dict(given))
    if not options["once"] or asked.fail_on_unreachable is False:
        return False
    cluster = Cluster(asked)
    try:
        away = sorted({each for found in cluster.view().away.values() for each in found})
    finally:
        cluster.close()
    for address in away:
        text = f"no answer from nsqd {address}: run the job again to read its rows"
        report.warn(text, nsqd=address)
    return bool(away)


def check(state: Path) -> None:
    """Fail, with a remedy, if Spark could not continue from its checkpoint."""
    try:
        checkpoint.check(state)
    except checkpoint.Unreadable as error:
        raise checkpoint.Unreadable(
            f"{error}; remove {state} to continue without Spark's state: no row is lost or written "
            "twice"
        ) from None


def check_topics(given: Mapping[str, str]) -> None:
    """Raise the errors of the options and topics before Spark starts, which takes many seconds."""
    from nsqcy.spark.source import NsqDataSource

    NsqDataSource(dict(given)).schema()


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


def follow(query: "StreamingQuery") -> bool:
    """Wait until the query ends or the job is stopped. After a stop, the next run writes the rows
    that are still missing. Return whether the query has ended on its own."""
    over = threading.Event()
    failures = []

    def wait() -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            failures.append(error)
        over.set()

    # Wait in a separate thread: a signal during a call to the JVM would leave a partial response on
    # the connection, and the next call would read the rest.
    try:
        threading.Thread(target=wait, daemon=True).start()
        while not over.wait(0.5):
            pass  # a signal just before the wait does not end it: Python handles it after the wait
    except KeyboardInterrupt:
        query.stop()
        return False
    if failures:
        raise failures[0]
    return True


# --- progress ---------------------------------------------------------------------------------


def positions(offset: str | None) -> Positions:
    """Parse an offset. Spark has its own strings for a missing offset."""
    try:
        return offsets.positions(json.loads(offset or "")["pos"])
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {}


def lags(latest: str | None, end: str | None) -> Positions:
    """Return the number of records in each log after the end of the last batch, given two
    offsets."""
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
    """Reports the batches of a stream, from Spark's progress events."""

    def __init__(self, report: Report, metrics: Metrics) -> None:
        self.report = report
        self._metrics = metrics
        self._ended = threading.Event()
        self.rows = 0
        self.batches = 0

    @contextmanager
    def on(self, spark: "SparkSession") -> Iterator[None]:
        """Report while the stream runs in this context. The last batch is reported after its
        end."""
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
        """Report a finished batch."""
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
