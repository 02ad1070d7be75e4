"""Conversion of blocks of columns (docs/PROTOCOL.md) into record batches, without copying
bodies."""

import struct
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nsqcy.spark.checksum import checksum
from nsqcy.spark.errors import CorruptBlock
from nsqcy.spark.headers import as_text

HEADER = "<QII16sQIIIIQ"
HEADER_SIZE = 64
MAGIC = int.from_bytes(b"SQCYBLK\0", "little")
VERSION = 1
DAMAGED = 1
WIDE = ("timestamp", "id", "defer")  # columns of 8 bytes per record
SENT = (*WIDE, "headers", "body")  # columns in the order of their bits

# The columns of a row, and nsqd's column for each.
FIELDS: dict[str, tuple[str, pa.DataType, str]] = {
    "topic": ("string", pa.string(), ""),
    "nsqd": ("string", pa.string(), ""),
    "log_id": ("string", pa.string(), ""),
    "seq": ("bigint", pa.int64(), ""),
    "id": ("string", pa.string(), "id"),
    "timestamp": ("timestamp", pa.timestamp("us", "UTC"), "timestamp"),
    "defer_ms": ("int", pa.int32(), "defer"),
    "body": ("binary", pa.binary(), "body"),
    "headers": ("map<string,string>", pa.map_(pa.string(), pa.string()), "headers"),
}
DEFAULT_FIELDS = tuple(name for name in FIELDS if name != "headers")


def wanted(names: list[str]) -> str:
    """Return the columns to request. The id is always included: it is small and marks damaged
    records."""
    needed = {FIELDS[name][2] for name in names} | {"id"}
    return ",".join(name for name in SENT if name in needed)


@dataclass(frozen=True)
class Block:
    """A block with a valid checksum. `columns` are slices of the received bytes."""

    log_id: str
    base_seq: int
    count: int
    damaged: bool
    columns: dict[str, pa.Buffer]  # headers, bodies: offsets and the bytes that they refer to

    @property
    def end(self) -> int:
        return self.base_seq + self.count


