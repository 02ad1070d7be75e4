"""`nsqcy-pipeline rollup`: topic traffic per minute, as Parquet files and plots.

Executors count rows by minute and bucket. The driver merges the counts, which are few, into the
files that minutes.py describes. A batch is identified by its rows, not by its number, because Spark
may return to an older checkpoint. Rows that have been counted are not counted again.
"""

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcy.errors import UsageError
from nsqcy.names import EVENTS_TOPIC
from nsqcy.options.kinds import BOOLEAN
from nsqcy.options.option import Option
from nsqcy.pipeline import checkpoint, manifests, minutes, streams
from nsqcy.pipeline.minutes import BUCKETS, Count, Key
from nsqcy.pipeline.options import DURATION, INSTANT, PATH, SOURCE, SPARK, Options, choice
from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.rows import exactly
from nsqcy.pipeline.session import require_packages, require_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HELP = """\
counts messages, bytes and rates per minute, and plots them

Writes one row per topic, nsqd and minute; with --events also one per channel: latency from publish
to finish, attempts, requeues, timeouts. Writes Parquet files and, with matplotlib, plots and one
HTML page. Without --once it runs until ^C or SIGTERM."""

OPTIONS = (
    Option("root", PATH, "rollup", "output directory; do not share it between jobs"),
    Option(
        "events", BOOLEAN, False, f"also read the {EVENTS_TOPIC} topic, which nsqd --events fills"
    ),
    Option("once", BOOLEAN, False, "count the rows that exist now, then exit"),
    Option("every", DURATION, 60.0, "without --once: interval between writes"),
    Option("start", INSTANT, None, "start with rows published at this time; default: all rows"),
    Option("watermark", DURATION, 600.0, "time from the end of a minute until it is closed"),
    Option(
        "plots",
        choice("auto", "yes", "no"),
        "auto",
        "plot the last --plot-range; auto: if matplotlib is installed",
    ),
    Option("plot-range", DURATION, 86400.0, "time span of the plots, which end at the last minute"),
    *SPARK,
    *SOURCE,
)

WRITING = "lock"
EVENT = (
    "time LONG, kind STRING, topic STRING, channel STRING, attempts INT, in_flight LONG, age LONG"
)
DRAWN_SECONDS = 60  # seconds between two pages of a continuous job


def run(options: Options, report: Report) -> int:
    options.require_one_subject()
    require_spark()
    draws = wants_plots(options, report)
    root = Path(options["root"])
    metrics = Metrics("rollup", options["metrics-port"])
    with manifests.locked(root, WRITING):
        state = root / minutes.HIDDEN / "checkpoint"
        sink = Counts(root, state, options, draws)
        watch = streams.Watch(report, metrics)
        source = given(options, beginning(root, state))
        streams.run(options, source, sink, state, watch)
        pages = sink.draw() if draws else {}
    found = minutes.load(root)
    if found.late:
        report.warn(f"{found.late:,} late rows are counted separately", late=found.late)
    is_partial = streams.absent(options, source, report)
    report.done(rows=watch.rows, late=found.late, root=str(root), **pages)
    return int(is_partial)


def wants_plots(options: Options, report: Report) -> bool:
    from importlib.util import find_spec

    if options["plots"] == "yes":
        require_packages("matplotlib", extra="plots")
    if options["plots"] == "auto" and find_spec("matplotlib") is None:
        report.warn('no plots, because matplotlib is not installed: pip install "nsqcy[plots]"')
        return False
    return bool(options["plots"] != "no")


def beginning(root: Path, state: Path) -> checkpoint.Positions:
    """Return the start of a query without a checkpoint: after the rows that were counted."""
    if checkpoint.last(state / "offsets") >= 0:
        return {}
    found = minutes.load(root)
    if found.number and not found.pos:
        raise UsageError(
            f"{root} has counts from an earlier nsqcy but no checkpoint: use a different --root"
        )
    return found.pos


def given(options: Options, pos: checkpoint.Positions) -> dict[str, str]:
    """Return the source's options: the topics, and the events topic."""
    start = json.dumps(pos, sort_keys=True) if pos else "earliest"
    found = options.source(startingOffsets=start, columns="topic,nsqd,log_id,seq,timestamp,body")
    if options["start"] and not pos:
        found["startingTimestamp"] = exactly(options["start"])
    if options["events"]:
        if options["topics-pattern"]:
            found["topicsPattern"] = f"(?:{options['topics-pattern']})|{re.escape(EVENTS_TOPIC)}"
        else:
            names = options["topic"] or options["topics"]
            found.pop("topic", None)
            found["topics"] = f"{names},{EVENTS_TOPIC}"
    return found


