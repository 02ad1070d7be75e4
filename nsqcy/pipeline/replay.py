"""`nsqcy-pipeline replay`: publishes the rows of a log or an archive to a topic, each row once.

publishing_plan.py explains the rounds, and why a retried round publishes only the missing rows.
"""

import datetime
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcy.errors import UsageError
from nsqcy.options.kinds import BOOLEAN, TOPIC_NAME
from nsqcy.options.option import Option
from nsqcy.pipeline import manifests, publishing_plan
from nsqcy.pipeline.options import (
    ADDRESSES,
    INSTANT,
    PAIRS,
    PATH,
    POSITIVE,
    SOURCE,
    SPARK,
    TEXT,
    Options,
)
from nsqcy.pipeline.publishing_plan import Asked, Plan
from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.rows import HEADERS, Part, Source, source_of
from nsqcy.pipeline.session import make_session, require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HELP = """\
publishes the rows of a log or archive to a topic, each row once

Without --root it reads the topics' logs as they are when it starts. Repeat the command after a
crash to continue; once complete, it does nothing."""

# Options for all jobs that publish rows.
PLACE = (
    Option("root", PATH, None, "archive directory to read instead of logs"),
    Option("start", INSTANT, None, "only rows published at this time or later"),
    Option("end", INSTANT, None, "only rows published before this time"),
    Option("where", TEXT, None, "SQL expression over the columns; only rows that satisfy it"),
)
DESTINATION = (
    Option(
        "to-nsqd-tcp-address",
        ADDRESSES,
        (),
        "nsqds to publish to; default: the nsqds that the job reads from",
    ),
    Option(
        "to-lookupd-http-address", ADDRESSES, (), "nsqlookupds that list the nsqds to publish to"
    ),
    Option(
        "to-option",
        PAIRS,
        {},
        'options of format("nsq") that apply to writing only; --option sets them for reading and '
        "writing",
    ),
    Option("rate", POSITIVE, None, "maximum messages per second"),
    Option("round-rows", POSITIVE, 1_000_000, "number of rows between updates to the state file"),
    Option("tasks", POSITIVE, None, "number of parallel tasks; 1 keeps the log's order"),
    Option(
        "state",
        PATH,
        None,
        "state file; by default in the current directory, named after the arguments",
    ),
)
OPTIONS = (
    Option("to", TOPIC_NAME, None, "the topic to publish to"),
    *PLACE,
    Option("headers", BOOLEAN, True, "also publish message headers"),
    Option("dry-run", BOOLEAN, False, "only count the rows; publish nothing"),
    *DESTINATION,
    *SPARK,
    *SOURCE,
)

REMEMBERED = 24 * 3600  # seconds for which nsqds remember chunks; see LOG_PUB in docs/PROTOCOL.md
SUBJECT = ("topic", "topics", "topics-pattern")

Frames = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Work:
    """The rows that a job publishes, and their topic."""

    job: str
    to: str
    source: Source
    choose: Frames  # filter for the wanted rows
    shape: Frames  # adds the columns to publish


def run(options: Options, report: Report) -> int:
    if not options["dry-run"]:
        options.require("to")
    source = source_of(options, headers=options["headers"])
    require_spark()

    def shape(frame: "DataFrame") -> "DataFrame":
        there = options["headers"] and HEADERS in frame.columns
        return frame.select("body", HEADERS) if there else frame.select("body")

    if options["dry-run"]:
        count(options, report, source, chosen(options))
    else:
        publish(options, report, Work("replay", options["to"], source, chosen(options), shape))
    return 0


def chosen(options: Options) -> Frames:
    """Return a function that selects rows by time and expression."""

    def choose(frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f

        for name, is_in in (("start", "__ge__"), ("end", "__lt__")):
            if options[name] is not None:
                when = f.timestamp_micros(f.lit(microseconds(options[name])))
                frame = frame.where(getattr(f.col("timestamp"), is_in)(when))
        return frame.where(options["where"]) if options["where"] else frame

    return choose


def microseconds(instant: datetime.datetime) -> int:
    since = instant - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1)


def count(options: Options, report: Report, source: Source, choose: Frames) -> None:
    """Count the rows that would be published, by topic."""
    parts = source.parts()
    spark = make_session(options, "replay")
    found: dict[str, int] = {}
    total, done = sum(part.rows for part in parts), 0
    for part in parts:
        frame = source.frame(spark, part)
        rows = choose(frame).count() if frame is not None else 0
        found[part.topic] = found.get(part.topic, 0) + rows
        done += part.rows
        report.progress(done=done, total=total, rows=sum(found.values()))
    for topic, rows in sorted(found.items()):
        report.line(f"topic {topic!r}: {rows:,} rows", topic=topic, rows=rows)
    report.done(rows=sum(found.values()), dry_run="nothing was published")


# --- publishing -------------------------------------------------------------------------------


