"""Writers as Spark creates and uses them: passed by value, one task at a time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema

from nsqcy.spark.source import NsqDataSource
from support.spark_sources import QUICK

QUERY = "5b0e5b0e-0000-4000-8000-000000000000"
Rows = dict[str, Any]


@dataclass
class Context:
    """Stand-in for Spark's TaskContext."""

    task: int
    properties: dict[str, str]

    def partitionId(self) -> int:
        return self.task

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


def table(columns: dict[str, list[Any]], **types: pa.DataType) -> pa.Table:
    """Return a table of these columns. Bodies are binary unless `types` has another type."""
    types = {"body": pa.binary()} | types
    fields = [pa.field(name, types.get(name)) if name in types else name for name in columns]
    arrays = [pa.array(values, types.get(name)) for name, values in columns.items()]
    assert fields
    return pa.table(dict(zip(columns, arrays, strict=True)))


def writer(options: dict[str, str], rows: pa.Table, *, stream: bool = False) -> Any:
    source = NsqDataSource({"fetchOffset.retryIntervalMs": "1"} | timeouts() | options)
    schema = from_arrow_schema(rows.schema)
    return source.streamWriter(schema, False) if stream else source.writer(schema, False)


def timeouts() -> dict[str, str]:
    return {"connectTimeoutMs": QUICK["connectTimeoutMs"]}


def run(
    made: Any,
    rows: pa.Table,
    *,
    task: int = 0,
    batch: int | None = None,
    query: str = QUERY,
    piece: int = 10_000,
) -> Any:
    """One attempt of a task, in record batches of at most `piece` rows."""
    properties = {}
    if batch is not None:
        properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nsqcy.spark.sink.this_task", lambda: Context(task, properties))
        # Another test may have registered our modules: these must be the patched ones.
        patch.setattr("pyspark.cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES", set())
        sent = cloudpickle.loads(cloudpickle.dumps(made))
        return sent.write(iter(rows.to_batches(max_chunksize=piece)))


def write(options: dict[str, str], columns: dict[str, Iterable[Any]], **types: pa.DataType) -> Any:
    """Run a batch query of one task."""
    rows = table({name: list(values) for name, values in columns.items()}, **types)
    return run(writer(options, rows), rows)
