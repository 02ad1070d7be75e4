"""Topic files whose intact parts are recovered at startup: nothing fails, and the worker's reports
match those of `nsqcy data check`.

An input is the topic's files: for each, its number, the length of its content, and the content.
Number 0 is the journal; other numbers are segments.
"""

import shutil
import struct
import tempfile
from pathlib import Path

from nsqcy.base.core import crc32c
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.nsqd.data.audit import Audit
from nsqcy.storage.core import BlockPool, IoThread, scan_segment
from nsqcy.storage.io_faults import FaultyIoThread
from support.worker_core import RESPONSE, SECOND, Core, mpub

COVERS = [
    "storage/disk_format.pyx",
    "storage/log.pyx",
    "storage/log_recovery.pyx",
    "storage/segment_files.pyx",
    "storage/standalone_log.pyx",
    "broker/recovery.pyx",
    "broker/log_fetch.pyx",
    "storage/journal.py",
    "nsqd/data/audit.py",
]
WORDS = [b"SQCYSEG\0", b"SQCYEND\0", b"SQCYJNL\0", b"\1\0\0\0", b"\x30\0\0\0", b"\xff" * 8]
FILE = struct.Struct("<BH")
HEADER, RECORD, TRAILER = 64, 48, 16
"""Sizes of a segment's header, of the smallest record, and of the trailer after a footer."""
SETTINGS = {
    "mem_queue_size": 0,
    "log_options": {"max_bytes_per_file": 500, "sync_every": 2500, "sync_timeout": SECOND},
    "policies": Policies(TopicPolicy(retention_time=3600 * SECOND)),
}
STORE = BlockPool(1 << 40)
"""Shared by all cores in turn: mapping its memory takes longer than running most inputs."""


def packed(folder: Path) -> bytes:
    found = []
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        number = 0 if path.name == "journal" else int(path.stem)
        found.append(FILE.pack(number, len(content)) + content)
    return b"".join(found)


def unpacked(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at + FILE.size <= len(data):
        number, size = FILE.unpack_from(data, at)
        at += FILE.size
        found.append((number, data[at : at + size]))
        at += size
    return found


def seeds() -> list[bytes]:
    """Return the files of a topic after a kill and after a clean exit."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (folder / "data").mkdir()
    core = Core(folder / "data", **SETTINGS)
    core.create("t").channel("c")
    publisher = core.client(topic_log=True)
    assert publisher.ask(mpub("t", [b"one", b"two", b"three"])) == (RESPONSE, b"OK")
    assert publisher.publish("t", b"later", delay=30_000) == (RESPONSE, b"OK")
    consumer = core.client().subscribe("t", "c", 2)
    core.settle()
    for each in consumer.messages()[:1]:
        consumer.finish(each.id)
    core.advance(2 * SECOND)
    found = [packed(core.copied() / "t.topic")]
    core.save()
    found.append(packed(folder / "data/t.topic"))
    shutil.rmtree(folder)
    return found


def sound(data: bytes) -> bytes:
    """Correct the checksums of headers, records, footers and entries."""
    return b"".join(
        FILE.pack(number, len(content)) + (_sound_segment if number else _sound_journal)(content)
        for number, content in unpacked(data)
    )


def _checked(content: bytearray, at: int, start: int, end: int) -> None:
    """Write the checksum of some bytes at an offset."""
    struct.pack_into("<I", content, at, crc32c(bytes(content[start:end])))


def _sound_header(content: bytearray, size: int) -> None:
    if len(content) >= size:
        struct.pack_into("<I", content, 12, 0)
        _checked(content, 12, 0, size)


def _sound_segment(data: bytes) -> bytes:
    content, at = bytearray(data), HEADER
    _sound_header(content, HEADER)
    while at + RECORD <= len(content):
        (length,) = struct.unpack_from("<I", content, at)
        if length < RECORD or length % 8 or at + length > len(content):
            break
        _checked(content, at + 4, at + 8, at + length)
        at += length
    if content.endswith(b"SQCYEND\0") and len(content) >= TRAILER:
        end = len(content) - TRAILER
        (length,) = struct.unpack_from("<I", content, end)
        if TRAILER <= length <= len(content):
            _checked(content, end + 4, len(content) - length, end)
    return bytes(content)


def _sound_journal(data: bytes) -> bytes:
    content, at = bytearray(data), 32
    _sound_header(content, 32)
    while at + 8 <= len(content):
        (length,) = struct.unpack_from("<I", content, at)
        length = min(length, len(content) - at - 8)
        struct.pack_into("<I", content, at, length)
        crc = crc32c(bytes(content[at : at + 4] + content[at + 8 : at + 8 + length]))
        struct.pack_into("<I", content, at + 4, crc)
        at += 8 + length
    return bytes(content)


def one(data: bytes) -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    topic = folder / "t.topic"
    topic.mkdir()
    try:
        for number, content in unpacked(data):
            scan_segment(content)
            name = f"{number:020}.seg" if number else "journal"
            (topic / name).write_bytes(content)
        _audit(folder)
        _start(folder)
    finally:
        shutil.rmtree(folder)


def _audit(folder: Path) -> None:
    io = IoThread(read_only=True, stepped=True)
    try:
        Audit(io, str(folder), "t", {"c": False}).run()
    finally:
        io.close()


def _start(folder: Path) -> None:
    io = FaultyIoThread(stepped=True)
    core = Core(folder, now=77 * SECOND, io=io, pool=STORE, **SETTINGS)
    core.shard.load_topic(b"t", False, {"c": False})
    core.settle()
    client = core.client().subscribe("t", "c", 2500)
    reader = core.client(topic_log=True)
    for _ in range(3):
        core.settle()
        for each in client.messages():
            client.finish(each.id)
        core.advance(40 * SECOND)
    reader.ask(b"LOG_META t\n")
    core.close()
