"""`nsqcy-pipeline archive`: writes topics to Parquet, each row exactly once.

A batch is identified by its rows, not by its number: Spark may return to an older checkpoint,
and repeat a number with different rows. A batch therefore writes the rows that the archive lacks,
in files that become a part of the archive atomically (manifests.py). Any Parquet reader can read
the files without nsqcy.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcy.errors import UsageError
from nsqcy.options.kinds import BOOLEAN
from nsqcy.options.option import Option
from nsqcy.pipeline import checkpoint, ddl, manifests, streams
from nsqcy.pipeline.options import DURATION, PATH, SOURCE, SPARK, TEXT, Options, choice
from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.session import require_spark, uri
from nsqcy.spark.offsets import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HELP = """\
writes topics to Parquet, every row exactly once

Writes the files root/topic=/dt=/hr=/batch=/part-*.zstd.parquet, by publish time in UTC. Each batch
has a manifest, which verify checks. Without --once it runs until ^C or SIGTERM. After a crash it
continues where it stopped."""

OPTIONS = (
    Option("root", PATH, "archive", "archive directory; do not share it between jobs"),
    Option("once", BOOLEAN, False, "archive the rows that exist now, then exit"),
    Option("every", DURATION, 60.0, "without --once: interval between batches"),
    Option("checkpoint", PATH, None, "directory for Spark's state; by default inside --root"),
    Option(
        "decode",
        choice("none", "json", "variant"),
        "none",
        "add a `value` column next to the body: parsed by --schema, or any JSON as a variant",
    ),
    Option(
        "schema",
        TEXT,
        None,
        "file that contains the schema for --decode=json, as DDL: `a INT, b STRING`",
    ),
    *SPARK,
    *SOURCE,
)

NEEDED = {"topic", "log_id", "seq", "timestamp"}
CORRUPT = "_corrupt"
STAGING = ".spark-staging-*"  # left by a crash of an earlier version


def run(options: Options, report: Report) -> int:
    options.require_one_subject()
    check_columns(options)
    schema = decoding(options)
    require_spark()
    root = Path(options["root"])
    metrics = Metrics("archive", options["metrics-port"])
    state = Path(options["checkpoint"] or manifests.hidden(root, "checkpoint"))
    with manifests.locked(root, manifests.WRITING), claimed(state):
        for path in sweep(root):
            report.warn(f"removed {path}, left by a crash")
        given = options.source(startingOffsets=beginning(root, state), columns=every_column())
        watch = streams.Watch(report, metrics)
        sink = Files(root, state, options["decode"], schema)
        streams.run(options, given, sink, state, watch)
    is_partial = streams.absent(options, given, report)
    report.done(rows=watch.rows, batches=watch.batches, root=str(root))
    return int(is_partial)


def every_column() -> str:
    """Return the columns, including headers, which the format omits by default."""
    from nsqcy.spark.column_blocks import FIELDS

    return ",".join(FIELDS)


def check_columns(options: Options) -> None:
    for name, value in options["option"].items():
        if name.lower() == "columns":
            missing = NEEDED - {column.strip() for column in value.split(",")}
            if missing:
                raise UsageError(
                    f"--option columns: an archive requires {', '.join(sorted(missing))}"
                )


def decoding(options: Options) -> str:
    """Return the schema if one is required."""
    if (options["decode"] == "json") != bool(options["schema"]):
        raise UsageError("--decode=json and --schema require each other")
    if not options["schema"]:
        return ""
    try:
        text = Path(options["schema"]).read_text().strip()
    except OSError as error:
        raise UsageError(f"--schema: {options['schema']}: {error.strerror}") from None
    if not text:
        raise UsageError(f"--schema: {options['schema']} is empty")
    text = text.rstrip(";,")
    try:
        ddl.check(text)
    except ddl.Invalid as error:
        raise UsageError(f"--schema: {options['schema']}: {error}") from None
    return f"{text}, {CORRUPT} STRING"


@contextmanager
def claimed(state: Path) -> Iterator[None]:
    """Lock the checkpoint: jobs of two archives would share its rows. Raises Busy."""
    state.mkdir(parents=True, exist_ok=True)
    fd = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifests.lock(fd, f"another archive uses the checkpoint {state}")
        yield
    finally:
        os.close(fd)


# --- before the query -------------------------------------------------------------------------


def sweep(root: Path) -> list[str]:
    """Complete the batches that have a manifest, and remove the files that a killed job left. No
    other process writes to them. Raises Damaged."""
    every = manifests.read_all(root)  # check all files before any is moved
    unplaced = manifests.unplaced(root)
    for manifest in every:
        if manifest.name in unplaced:
            manifests.complete(root, manifest)
    found = [*root.glob(STAGING), *manifests.hidden(root, "manifests").glob("*.partial")]
    found += [
        manifests.hidden(root, manifests.UNPLACED) / name for name in manifests.unplaced(root)
    ]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [str(path.relative_to(root)) for path in found]


def beginning(root: Path, state: Path) -> str:
    """Return where a new query begins: after the archive's rows, if it has rows but its checkpoint
    is missing."""
    if checkpoint.last(state / "offsets") >= 0:
        return "earliest"  # not used: Spark continues from the checkpoint
    found = manifests.positions(manifests.read(root))
    return as_offsets(found) if found else "earliest"


def as_offsets(positions: checkpoint.Positions) -> str:
    return json.dumps(positions, sort_keys=True)


# --- a batch ----------------------------------------------------------------------------------


class Files(streams.Sink):
    """Writes the files and the manifest of each batch."""

    def __init__(self, root: Path, state: Path, decode: str, schema: str) -> None:
        super().__init__()
        self._root = root
        self._state = state
        self._decode = decode
        self._schema = schema
        self._ends: checkpoint.Positions = {}

    def prepare(self) -> None:
        super().prepare()
        sweep(self._root)
        self._ends = manifests.positions(manifests.read(self._root))

    def write(self, frame: "DataFrame", query_id: str, number: int) -> None:
        planned = checkpoint.rows(self._state, number)
        missing = self._missing(planned)
        if missing != planned:
            frame = streams.only(frame, missing)
        if missing:
            self._add(frame, manifests.unused_name(self._root, query_id, number), planned)

    def _missing(self, planned: list[Range]) -> list[Range]:
        """Return the rows that the archive lacks."""
        ends = self._ends
        if all(part.start >= ends.get(part.topic, {}).get(part.log_id, 0) for part in planned):
            return planned
        return manifests.lacking(self._root, planned)

    def _add(self, frame: "DataFrame", name: str, planned: list[Range]) -> None:
        folder = manifests.hidden(self._root, manifests.UNPLACED) / name
        rows = self._write(frame, name, folder)
        if not rows:
            shutil.rmtree(folder)
            return
        manifest = manifests.describe_batch(self._root, name, planned)
        if manifest.rows != rows:
            raise manifests.Damaged(
                f"batch {name} has {rows} rows, but its files have {manifest.rows}"
            )
        manifests.add(self._root, manifest)
        checkpoint.advance(self._ends, planned)

    def _write(self, frame: "DataFrame", name: str, folder: Path) -> int:
        """Write the rows to a directory, by UTC hour regardless of the session's time zone; return
        their number."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        frame = self._decoded(frame).observe(seen, f.count(f.lit(1)).alias("rows"))
        frame = frame.withColumns(
            {
                "dt": f.expr("date_from_unix_date(int(unix_seconds(timestamp) div 86400))"),
                "hr": f.expr("lpad(string(unix_seconds(timestamp) div 3600 % 24), 2, '0')"),
                "batch": f.lit(name),
            }
        )
        writer = frame.write.mode("overwrite").partitionBy("topic", "dt", "hr", "batch")
        writer.parquet(uri(folder))
        return int(seen.get["rows"])

    def _decoded(self, frame: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions as f

        text = f.col("body").cast("string")
        match self._decode:
            case "json":
                options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
                return frame.withColumn("value", f.from_json(text, self._schema, options))
            case "variant":
                return frame.withColumn("value", f.try_parse_json(text))
        return frame
