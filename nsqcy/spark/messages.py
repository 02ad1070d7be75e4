"""Converts rows to messages: finds rows that nsqd would reject, and builds the bodies of MPUB and
LOG_PUB.

Works on entire columns. A *prepared* batch has the required columns from PREPARED, under nsqd's
names, regardless of the user's names for them.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

from nsqcy.options.kinds import NAME_PATTERN
from nsqcy.spark.errors import OptionError, Refused
from nsqcy.spark.headers import BadHeaders, checked, encode
from nsqcy.spark.options import WriteOptions

PIECE = 32 << 20  # bytes of a batch that are processed at a time
PREPARED = pa.schema(
    {
        "body": pa.binary(),
        "topic": pa.string(),
        "defer_ms": pa.int64(),
        "headers": pa.binary(),
        "key": pa.binary(),  # the column that the partitioner hashes
    }
)
NOTHING = pa.scalar(b"", pa.binary())

Fault = tuple[pa.Array, Callable[[int], str]]  # indexes of rows, and the error for each of them


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Reject a DataFrame that cannot be converted to messages."""
    kinds = {field.name: field.dataType for field in schema.fields}
    for name, kind in kinds.items():
        expected = expected_type(name, kind, hashed=name == options.hashed)
        if expected:
            raise OptionError(f"column {name!r} is {kind.simpleString()}, not {expected}")
    if ("body" in kinds) == ("value" in kinds):
        what = "both exist" if "body" in kinds else "neither exists"
        raise OptionError(f"exactly one of the columns body and value is required: {what}")
    if not options.topic and "topic" not in kinds:
        raise OptionError("option 'topic' or a 'topic' column is required")
    if options.hashed and options.hashed not in kinds:
        raise OptionError(f"option 'partitioner' hashes {options.hashed!r}, which is not a column")


def expected_type(name: str, kind: DataType, *, hashed: bool) -> str:
    """Return the expected type of a column if its actual type is different."""
    match name:
        case "body" | "value":
            return "" if isinstance(kind, BinaryType | StringType) else "binary or string"
        case "topic":
            return "" if isinstance(kind, StringType) else "string"
        case "defer_ms":
            return "" if isinstance(kind, IntegralType) else "an integer"
        case "headers":
            fits = isinstance(kind, BinaryType) or (
                isinstance(kind, MapType)
                and isinstance(kind.keyType, StringType)
                and isinstance(kind.valueType, StringType | BinaryType)
            )
            return "" if fits else "map<string,string>, map<string,binary> or binary"
    if not hashed:
        raise OptionError(
            f"column {name!r} cannot be written (allowed: body or value, topic, defer_ms, headers)"
        )
    fits = isinstance(kind, BinaryType | StringType | IntegralType)
    return "" if fits else "binary, string or integer"


