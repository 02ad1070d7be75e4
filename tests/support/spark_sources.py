"""Readers as Spark creates them, and the rows of a batch."""

from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nsqcy.spark.column_blocks import DEFAULT_FIELDS, FIELDS
from nsqcy.spark.source import NsqDataSource, NsqReader, NsqStreamReader

TYPES = {
    "string": StringType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "int": IntegerType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
QUICK = {"fetchOffset.retryIntervalMs": "1", "pollTimeoutMs": "0", "connectTimeoutMs": "5000"}


def schema(*names: str) -> StructType:
    """Return a reader of these columns, or of the default ones."""
    chosen = names or DEFAULT_FIELDS
    return StructType([StructField(name, TYPES[FIELDS[name][0]], False) for name in chosen])


def batch(options: dict[str, str], *names: str) -> NsqReader:
    reader = NsqDataSource(QUICK | options).reader(schema(*names))
    assert isinstance(reader, NsqReader)
    return reader


def stream(options: dict[str, str], *names: str) -> NsqStreamReader:
    reader = NsqDataSource(QUICK | options).streamReader(schema(*names))
    assert isinstance(reader, NsqStreamReader)
    return reader


def rows(reader: NsqReader) -> list[dict[str, Any]]:
    """Return the rows of a batch query, in the order of its tasks.

    PySpark replaces an empty list of tasks with one task without a value.
    """
    found = []
    for part in reader.partitions() or [InputPartition(None)]:
        for each in reader.read(part):
            each.validate(full=True)
            found += each.to_pylist()
    return found
