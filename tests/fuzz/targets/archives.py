"""Files that jobs and Spark keep about logs (manifests, checkpoints, offsets), and blocks that
nsqds send: each is read, or refused with an error text.

The first byte of an input selects the kind of the rest.
"""

import contextlib
import json
import struct
import tempfile
from pathlib import Path

import pyarrow as pa

from nsqcy.base.core import crc32c, encode_headers
from nsqcy.pipeline import checkpoint, manifests
from nsqcy.pipeline.checkpoint import Unreadable
from nsqcy.pipeline.manifests import Damaged, File, Manifest
from nsqcy.spark import column_blocks
from nsqcy.spark.errors import CorruptBlock, OptionError
from nsqcy.spark.offsets import Offset
from support.worker_core import EPOCH

COVERS = ["pipeline/manifests.py", "pipeline/checkpoint.py", "spark/offsets.py"]
COVERS += ["spark/batch_plan.py", "spark/column_blocks.py", "spark/headers.py"]
WORDS = [
    b'"v":',
    b'"batch":',
    b'"files":',
    b'"path":',
    b'"from":',
    b'"to":',
    b'"replaces":',
    b'"pos":',
]
WORDS += [b"v1\n", b'"crc":', b'"split":', b"1e999", b"Infinity", b"null", b"[[", b'"\\ud800"']
LOG_ID = bytes(range(16))


def block(count: int = 2, bits: int = 31) -> bytes:
    headers = encode_headers([(b"a", b"b")])
    texts = [struct.pack(f"<{count + 1}I", *(n * 5 for n in range(count + 1))) + b"hello" * count]
    texts = [struct.pack("<3I", 0, 0, len(headers)) + headers, *texts]
    wide = [struct.pack(f"<{count}q", *values) for values in ([EPOCH] * count, [1, 2], [0, 5000])]
    columns = [each + bytes(-len(each) % 8) for each in wide + texts]
    content = b"".join(each for bit, each in enumerate(columns) if bits & 1 << bit)
    magic = b"SQCYBLK\0"
    rest = struct.pack("<16sQIIIIQ", LOG_ID, 5, count, 0, bits, 0, 64 + len(content)) + content
    return magic + struct.pack("<II", 1, crc32c(rest)) + rest


def seeds() -> list[bytes]:
    file = File("topic=t/dt=D/hr=H/batch=b/part-0.parquet", "t", LOG_ID.hex(), 1, 9, 8, 1000, 5)
    manifest = manifests.as_json(Manifest("b", (file,), ("old",)))
    offset = Offset({"t": {LOG_ID.hex(): 5}}, {"t": {LOG_ID.hex(): 1}}, True, (4, 100)).as_json()
    return [
        b"\0" + json.dumps(manifest).encode(),
        b"\1v1\n{}\n" + json.dumps(offset).encode(),
        b"\2" + json.dumps(offset).encode(),
        b"\3" + block(),
        b"\3" + block(bits=18),
    ]


def sound(data: bytes) -> bytes:
    """Correct the size and the checksum of a block."""
    if data[:1] != b"\3" or len(data) < 65:
        return data
    content = bytearray(data[1:])
    struct.pack_into("<Q", content, 56, len(content))
    struct.pack_into("<I", content, 12, crc32c(bytes(content[16:])))
    return b"\3" + bytes(content)


def one(data: bytes) -> None:
    read = [_manifest, _checkpoint, _offset, _block]
    if data:
        read[data[0] % len(read)](data[1:])


def _manifest(content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder)
        path = manifests.manifest_path(root, "b")
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        try:
            found = manifests.read(root)
        except Damaged:
            return
        manifests.positions(found)
        for each in [*found.manifests, *found.unfinished]:
            path.write_text(json.dumps(manifests.as_json(each)))
            assert manifests.read_one(path) == each


def _checkpoint(content: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        root = Path(folder)
        for name in ("offsets", "commits"):
            (root / name).mkdir()
            (root / name / "3").write_bytes(content)
        try:
            found = checkpoint.read(root)
        except Unreadable:
            return
        assert all(isinstance(seq, int) for logs in found.pos.values() for seq in logs.values())


def _offset(content: bytes) -> None:
    """Parse an offset. Spark itself writes offsets, so only JSON is tested."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(OptionError):
        if isinstance(value, dict):
            found = Offset.parse(value)
            assert Offset.parse(found.as_json()) == found


def _block(content: bytes) -> None:
    schema = column_blocks.arrow_schema([(name, True) for name in column_blocks.FIELDS])
    decoder = column_blocks.Decoder(schema, "t", "a:1", LOG_ID.hex())
    try:
        found = decoder.parse(pa.py_buffer(content))
        if found.base_seq == 5:  # the requested seq
            decoder.rows(found).validate(full=True)
    except CorruptBlock:
        pass
