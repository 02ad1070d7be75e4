"""Archives like the ones that `nsqcy-pipeline archive` writes, without Spark."""

import datetime
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nsqcy.pipeline import manifests, minutes
from nsqcy.pipeline.manifests import Manifest

LOG = "5b0e" * 8
OTHER = "77aa" * 8
QUERY = "1f3c9a2e-0000-0000-0000-000000000000"
HOUR = "dt=2026-01-31/hr=07"
START = datetime.datetime(2026, 1, 31, 7, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        pa.field("nsqd", pa.string(), False),
        pa.field("log_id", pa.string(), False),
        pa.field("seq", pa.int64(), False),
        pa.field("timestamp", pa.timestamp("us", "UTC"), False),
        pa.field("body", pa.binary(), False),
    ]
)


def table(log_id: str, seqs: Iterable[int], body: str = "body") -> pa.Table:
    rows = [
        {
            "nsqd": "127.0.0.1:4150",
            "log_id": log_id,
            "seq": seq,
            "timestamp": START,
            "body": f"{body} {seq}".encode(),
        }
        for seq in seqs
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def save(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, compression="none", use_dictionary=["log_id", "nsqd"])


class HandmadeArchive:
    """Batches that a query writes to an archive's root."""

    def __init__(self, root: Path, topic: str = "orders") -> None:
        self.root = root
        self.topic = topic
        self._number = 0

    def batch(
        self,
        rows: Mapping[str, Iterable[int]],
        hour: str = HOUR,
        *,
        finished: bool = True,
        query: str = QUERY,
    ) -> list[Path]:
        """Write the next batch's files: one for each log."""
        name = manifests.batch_name(query, self._number)
        self._number += 1
        folder = self.root / f"topic={self.topic}" / hour / f"batch={name}"
        files = []
        for number, (log_id, seqs) in enumerate(rows.items()):
            files.append(folder / f"part-{number:05}.zstd.parquet")
            save(files[-1], table(log_id, seqs))
        if finished:
            described = [
                manifests.describe(self.root, str(path.relative_to(self.root))) for path in files
            ]
            manifests.write(self.root, Manifest(name, tuple(described)))
        return files

    def checkpoint(
        self,
        pos: Mapping[str, int],
        number: int = 0,
        committed: bool = True,
        start: Mapping[str, int] | None = None,
    ) -> None:
        """Write Spark's checkpoint after batch `number`; `start` has the positions at which logs
        begin."""
        state = manifests.hidden(self.root, "checkpoint")
        for folder in ("offsets", "commits"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        offset: dict[str, Any] = {"pos": {self.topic: dict(pos)}, "v": 1}
        if start:
            offset["from"] = {self.topic: dict(start)}
        (state / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        if committed:
            (state / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def rolled_up(root: Path) -> int:
    """Return the number of rows that a rollup has counted."""
    tables = map(pq.read_table, minutes.files(root, "topics"))
    return sum(sum(table["count"].to_pylist()) for table in tables)


def rows_by_glob(root: Path) -> list[tuple[str, int, bytes]]:
    """Return the rows as an independent Parquet reader sees them: log_id, seq, body."""
    import pyarrow.dataset as ds

    found = ds.dataset(root, format="parquet", partitioning="hive").to_table(
        columns=["log_id", "seq", "body"]
    )
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))