class Decoder:
    """Reads the blocks of one log for one task."""

    def __init__(self, schema: pa.Schema, topic: str, nsqd: str, log_id: str) -> None:
        self._schema = schema
        self._log_id = log_id
        self._needed = {FIELDS[name][2] for name in schema.names} - {""}
        self._constants = {"topic": topic, "nsqd": nsqd, "log_id": log_id}
        self._repeated: dict[str, pa.Array] = {}
        self._numbers = pa.array([], pa.int64())
        self._hex: Hex | None = None
        self._crc32c = checksum()

    def parse(self, data: pa.Buffer) -> Block:
        """Check a block and find its columns."""
        if data.size < HEADER_SIZE:
            raise CorruptBlock(f"a block of {data.size} bytes")
        magic, version, crc, log_id, base_seq, count, flags, bits, _, size = struct.unpack_from(
            HEADER, data
        )
        if magic != MAGIC or size != data.size:
            raise CorruptBlock("the bytes are not a block")
        if version != VERSION:
            raise CorruptBlock(f"a block has version {version} instead of {VERSION}")
        if crc != self._crc32c(data.slice(16)):
            raise CorruptBlock("a block has a wrong checksum")
        if log_id.hex() != self._log_id or not count:
            raise CorruptBlock("the block belongs to another log, or has no records")
        columns = cut(data, bits, count)
        if not self._needed <= columns.keys():
            raise CorruptBlock("the block lacks the requested columns")
        return Block(self._log_id, base_seq, count, bool(flags & DAMAGED), columns)

    def rows(self, block: Block) -> pa.RecordBatch:
        """Decode a block. Raises CorruptBlock: a valid checksum does not imply valid content."""
        try:
            arrays = [self._array(field.name, block) for field in self._schema]
        except ValueError as error:  # as in pyarrow
            raise CorruptBlock(f"invalid columns in a block: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def intact(self, block: Block) -> pa.Array:
        """Return which records are intact."""
        return pc.not_equal(wide(block, "id", pa.uint64()), pa.scalar(0, pa.uint64()))

    def _array(self, name: str, block: Block) -> pa.Array:
        match name:
            case "seq":
                self._count_to(block.count)
                start = pa.scalar(block.base_seq, pa.int64())
                return pc.add(self._numbers.slice(0, block.count), start)
            case "id":
                if self._hex is None:
                    self._hex = Hex()
                return self._hex(wide(block, "id", pa.uint64()))
            case "timestamp":
                return pc.divide(
                    wide(block, "timestamp", pa.int64()), pa.scalar(1000, pa.int64())
                ).view(FIELDS["timestamp"][1])
            case "defer_ms":
                milliseconds = pc.divide(
                    wide(block, "defer", pa.int64()), pa.scalar(1_000_000, pa.int64())
                )
                return pc.min_element_wise(milliseconds, pa.scalar(0x7FFFFFFF)).cast(pa.int32())
            case "body":
                return texts(block, "body")
            case "headers":
                return maps(texts(block, "headers"))
        return self._constant(name, block.count)

    def _constant(self, name: str, count: int) -> pa.Array:
        if name not in self._repeated or len(self._repeated[name]) < count:
            self._repeated[name] = pa.repeat(pa.scalar(self._constants[name], pa.string()), count)
        return self._repeated[name].slice(0, count)

    def _count_to(self, count: int) -> None:
        if len(self._numbers) < count:
            self._numbers = numbers(count)


class Hex:
    """Return ids as clients see them: 16 hex digits, most significant first."""

    def __init__(self) -> None:
        digits = struct.pack(">65536H", *range(65536)).hex().encode()
        self._digits = pa.Array.from_buffers(pa.uint32(), 65536, [None, pa.py_buffer(digits)])
        self._order = pa.array([], pa.int64())
        self._offsets = pa.array([], pa.int32())

    def __call__(self, ids: pa.Array) -> pa.Array:
        count = len(ids)
        if len(self._offsets) <= count:
            self._prepare(count)
        quarters = pa.Array.from_buffers(pa.uint16(), 4 * count, [None, ids.buffers()[1]])
        ordered = pc.take(quarters, self._order.slice(0, 4 * count), boundscheck=False)
        digits = pc.take(self._digits, ordered, boundscheck=False)
        offsets = self._offsets.buffers()[1].slice(0, 4 * (count + 1))
        return pa.Array.from_buffers(pa.string(), count, [None, offsets, digits.buffers()[1]])

    def _prepare(self, count: int) -> None:
        """Return 3, 2, 1, 0, 7, 6, ...: little-endian machines store the lowest 16 bits first."""
        each = numbers(4 * count)
        self._order = pc.bit_wise_xor(each, pa.scalar(3, pa.int64()))
        self._offsets = pc.multiply(numbers(count + 1).cast(pa.int32()), pa.scalar(16, pa.int32()))


def cut(data: pa.Buffer, bits: int, count: int) -> dict[str, pa.Buffer]:
    columns = {}
    at = HEADER_SIZE
    for bit, name in enumerate(SENT):
        if not bits & 1 << bit:
            continue
        if name in WIDE:
            size = 8 * count
        else:
            size = 4 * (count + 1)
            if at + size <= data.size:
                size += int(struct.unpack_from("<I", data, at + size - 4)[0])
        if at + size > data.size:
            raise CorruptBlock("the columns extend beyond the end of the block")
        columns[name] = data.slice(at, size)
        at += size + -size % 8
    return columns


def texts(block: Block, name: str) -> pa.Array:
    """Check the offsets of a column.

    Raises ValueError if they do not ascend or if they point beyond the column: pyarrow would read
    memory beyond it.
    """
    data = block.columns[name]
    behind = 4 * (block.count + 1)
    parts = [None, data.slice(0, behind), data.slice(behind)]
    found = pa.Array.from_buffers(pa.binary(), block.count, parts)
    found.validate(full=True)
    return found


def maps(headers: pa.Array) -> pa.Array:
    """Decode headers. Most topics only have messages without headers; in that case, no record is
    examined."""
    if not headers.buffers()[2].size:
        offsets = pa.repeat(pa.scalar(0, pa.int32()), len(headers) + 1)
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(offsets, nothing, nothing)
    return pa.array([as_text(each) for each in headers.to_pylist()], FIELDS["headers"][1])


def wide(block: Block, name: str, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, block.count, [None, block.columns[name]])


def numbers(count: int) -> pa.Array:
    """0, 1, 2, ..."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.subtract(pc.cumulative_sum(ones), pa.scalar(1, pa.int64()))


def arrow_schema(columns: list[tuple[str, bool]]) -> pa.Schema:
    """The selected columns, and whether Spark treats them as nullable."""
    return pa.schema([pa.field(name, FIELDS[name][1], nullable) for name, nullable in columns])