def publish(options: Options, report: Report, work: Work) -> None:
    """Run all unfinished rounds; the `--state` file lists finished rounds."""
    asked = asked_for(options, work.to)
    path = Path(options["state"] or publishing_plan.default_path(work.job, work.to, asked))
    with publishing_plan.locked(path):
        plan = publishing_plan.load(path, asked)
        if plan is not None:
            check_plan(path, plan, work, destinations(options, work))
        if plan is not None and plan.done == len(plan.rounds()):
            report.warn(f"{path} records this replay as done; remove the file to repeat it")
            report.done(rows=plan.rows, to=work.to, state=str(path))
            return
        if plan is None:
            plan = make_plan(options, asked, work)
            if plan.parts:  # otherwise, a later run might find some rows
                publishing_plan.save(path, plan)
        else:
            report.line(f"continuing with round {plan.done + 1}", done=plan.done, rows=plan.rows)
            if time.time() - path.stat().st_mtime > REMEMBERED:
                report.warn("nsqds may have forgotten that round, so some rows may be duplicated")
        metrics = Metrics(work.job, options["metrics-port"])
        spark = make_session(options, work.job)
        todo = plan.rounds()
        sizes = [part.rows for part in todo]
        for part in todo[plan.done :]:
            begun = time.monotonic()
            with reading(options):
                rows = one_round(spark, options, work, plan, part)
            plan = plan.after(rows)
            publishing_plan.save(path, plan)
            metrics.batch(rows, time.monotonic() - begun, {})
            done = sum(sizes[: plan.done])
            report.progress(done=done, total=sum(sizes), round=plan.done, rows=plan.rows)
        report.done(rows=plan.rows, to=work.to, state=str(path))


def asked_for(options: Options, to: str) -> Asked:
    """Return the values that identify this replay. Addresses of nsqds and secrets are not part of
    it."""
    found: Asked = {"to": to}
    there = {option.flag for option in options.table}
    for name in (*SUBJECT, *(option.flag for option in PLACE), "headers", "rate"):
        if name in there:
            found[name] = options[name]
    for name in ("start", "end"):
        found[name] = options[name] and options[name].isoformat()
    found["root"] = options["root"] and str(Path(options["root"]).absolute())
    return found


def reading(options: Options) -> AbstractContextManager[None]:
    """Keep compactions from removing files during the replay."""
    if not options["root"]:
        return nullcontext()
    return manifests.locked(Path(options["root"]), manifests.COMPACTING, reading=True)


def check_plan(path: Path, plan: Plan, work: Work, nsqds: tuple[str, ...]) -> None:
    """Raise UsageError if the plan contains none of the source's logs, or none of the destinations:
    the same arguments may refer to other clusters."""
    logs = {part.log_id for part in work.source.parts()}
    theirs = {part.log_id for part in plan.parts}
    for what, now, before in (("logs", logs, theirs), ("destinations", set(nsqds), {*plan.nsqds})):
        if now and before and not now & before:
            raise UsageError(
                f"{path} belongs to a replay with the {what} {','.join(sorted(before))}; "
                f"this replay has {','.join(sorted(now))}: choose a different --state"
            )


def destinations(options: Options, work: Work) -> tuple[str, ...]:
    from nsqcy.spark.discovery import all_nsqds
    from nsqcy.spark.options import parse_write

    return tuple(all_nsqds(parse_write(destination(options, work.to))))


def make_plan(options: Options, asked: Asked, work: Work) -> Plan:
    return Plan(
        name=publishing_plan.new_name(),
        asked=asked,
        nsqds=destinations(options, work),
        tasks=options["tasks"] or os.cpu_count() or 1,
        round_rows=options["round-rows"],
        parts=tuple(work.source.parts()),
    )


def destination(options: Options, to: str) -> dict[str, str]:
    """Return the sink's options, excluding those in the plan."""
    from nsqcy.spark.options import BY_KEY

    lookupds, nsqds = options["to-lookupd-http-address"], options["to-nsqd-tcp-address"]
    if not lookupds and not nsqds:
        lookupds, nsqds = options["lookupd-http-address"], options.nsqds
    found = options.for_writing({key: option.used for key, option in BY_KEY.items()})
    found |= {"topic": to}
    if lookupds:
        found["lookupdHttpAddresses"] = ",".join(lookupds)
    if nsqds:
        found["nsqdTcpAddresses"] = ",".join(nsqds)
    return found


def one_round(spark: "SparkSession", options: Options, work: Work, plan: Plan, part: Part) -> int:
    """Publish the selected rows in this part; return their number."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    frame = work.source.frame(spark, part)
    if frame is None:
        return 0
    seen = Observation()
    frame = work.choose(frame)
    # Only the seq determines the task and the position of a row, regardless of where it was read.
    spread = f.expr("seq div 100") if plan.tasks > 1 else f.lit(0)
    frame = frame.repartition(plan.tasks, spread).sortWithinPartitions("seq")
    # Observe after the shuffle: if there are no rows to shuffle, nothing before it is observed.
    frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"))
    given = destination(options, work.to)
    given.pop("lookupdHttpAddresses", None)
    given |= {"nsqdTcpAddresses": ",".join(plan.nsqds), "producerId": plan.producer(plan.done)}
    if plan.asked["rate"]:
        given |= {
            "maxMessagesPerSecond": str(plan.asked["rate"]),
            "parallelTasks": str(plan.tasks),
        }
    work.shape(frame).write.format("nsq").mode("append").options(**given).save()
    return int(seen.get["rows"])
