"""`nsqcy-pipeline archive`: writes topics to Parquet, each row exactly once.

A micro-batch overwrites only its own `batch=ID` directories, so a batch that is retried after a
crash replaces the files of the first attempt. Its manifest makes the batch part of the archive. Any
Parquet reader can read the files without nsqcy.
"""

import datetime
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqcy.errors import UsageError
from nsqcy.options.kinds import BOOLEAN
from nsqcy.options.option import Option
from nsqcy.pipeline import checkpoint, manifests, streams
from nsqcy.pipeline.options import DURATION, PATH, SOURCE, SPARK, TEXT, Options, choice
from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.session import require_spark, uri

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
    Option("checkpoint", PATH, None, "directory for Spark's state; by default in the root"),
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
STAGING = ".spark-staging-*"
MAX_HOURS = 10_000  # maximum time span of a batch; for a longer one, directories are searched
READERS = 4


def run(options: Options, report: Report) -> int:
    options.require_one_subject()
    check_columns(options)
    schema = decoding(options)
    require_spark()
    root = Path(options["root"])
    metrics = Metrics("archive", options["metrics-port"])
    with manifests.locked(root, manifests.WRITING):
        for path in sweep(root):
            report.warn(f"removed {path}, left by a crash")
        state = Path(options["checkpoint"] or manifests.hidden(root, "checkpoint"))
        given = options.source(startingOffsets=beginning(root, state), columns=every_column())
        watch = streams.Watch(report, metrics)
        streams.run(options, given, Files(root, options["decode"], schema), state, watch)
    report.done(rows=watch.rows, batches=watch.batches, root=str(root))
    return 0


def every_column() -> str:
    """Return the columns, with headers, which the format omits by default."""
    from nsqcy.spark.blocks import FIELDS

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
    return f"{text.rstrip(';,')}, {CORRUPT} STRING"


# --- before the query -------------------------------------------------------------------------


def sweep(root: Path) -> list[str]:
    """Remove files that Spark left unfinished when it was killed. No other process writes to
    them."""
    found = [*root.glob(STAGING), *manifests.hidden(root, "manifests").glob("*.partial")]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [str(path.relative_to(root)) for path in found]


def beginning(root: Path, state: Path) -> str:
    """Return where a new query begins: after the archive's rows, if it has rows but its checkpoint
    is gone."""
    if checkpoint.read(state).planned >= 0:
        return "earliest"  # which Spark does not request
    found = manifests.positions(manifests.read(root))
    return as_offsets(found) if found else "earliest"


def as_offsets(positions: checkpoint.Positions) -> str:
    return json.dumps(positions, sort_keys=True)


# --- a batch ----------------------------------------------------------------------------------


class Files(streams.Sink):
    """Writes the directories and the manifest of each batch."""

    def __init__(self, root: Path, decode: str, schema: str) -> None:
        super().__init__()
        self._root = root
        self._decode = decode
        self._schema = schema
        self._clean = False

    def prepare(self) -> None:
        super().prepare()
        self._clean = False

    def write(self, frame: "DataFrame", query_id: str, number: int) -> None:
        name = manifests.batch_name(query_id, number)
        if manifests.manifest_path(self._root, name).exists():
            return  # everything except Spark's own record has been written
        if not self._clean:
            self._remove(name)
        seen = self._write(frame, name)
        if not seen["rows"]:
            return
        paths = manifests.on_disk(self._root, name, hours(seen["first"], seen["last"]))
        with ThreadPoolExecutor(READERS) as pool:
            files = pool.map(lambda path: manifests.describe(self._root, path), sorted(paths))
        manifest = manifests.Manifest(name, tuple(files))
        if manifest.rows != seen["rows"]:
            raise manifests.Damaged(
                f"batch {name} has {seen['rows']} rows, but its files have {manifest.rows}"
            )
        for folder in {(self._root / path).parent for path in paths}:
            manifests.sync_folders(folder, self._root)
        manifests.write(self._root, manifest)

    def _remove(self, name: str) -> None:
        """Find files that the first batch of a run may have left if it was killed.

        The batch overwrites them, except in hours for which it no longer has rows because it
        continued after lost rows.
        """
        for folder in self._root.glob(f"topic=*/dt=*/hr=*/batch={name}"):
            shutil.rmtree(folder)
        self._clean = True

    def _write(self, frame: "DataFrame", name: str) -> dict[str, Any]:
        """Return the rows, and the values observed for them."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        frame = self._decoded(frame).observe(
            seen,
            f.count(f.lit(1)).alias("rows"),
            f.min(f.unix_seconds("timestamp")).alias("first"),
            f.max(f.unix_seconds("timestamp")).alias("last"),
        )
        frame = frame.withColumns(
            {
                "dt": f.to_date("timestamp"),
                "hr": f.lpad(f.hour("timestamp").cast("string"), 2, "0"),
                "batch": f.lit(name),
            }
        )
        writer = frame.write.mode("overwrite").partitionBy("topic", "dt", "hr", "batch")
        writer = writer.option("partitionOverwriteMode", "dynamic")
        writer.parquet(uri(self._root))
        return seen.get

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


def hours(first: int, last: int) -> Iterator[str]:
    """Return the directories that may contain rows between these seconds."""
    numbers = range(first // 3600, last // 3600 + 1)
    if len(numbers) > MAX_HOURS:
        yield "topic=*/dt=*/hr=*"
        return
    for number in numbers:
        hour = datetime.datetime.fromtimestamp(number * 3600, datetime.UTC)
        yield f"topic=*/dt={hour:%Y-%m-%d}/hr={hour:%H}"