class Messages:
    """Prepares the batches of a task, counts the rows that nsqd would reject, and computes one
    checksum of all rows."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self.rows = 0
        self.bad = 0
        self.topics: set[str] = set()  # topics named by rows
        self._first = ""  # error for the bad rows, with the reason
        self._sums: dict[str, int] = {}  # type of each column

    def prepare(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for piece in pieces(batch) if batch.num_rows else ():
            columns: dict[str, pa.Array] = {}
            faults: list[Fault] = []
            for name, column in zip(piece.schema.names, piece.columns, strict=True):
                self._prepare_column(name, column, columns, faults)
            self._count(piece.num_rows, faults)
            schema = pa.schema([PREPARED.field(name) for name in columns])
            prepared = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
            self._add_up(prepared)
            yield prepared

    def check(self, task: int) -> None:
        """Fail the task if there were any bad rows."""
        if self.bad:
            raise Refused(
                f"{self.bad} of {self.rows} rows of task {task} cannot be published, so none "
                f"was published; the first is row {self._first}"
            )

    def checksum(self, addresses: list[str]) -> int:
        """Checksum of the rows in order, independent of batches, and of the settings that determine
        how rows are divided into chunks and where chunks are sent."""
        options = self._options
        ways = [addresses, options.chunk_bytes, options.hashed, options.topic]
        pace = [options.max_per_second, options.max_per_second and options.parallel]
        return zlib.crc32(repr([self._sums, ways, pace]).encode())

    def _add_up(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for part, data in contents(column):
                which = f"{name} {part}"
                self._sums[which] = zlib.crc32(data, self._sums.get(which, 0))

    def _count(self, rows: int, faults: list[Fault]) -> None:
        bad = pa.array([False] * rows)
        for mask, _ in faults:
            bad = pc.or_(bad, mask)
        if bad.true_count and not self._first:
            row = bad.index(True).as_py()
            why = next(describe(row) for mask, describe in faults if mask[row].as_py())
            self._first = f"{self.rows + row}: {why}"
        self.bad += bad.true_count
        self.rows += rows

    def _prepare_column(
        self, name: str, column: pa.Array, columns: dict[str, pa.Array], faults: list[Fault]
    ) -> None:
        match name:
            case "body" | "value":
                columns["body"] = self._body(column.cast(pa.binary()), faults)
            case "topic":
                columns["topic"] = self._topic(column.cast(pa.string()), faults)
            case "defer_ms":
                columns["defer_ms"] = self._defer(column.cast(pa.int64()), faults)
            case "headers":
                columns["headers"] = encoded_headers(column, faults)
        if name == self._options.hashed:
            texts = column.cast(pa.string()) if pa.types.is_integer(column.type) else column
            columns["key"] = texts.cast(pa.binary()).fill_null(b"")

    def _body(self, bodies: pa.Array, faults: list[Fault]) -> pa.Array:
        longest = self._options.longest
        sizes = pc.binary_length(bodies).fill_null(1)
        faults.append((bodies.is_null(), lambda _: "its body is null"))
        faults.append((pc.equal(sizes, 0), lambda _: "its body is empty"))
        faults.append(
            (
                pc.greater(sizes, longest),
                lambda row: f"its body has {sizes[row]} bytes, but maxMessageBytes is {longest}",
            )
        )
        return bodies

    def _topic(self, topics: pa.Array, faults: list[Fault]) -> pa.Array:
        topics = topics.fill_null(self._options.topic)
        self.topics.update(topics.unique().to_pylist())
        wrong = pa.array(
            [name for name in topics.unique().to_pylist() if not re.fullmatch(NAME_PATTERN, name)],
            pa.string(),
        )
        faults.append(
            (
                pc.is_in(topics, wrong),
                lambda row: (
                    f"{topics[row].as_py()!r} is not a topic name"
                    " (1 to 64 characters: .a-zA-Z0-9_-)"
                    if len(topics[row].as_py())
                    else "it has no topic"
                ),
            )
        )
        return topics

    def _defer(self, delays: pa.Array, faults: list[Fault]) -> pa.Array:
        delays = delays.fill_null(0)
        faults.append((pc.less(delays, 0), lambda row: f"its defer_ms is {delays[row]}"))
        if self._options.idempotent:
            faults.append(
                (
                    pc.greater(delays, 0),
                    lambda row: (
                        f"its defer_ms is {delays[row]}, and deferred messages are published at "
                        "least once: set idempotent=false to allow that"
                    ),
                )
            )
        return delays


def contents(column: pa.Array) -> Iterator[tuple[str, pa.Buffer]]:
    """Return the bytes of a column without nulls and, for strings, their lengths."""
    if pa.types.is_integer(column.type):
        yield "numbers", sliced(column.buffers()[1], column, column.type.bit_width // 8)
        return
    lengths = pc.binary_length(column)
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("i")
    start, end = ends[column.offset], ends[column.offset + len(column)]
    yield "lengths", sliced(lengths.buffers()[1], lengths, 4)
    if end > start:
        yield "texts", data.slice(start, end - start)


def sliced(data: pa.Buffer, column: pa.Array, width: int) -> pa.Buffer:
    return data.slice(column.offset * width, len(column) * width)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= PIECE or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))


def encoded_headers(column: pa.Array, faults: list[Fault]) -> pa.Array:
    convert = checked if pa.types.is_binary(column.type) else encode
    wrong: dict[int, str] = {}
    found = []
    for row, headers in enumerate(column.to_pylist()):
        try:
            found.append(convert(headers) if headers else b"")
        except BadHeaders as error:
            wrong[row] = str(error)
            found.append(b"")
    mask = pa.array([row in wrong for row in range(len(found))], pa.bool_())
    faults.append((mask, lambda row: wrong[row]))
    return pa.array(found, pa.binary())


# Building the bytes to send


@dataclass(frozen=True)
class Framed:
    """Messages as they appear in the body of an MPUB; each begins where the previous one ends."""

    data: pa.Buffer
    offsets: memoryview
    rows: list[int]  # index of each message in its task

    def fitting(self, first: int, room: int) -> int:
        """Return the end index such that the messages from `first` on have at most this many
        bytes."""
        limit = self.offsets[first] + room
        return bisect_right(self.offsets, limit, first, len(self.rows) + 1) - 1

    def slice(self, first: int, end: int) -> pa.Buffer:
        start = self.offsets[first]
        return self.data.slice(start, self.offsets[end] - start)


def payloads(batch: pa.RecordBatch) -> pa.Array:
    """Return the bodies, each preceded by its headers if there are any."""
    bodies = batch.column("body")
    if "headers" not in batch.schema.names:
        return bodies
    headers = batch.column("headers")
    sizes = pc.binary_length(headers).cast(pa.uint16())
    return pc.binary_join_element_wise(big_endian(sizes, 2), headers, bodies, NOTHING)


def framed(texts: pa.Array, rows: list[int]) -> Framed:
    lengths = big_endian(pc.binary_length(texts).cast(pa.uint32()), 4)
    joined = pc.binary_join_element_wise(lengths, texts, NOTHING)
    _, offsets, data = joined.buffers()
    return Framed(data, memoryview(offsets).cast("i"), rows)


def big_endian(numbers: pa.Array, size: int) -> pa.Array:
    """Return numbers as strings of `size` bytes, most significant digit first."""
    kind = numbers.type
    lowest = pa.scalar(0xFF, kind)
    swapped = pc.bit_wise_and(numbers, lowest)
    for number in range(1, size):
        byte = pc.bit_wise_and(pc.shift_right(numbers, pa.scalar(8 * number, kind)), lowest)
        swapped = pc.bit_wise_or(pc.shift_left(swapped, pa.scalar(8, kind)), byte)
    parts = [None, swapped.buffers()[1]]
    return pa.Array.from_buffers(pa.binary(size), len(swapped), parts).cast(pa.binary())


def by_value(column: pa.Array) -> Iterator[tuple[object, pa.Array | None]]:
    """Yield each value and the indexes of its rows, in order; None instead of indexes if all rows
    have the value."""
    coded = column.dictionary_encode()
    values = coded.dictionary.to_pylist()
    if len(values) == 1:
        yield values[0], None
        return
    order = pc.array_sort_indices(coded.indices)  # a stable sort
    runs = pc.run_end_encode(coded.indices.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield values[code], order.slice(start, end - start)
        start = end


def hashed(keys: pa.Array, count: int) -> pa.Array:
    """Return a number below `count` for each key, the same everywhere and always."""
    coded = keys.dictionary_encode()
    numbers = [zlib.crc32(key) % count for key in coded.dictionary.to_pylist()]
    return pa.array(numbers, pa.int32()).take(coded.indices)
