"""Sources of rows for jobs that read past messages: the logs of nsqds, or an archive of them.

Both identify rows by (log_id, seq). A job therefore divides its work into parts of a log. It finds
the same rows in a part at any time, even after retention has removed other rows or the archive has
been compacted.
"""

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqcy.errors import UsageError
from nsqcy.pipeline import manifests
from nsqcy.pipeline.options import Options
from nsqcy.pipeline.session import uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADERS = "headers"
GLOB = "__globPaths__"  # Spark's own name; "false" reads paths that contain []{}*? literally
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class Part(NamedTuple):
    """A part of one log: seqs from `start` up to, but not including, `end`."""

    topic: str
    log_id: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Return the maximum number of rows: an archive may have fewer."""
        return self.end - self.start


class Source(Protocol):
    def parts(self) -> list[Part]:
        """Return a part for each available log, always in the same order."""

    def frame(self, spark: "SparkSession", part: Part) -> "DataFrame | None":
        """Return the rows of a part, with the columns of `format("nsq")`; None if there are
        none."""


def source_of(options: Options, *, headers: bool) -> Source:
    """Return the archive if there is a `root`, otherwise the logs."""
    if options["root"]:
        return Archive(options)
    options.require_one_subject()
    return Logs(options, headers=headers)


def joined(parts: Iterable[Part]) -> list[Part]:
    """Yield one part per log, from the first seq to the last."""
    found: dict[tuple[str, str], Part] = {}
    for part in parts:
        known = found.get(part[:2], part)
        found[part[:2]] = Part(*part[:2], min(known.start, part.start), max(known.end, part.end))
    return sorted(part for part in found.values() if part.rows)


def pieces(parts: Iterable[Part], maximum: int) -> list[Part]:
    """Divide parts so that no part exceeds this size."""
    return [
        Part(part.topic, part.log_id, start, min(start + maximum, part.end))
        for part in parts
        for start in range(part.start, part.end, maximum)
    ]


class Logs:
    """Rows from all nsqds that respond."""

    def __init__(self, options: Options, *, headers: bool) -> None:
        self._given = options.source(
            startingTimestamp=exactly(options["start"]),
            endingTimestamp=exactly(options["end"]),
        )
        self._headers = headers

    def parts(self) -> list[Part]:
        from nsqcy.spark.column_blocks import arrow_schema
        from nsqcy.spark.options import parse
        from nsqcy.spark.source import NsqReader
        from nsqcy.spark.source import Part as Task

        planned = NsqReader(parse(self._given), arrow_schema([("seq", False)])).partitions()
        ranges = [task.range for task in planned if isinstance(task, Task)]
        return joined(Part(each.topic, each.log_id, each.start, each.end) for each in ranges)

    def frame(self, spark: "SparkSession", part: Part) -> "DataFrame":
        from nsqcy.spark.column_blocks import DEFAULT_FIELDS

        spark.conf.set(PUSHDOWN, "true")  # excludes the topic's other logs
        columns = (*DEFAULT_FIELDS, HEADERS) if self._headers else DEFAULT_FIELDS
        reader = spark.read.format("nsq").options(**self.given(part))
        return reader.option("columns", ",".join(columns)).load().where(f"log_id = '{part.log_id}'")

    def given(self, part: Part) -> dict[str, str]:
        """Return options that read this part and fail if some of its rows no longer exist."""
        theirs = {
            name: value
            for name, value in self._given.items()
            if not name.lower().startswith(("topic", "starting", "ending"))
        }
        return theirs | {
            "topic": part.topic,
            "startingOffsets": json.dumps({part.topic: {part.log_id: part.start}}),
            "endingOffsets": json.dumps({part.topic: {part.log_id: part.end}}),
            "pushdown": "true",
        }


class Archive:
    """Rows from an archive, according to its manifests."""

    def __init__(self, options: Options) -> None:
        self._root = Path(options["root"])
        if not self._root.is_dir():
            raise UsageError(f"there is no archive at {self._root}")
        names = [options["topic"]] if options["topic"] else (options["topics"] or "").split(",")
        if options["topics-pattern"] or not any(names):
            raise UsageError("--root requires --topic or --topics")
        self._topics = set(names)
        self._checked: set[manifests.File] = set()
        self._hours = tuple(
            each and each.strftime("dt=%Y-%m-%d/hr=%H")
            for each in (options["start"], options["end"])
        )

    def parts(self) -> list[Part]:
        return joined(
            Part(file.topic, file.log_id, file.start, file.end)
            for file in manifests.read(self._root).files.values()
            if file.topic in self._topics and self._is_between(file)
        )

    def files(self, part: Part) -> list[manifests.File]:
        return sorted(
            file
            for file in manifests.read(self._root).files.values()
            if (file.topic, file.log_id) == part[:2]
            and file.start < part.end
            and part.start < file.end
            and self._is_between(file)
        )

    def frame(self, spark: "SparkSession", part: Part) -> "DataFrame | None":
        """Check the part's files before Spark reads them. Raises Damaged."""
        from pyspark.sql import functions as f

        files = self.files(part)
        for file in files:
            if file not in self._checked:
                manifests.check(self._root, file)
                self._checked.add(file)
        paths = [uri(self._root / file.path) for file in files]
        if not paths:
            return None
        reader = spark.read.option("mergeSchema", "true").option(GLOB, "false")
        found = reader.parquet(*paths)
        found = found.withColumn("topic", f.lit(part.topic))
        return found.where((f.col("seq") >= part.start) & (f.col("seq") < part.end))

    def _is_between(self, file: manifests.File) -> bool:
        """Return whether rows from its hour may be in the requested time range."""
        first, last = self._hours
        _, _, hour = manifests.hour_of(file.path).partition("/")
        return (not first or hour >= first) and (not last or hour <= last)


def exactly(instant: datetime.datetime | None) -> str:
    """Format as a `format("nsq")` option, with microseconds; empty if not set."""
    return instant.isoformat() if instant else ""
