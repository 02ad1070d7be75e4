"""Files of NSQ's nsqd: every byte belongs to a record or is reported, and a topic can load the
result of an import.

An input is the metadata, a zero byte, and the content of a file. Without metadata, the file is only
read, because an import takes longer.
"""

import shutil
import tempfile
from pathlib import Path

from nsqcy.errors import StartError
from nsqcy.nsqd.data import diskqueue
from nsqcy.nsqd.data.importer import Importer
from nsqcy.storage.core import IoThread
from nsqcy.storage.io_faults import FaultyIoThread
from support.nsq_diskqueue import Message as Stored
from support.nsq_diskqueue import data_file, image, messages, meta_file, record
from support.worker_core import Core, Log

COVERS = ["nsqd/data/diskqueue.py", "nsqd/data/importer.py"]
WORDS = [
    b"\0\0\0\x1a",
    b"\0\0\0\x2e",
    b"0123456789abcdef",
    b"\0\0\xff\xff",
    b"\n0,0\n",
    b",",
    b"\0",
]


def seeds() -> list[bytes]:
    some = messages(0, 3) + messages(3, 2, attempts=2)
    whole = image(some)
    odd = Stored(1, 65535, b"not a number at all"[:16], b"body")
    return [
        b"5\n0,0\n0,%d\n\0" % len(whole) + whole,
        b"3\n0,50\n0,%d\n\0" % len(whole) + whole,
        b"\0" + whole + whole[:30],
        b"1\n0,0\n0,10\n\0" + record(odd) + whole + b"\0\0\0\x05hello" + whole,
    ]


def sound(data: bytes) -> bytes:
    """Reduce each announced record length to the number of bytes that are left."""
    meta, _, content = data.partition(b"\0")
    result, at = bytearray(content), 0
    while at + 30 <= len(result):
        size = int.from_bytes(result[at : at + 4], "big")
        size = max(26, min(size, len(result) - at - 4))
        result[at : at + 4] = size.to_bytes(4, "big")
        at += 4 + size
    return meta + b"\0" + bytes(result)


def one(data: bytes) -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        meta, _, content = data.partition(b"\0")
        file = data_file(folder, "t")
        file.write_bytes(content)
        if meta:
            meta_file(folder, "t").write_bytes(meta)
        _read(file, content)
        if meta:
            _import(folder)
    finally:
        shutil.rmtree(folder)


def _read(file: Path, content: bytes) -> None:
    damages: list[diskqueue.Damage] = []
    found = list(diskqueue.FileReader(str(file), damages.append).records())
    size = sum(30 + len(each.body) for each in found)
    assert size + sum(each.bytes for each in damages) == len(content)


def _import(folder: Path) -> None:
    io = IoThread(stepped=True)
    log = Log()
    importer = Importer(str(folder), log, io=io)
    try:
        importer.run()
    except StartError:
        return
    finally:
        io.close()
    core = Core(folder, io=FaultyIoThread(stepped=True))
    core.load_all()
    topic = core.topic("t")
    there = 0 if topic is None else topic.counters()["depth"]
    assert there == importer.messages
    core.close()