# --- a batch ----------------------------------------------------------------------------------


class Counts(streams.Sink):
    """Merges batches into the daily files and into the minutes that are not closed."""

    def __init__(self, root: Path, state: Path, options: Options, draws: bool) -> None:
        super().__init__()
        self._root = root
        self._state = state
        self._options = options
        self._draws = draws
        self._drawn = 0.0

    def prepare(self) -> None:
        super().prepare()
        minutes.undo(self._root, minutes.load(self._root))

    def write(self, frame: "DataFrame", query_id: str, number: int) -> None:
        state = minutes.load(self._root)
        if not state.pos and state.query == query_id:  # saved by an earlier version
            state.pos = checkpoint.offset(self._state, state.batch).pos
        planned = checkpoint.rows(self._state, number)
        missing = state.missing(planned)
        if missing != planned:
            frame = streams.only(frame, missing)
        counts = [as_count(*row) for row in counted(frame, self._options).collect()]
        if not counts:
            return
        step = minutes.advance(state, counts, self._options["watermark"])
        state.query, state.batch = query_id, number
        checkpoint.advance(state.pos, planned)
        minutes.write_days(self._root, state, step)
        minutes.save(self._root, state)
        now = time.monotonic()
        if self._draws and not self._options["once"] and now - self._drawn > DRAWN_SECONDS:
            self._drawn = now
            self.draw()

    def draw(self) -> dict[str, str]:
        """Return the rollup's files, for the report."""
        from nsqcy.pipeline import plots

        page = plots.draw(self._root, self._options["plot-range"])
        return {"page": str(page)} if page else {}


def as_count(
    topic: str, channel: str, nsqd: str, minute: int, kind: str, measure: str, *numbers: int
) -> Count:
    return Count(Key(topic, channel, nsqd, minute), kind, measure, *numbers)


def counted(frame: "DataFrame", options: Options) -> "DataFrame":
    """Return groups of values, in the order of Count's fields."""
    from pyspark.sql import functions as f

    rows = measured(frame, options)
    bucket = f.floor(f.log2(f.greatest(f.col("value"), f.lit(1))) * BUCKETS).cast("int")
    rows = rows.withColumns({"bucket": bucket, "minute": f.expr("second div 60")})
    return rows.groupBy("topic", "channel", "nsqd", "minute", "kind", "measure", "bucket").agg(
        f.count(f.lit(1)), f.sum("value"), f.min("value"), f.max("value"), f.max("second")
    )


def measured(frame: "DataFrame", options: Options) -> "DataFrame":
    """Return a value for each message (its size), and three for each event about one of the topics.

    Records that are not events are omitted. The rows are read only once.
    """
    from pyspark.sql import functions as f

    def value(measure: str, column: "Column") -> "Column":
        return f.struct(
            f.lit(measure).alias("measure"),
            f.coalesce(column, f.lit(0)).cast("long").alias("value"),
        )

    size = f.array(value(minutes.SIZE, f.octet_length("body")))
    if not options["events"]:
        return frame.select(
            "topic",
            f.lit("").alias("channel"),
            "nsqd",
            f.unix_seconds("timestamp").alias("second"),
            f.lit(minutes.PUBLISH).alias("kind"),
            f.inline(size),
        )
    is_event = f.col("topic") == EVENTS_TOPIC
    parsed = f.when(is_event, f.from_json(f.col("body").cast("string"), EVENT)).alias("event")
    rows = frame.select("topic", "nsqd", "timestamp", "body", parsed)

    def either(of_event: "Column", of_message: "Column") -> "Column":
        return f.when(is_event, of_event).otherwise(of_message)

    event = f.col("event")
    names = (minutes.ATTEMPTS, minutes.AGE, minutes.IN_FLIGHT)
    values = f.array(*(value(name, event[name]) for name in names))
    rows = rows.select(
        either(event["topic"], f.col("topic")).alias("topic"),
        either(event["channel"], f.lit("")).alias("channel"),
        "nsqd",
        either(f.expr("event.time div 1000000000"), f.unix_seconds("timestamp")).alias("second"),
        either(event["kind"], f.lit(minutes.PUBLISH)).alias("kind"),
        f.inline(either(values, size)),
    ).dropna()
    if options["topics-pattern"]:
        return rows.where(f.col("topic").rlike(f"^(?:{options['topics-pattern']})$"))
    return rows.where(f.col("topic").isin(*(options["topic"] or options["topics"]).split(",")))
