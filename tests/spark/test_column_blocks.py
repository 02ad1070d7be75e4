"""Decoding of blocks into record batches, compared with pure Python."""

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.base.core import crc32c
from nsqcy.spark.checksum import Folding
from nsqcy.spark.column_blocks import FIELDS, Decoder, arrow_schema, wanted
from nsqcy.spark.errors import CorruptBlock
from support.fake_log_nsqd import COLUMNS, Record, block, seal

LOG_ID = "5b0e" * 8
EVERYTHING = list(FIELDS)
HEADERS = {
    b"": [],
    b"\1a\0\0": [("a", "")],
    b"\5trace\0\2\xff\x31\3ttl\0\0015": [("trace", "\ufffd1"), ("ttl", "5")],
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

records = st.lists(
    st.builds(
        Record,
        st.binary(max_size=40),
        st.integers(0, 1 << 62),
        st.integers(1, (1 << 64) - 1),
        st.integers(0, 1 << 62),
        st.sampled_from(list(HEADERS)),
    ),
    min_size=1,
    max_size=30,
)


def decoder(names: list[str], nullable: bool = False) -> Decoder:
    return Decoder(arrow_schema([(name, nullable) for name in names]), "t", "h:4150", LOG_ID)


def row(seq: int, record: Record) -> dict[str, Any]:
    return {
        "topic": "t",
        "nsqd": "h:4150",
        "log_id": LOG_ID,
        "seq": seq,
        "id": f"{record.id:016x}",
        "timestamp": EPOCH + timedelta(microseconds=record.timestamp // 1000),
        "defer_ms": min(record.defer // 1_000_000, (1 << 31) - 1),
        "body": record.body,
        "headers": HEADERS[record.headers],
    }


@given(st.lists(records, min_size=1, max_size=4), st.sets(st.sampled_from(EVERYTHING), min_size=1))
def test_rows(blocks: list[list[Record]], chosen: set[str]) -> None:
    names = [name for name in EVERYTHING if name in chosen]
    reader = decoder(names)
    seq = 7
    for each in blocks:
        data = pa.py_buffer(bytes(block(LOG_ID, seq, each, wanted(names).split(","))))
        batch = reader.rows(reader.parse(data))
        batch.validate(full=True)
        expected = [row(seq + index, record) for index, record in enumerate(each)]
        assert batch.to_pylist() == [{name: one[name] for name in names} for one in expected]
        seq += len(each)


@pytest.mark.parametrize("nullable", [False, True])
def test_the_schema_is_what_spark_asked_for(nullable: bool) -> None:
    reader = decoder(EVERYTHING, nullable)
    batch = reader.rows(
        reader.parse(pa.py_buffer(bytes(block(LOG_ID, 1, [Record(b"x")], COLUMNS))))
    )
    assert batch.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert {field.nullable for field in batch.schema} == {nullable}


def test_bodies_are_not_copied() -> None:
    data = pa.py_buffer(bytes(block(LOG_ID, 1, [Record(b"x" * 1000)] * 3, ["id", "body"])))
    reader = decoder(["body"])
    batch = reader.rows(reader.parse(data))
    offsets, bodies = batch.column("body").buffers()[1:]
    for part in (offsets, bodies):
        assert data.address < part.address < data.address + data.size


def test_only_what_is_needed_is_asked_for() -> None:
    assert wanted(["seq", "topic"]) == "id"
    assert wanted(["body", "defer_ms", "timestamp"]) == "timestamp,id,defer,body"


def damage(name: str) -> bytes:
    data = block(LOG_ID, 1, [Record(b"hello")] * 3, COLUMNS)
    match name:
        case "short":
            return bytes(data[:40])
        case "magic":
            data[0] ^= 1
        case "version":
            data[8] = 2
        case "bit":
            data[-9] ^= 1
        case "size":
            data += bytes(8)
        case "log":
            data[16] ^= 1
            seal(data)
        case "empty":
            data[40:44] = bytes(4)
            seal(data)
        case "offsets":
            at = len(data) - 40  # four offsets of bodies, before 15 bytes and padding
            assert struct.unpack_from("<4I", data, at + 8) == (0, 5, 10, 15)
            struct.pack_into("<I", data, at + 20, 1000)
            seal(data)
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("short", "a block of 40 bytes"),
        ("magic", "the bytes are not a block"),
        ("version", "a block has version 2 instead of 1"),
        ("bit", "a block has a wrong checksum"),
        ("size", "the bytes are not a block"),
        ("log", "the block belongs to another log, or has no records"),
        ("empty", "the block belongs to another log, or has no records"),
        ("offsets", "the columns extend beyond the end of the block"),
    ],
)
def test_blocks_that_are_none(name: str, text: str) -> None:
    with pytest.raises(CorruptBlock) as caught:
        decoder(EVERYTHING).parse(pa.py_buffer(damage(name)))
    assert str(caught.value) == f"nsq: {text}"


def test_a_block_without_a_column() -> None:
    data = pa.py_buffer(bytes(block(LOG_ID, 1, [Record(b"hello")], ["id"])))
    with pytest.raises(CorruptBlock, match="the block lacks the requested columns"):
        decoder(["body"]).parse(data)


@pytest.mark.parametrize(
    "offsets", [(0, 1 << 30, 10, 15), (0, 5, 4, 15), (1 << 31, 5, 10, 15), (0, 5, 0xFFFFFFFF, 15)]
)
def test_offsets_that_lead_elsewhere(offsets: tuple[int, ...]) -> None:
    """The checksum is correct, so only the offsets themselves reveal the damage."""
    data = block(LOG_ID, 1, [Record(b"hello")] * 3, ["id", "body"])
    struct.pack_into("<4I", data, 64 + 24, *offsets)
    seal(data)
    reader = decoder(["body"])
    with pytest.raises(CorruptBlock, match="invalid columns in a block"):
        reader.rows(reader.parse(pa.py_buffer(bytes(data))))


def test_headers_that_are_none() -> None:
    reader = decoder(["headers"])
    for headers in (b"\5tr", b"\1\xff\0\0"):
        data = bytes(block(LOG_ID, 1, [Record(b"", headers=headers)], ["id", "headers"]))
        with pytest.raises(CorruptBlock, match="invalid columns in a block"):
            reader.rows(reader.parse(pa.py_buffer(data)))


@pytest.fixture(scope="module")
def folding() -> Folding:
    return Folding()


@pytest.mark.parametrize(
    "size", [0, 1, 3, 4, 100, 2047, 2048, 4096, 4099, 65536, 131072, 131075, 1 << 20, (1 << 20) + 5]
)
def test_the_checksum_without_a_compiler(size: int, folding: Folding) -> None:
    data = bytes(index * 167 % 251 for index in range(size))
    assert folding(pa.py_buffer(data)) == crc32c(data)
    assert folding(pa.py_buffer(b"1234567890123456" + data).slice(16)) == crc32c(data)
