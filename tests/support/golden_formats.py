"""Golden bytes of every format: written from fixed inputs, ids and clocks.

`PYTHONPATH=.:tests python -m support.golden_formats` writes the next generation to
tests/golden/formats/<number>. Do this once a format has a new number; tests/golden/test_formats.py
requires it. Earlier generations stay as long as this version reads their formats. A generation
contains:

- `numbers.json`: the number of each format at the time of writing;
- `stopped`, `killed`: data paths, as a clean exit and as SIGKILL leave them; each file is a hex
  dump, which a review can read;
- `expected.json`: what consumers receive from these data paths;
- `exchanged.json`: what is sent between processes, machines and clients;
- `journal.txt`: a hex dump of the entries of a journal with every section and every delta.
"""

import itertools
import json
import mmap
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from nsqcy.base.core import crc32c, headers_from_text
from nsqcy.config.policies import Policies, TopicPolicy, Version
from nsqcy.copies import messages
from nsqcy.copies.group import Group
from nsqcy.copies.recall import Known
from nsqcy.copies.values import encode_group
from nsqcy.formats import FORMATS
from nsqcy.ipc.core import format_shared, map_size, page_size, quotas_offset, ring_offset
from nsqcy.nsqd.copies.copy_files import CopyFiles, Data
from nsqcy.nsqd.copies.node import Node, machine_id
from nsqcy.nsqd.copies.wire import Greeting, Welcome, encode
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.master import metadata, metadata_changes
from nsqcy.nsqd.master.metadata_changes import ChangeLog
from nsqcy.nsqd.master.policy_file import SavedPolicies
from nsqcy.process import control, handoff
from nsqcy.storage import journal
from nsqcy.storage.core import IoThread
from support.header_client import HeaderClient, whole
from support.log_columns import ALL
from support.two_workers import HOME, OWNER, Near
from support.worker_core import EPOCH, ERROR, RESPONSE, SECOND, Client, Core, log_pub, mpub

FOLDER = Path(__file__).parents[1] / "golden" / "formats"
LIVES = ("stopped", "killed")
DUMP = ".txt"
PAGE = 4096
HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR
OK = (RESPONSE, b"OK")
BOOT = bytes(range(16))
GROUP_ID = "0f1e2d3c4b5a6978"
GROUP = Group(GROUP_ID, 1, "m.0", "", ("m.0", "n.0"), 2, 2, "nonce", "fsync")
TOPICS = ("kept", "memory", "once", "plain")
LOG_ID = bytes(range(16, 32))
ENTRY = journal.Entry(7, 1, 64, 5, 2, journal.State.DEFERRED, 9, 1)
MORE, MORE_ID = ENTRY._replace(seq=12), 4711
RUN = journal.TransferRun(3, 4, "target")
CURSOR = journal.NamedCursor("reader", LOG_ID, 5, EPOCH)


def numbers() -> dict[str, int]:
    return {each.name: each.number for each in FORMATS}


def newest() -> Path | None:
    """Return the last generation."""
    return max(generations(), key=lambda path: int(path.name), default=None)


def generations() -> list[Path]:
    return [each for each in FOLDER.iterdir() if each.name.isdigit()] if FOLDER.is_dir() else []


def write(folder: Path) -> None:
    """Write a generation to an empty directory."""
    expected = {}
    with tempfile.TemporaryDirectory() as name:
        for life in LIVES:
            data_path = Path(name, life)
            with fixed():
                _write_data_path(data_path, life)
            for path in sorted(each for each in data_path.rglob("*") if each.is_file()):
                dump = folder / life / f"{path.relative_to(data_path)}{DUMP}"
                dump.parent.mkdir(parents=True, exist_ok=True)
                dump.write_text(dumped(path.read_bytes()))
            expected[life] = received(data_path)
    with fixed():
        (folder / f"journal{DUMP}").write_text(dumped(_journal()))
        _write_json(folder / "exchanged.json", exchanged())
    _write_json(folder / "numbers.json", numbers())
    _write_json(folder / "expected.json", expected)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def dumped(content: bytes) -> str:
    """Return a hex dump: each line has an offset, up to 16 bytes, and their text."""
    lines = []
    for at in range(0, len(content), 16):
        piece = content[at : at + 16]
        text = "".join(chr(byte) if 32 < byte < 127 else "." for byte in piece)
        lines.append(f"{at:06x} {piece.hex():32} {text}\n")
    return "".join(lines)


def restored(dump: str) -> bytes:
    return bytes.fromhex("".join(line.split()[1] for line in dump.splitlines()))


@contextmanager
def fixed() -> Iterator[None]:
    """Make random bytes and the wall clock the same each time."""
    count = itertools.count(1)

    def random(size: int) -> bytes:
        return b"%0*d" % (size, next(count))

    with (
        mock.patch("os.urandom", random),
        mock.patch("secrets.token_hex", lambda size: random(2 * size).decode()),
        mock.patch("time.time_ns", lambda: EPOCH),
    ):
        yield


def core_at(path: Path, **options: Any) -> Core:
    core = Core(
        path,
        policies=Policies(
            TopicPolicy("os"),
            sections=[
                ("kept", {"retention_time": YEAR}),
                ("memory", {"durability": "memory"}),
                ("once", {"dedup_window": YEAR, "dedup_id": "json:/id"}),
            ],
        ),
        mem_queue_size=0,
        log_options={"max_bytes_per_file": 1500, "sync_every": 2500, "sync_timeout": 2 * SECOND},
        **options,
    )
    core.shard.host.boot = BOOT
    return core


# -- data paths


def _write_data_path(path: Path, life: str) -> None:
    path.mkdir(parents=True)
    core = core_at(path)
    _fill(core)
    if life == "killed":
        killed = core.copied()
        core.close()
        shutil.rmtree(path)
        killed.rename(path)
    else:
        core.save()
    _write_state_files(path)
    _write_copies(path)
    for folder in path.rglob("previous"):
        shutil.rmtree(folder)  # its checksums contain the time of the file


def _fill(core: Core) -> None:
    for name in TOPICS:
        topic = core.create(name)
        topic.channel("c")
        topic.channel("d")
    client = HeaderClient(core)
    for name in ("kept", "memory", "plain"):
        for number in range(40):
            assert client.publish(name, whole(b"%s %d" % (name.encode(), number))) == OK
        encoded = headers_from_text({"key": "k", "priority": "7", "trace": "1"})
        assert client.publish(name, whole(b"with headers", encoded)) == OK
        assert client.publish(name, whole(b"later"), 60_000) == OK
        assert client.publish(name, whole(b"x" * 600)) == OK
    for number in (*range(10), 3):
        assert client.publish("once", whole(b'{"id": "%d"}' % number)) == OK
    plain = core.client(topic_log=True)
    assert plain.ask(mpub("plain", [b"one", b"two", b"three"])) == OK
    for chunk in (1, 2):
        assert plain.ask(log_pub("kept", chunk, [b"in chunk %d" % chunk])) is not None
    facts = core.topic("kept").log_facts()  # type: ignore[union-attr]
    assert plain.ask(f"LOG_CURSOR kept {facts['log_id']} reader 7\n".encode()) is not None
    core.settle()
    for name in ("kept", "memory", "once", "plain"):
        _answer_some(core, name)
    core.topic("plain").pause_channel("d", True)  # type: ignore[union-attr]
    core.settle()
    core.advance(10 * SECOND)
    assert client.publish("plain", whole(b"after the checkpoint")) == OK
    core.topic("plain").channel("late")  # type: ignore[union-attr]
    _answer_some(core, "kept")
    core.settle()


def _answer_some(core: Core, topic: str) -> None:
    """Finish, requeue and defer some messages of channel c; the client keeps the others."""
    client = core.client().subscribe(topic, "c", 8)
    core.settle()
    for number, message in enumerate(client.messages()):
        if number < 4:
            client.finish(message.id)
        elif number < 6:
            client.requeue(message.id, 30_000 if number == 5 else 0)
    client.ready(0)
    core.settle()


def _write_state_files(path: Path) -> None:
    known = KnownTopics()
    for name in TOPICS:
        known.create_topic(name)
        known.create_channel(name, "c")
        known.create_channel(name, "d")
    content = metadata.dump(known)
    metadata.replace_file(str(path), content)
    known.take_changes()
    known.create_channel("plain", "e")
    known.pause_channel("plain", "e", True)
    changes = metadata_changes.encode(known.take_changes() or (), lambda: None)
    log = ChangeLog(str(path))
    log.append(changes, crc32c(content), 0)
    policies = {"plain": {"durability": "fsync"}, "plain/c": {"max_attempts": 5}}
    SavedPolicies(str(path), policies, Version("0123456789abcdef", 3)).write()


class _Silent:
    def info(self, text: str, /, **fields: object) -> None:
        pass

    debug = warn = error = info


def _write_copies(path: Path) -> None:
    lines: Any = _Silent()
    machine = machine_id(path / "copies", lines)
    node = Node(path / "copies", path / "copies" / "0", machine, 0, BOOT.hex(), lines)
    group = replace(GROUP, owner=f"{machine}.0", members=(f"{machine}.0", "n.0"))
    node.remember({GROUP_ID: Known((1, 1), group)})
    assert node.flush()
    root = path / "copies" / "0" / GROUP_ID
    io = IoThread()
    copy = CopyFiles(io, root, BOOT.hex(), "os", print)
    copy.begin_filling()
    names = []
    for file in sorted((path / "plain.topic").iterdir()):
        names.append(f"copied.topic/{file.name}")
        copy.write(names[-1], 0, Data(file.read_bytes()))
    copy.fill(names, 1)
    copy.close()
    io.close()


def received(path: Path) -> dict[str, list[str]]:
    """Return all messages that the channels of a data path still deliver, in order. Deletes the
    topics."""
    core = core_at(path, now=2000 * SECOND, wall=EPOCH + 20 * SECOND)
    core.load_all()
    found = {}
    for topic in TOPICS:
        for channel in "cd":
            found[f"{topic}/{channel}"] = _consumed(core, topic, channel)
    core.close()
    return found


def data_path_of(generation: str, life: str, folder: Path) -> Path:
    """Write a data path of a generation to a directory, and return it."""
    source = FOLDER / generation / life
    for dump in source.rglob(f"*{DUMP}"):
        path = folder / life / str(dump.relative_to(source)).removesuffix(DUMP)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(restored(dump.read_text()))
    return folder / life


def journal_of(generation: str) -> bytes:
    return restored((FOLDER / generation / f"journal{DUMP}").read_text())


def _consumed(core: Core, name: str, channel: str) -> list[str]:
    topic = core.topic(name)
    assert topic is not None
    topic.pause_channel(channel, False)
    client = core.client().subscribe(name, channel, 10)
    found = []
    for _ in range(2):
        while _finish(core, client, found):
            pass
        core.advance(HOUR)  # deferred messages become due
    return found


def _finish(core: Core, client: Client, found: list[str]) -> bool:
    core.settle()
    delivered = client.messages()
    for each in delivered:
        body = each.body if len(each.body) < 100 else b"%d bytes" % len(each.body)
        found.append(f"{each.id.decode()} {each.timestamp} {each.attempts} {body.decode()}")
        client.finish(each.id)
    return bool(delivered)


# -- the content of journals


def _state() -> journal.TopicState:
    """Return a state that needs every section of a snapshot."""
    channel = journal.ChannelState(
        "c",
        paused=True,
        cursor=6,
        skipped=2,
        entries=ENTRY.pack(),
        finished=((8, 9),),
        replay_end=20,
        transfers=(RUN,),
        taken=struct.pack("<QQ", 5, 6),
        paused_keys=(b"a", b"b"),
        emptied_keys=((3, b"c"),),
    )
    part = journal.pack_part(journal.PartState(1, 2, ((3, 4),)))
    alone = journal.pack_part(journal.PartState(1, 9, (), alone=True))
    return journal.TopicState(
        LOG_ID,
        next_seq=30,
        fanout_seq=29,
        paused=True,
        channels=(channel,),
        delayed=ENTRY.pack(),
        holes=((1, 2),),
        clean=True,
        boot=BOOT,
        durability=2,
        cursors=(CURSOR,),
        epochs=(journal.EpochState(1, 2, EPOCH, part + alone),),
        produced_seq=12,
        past=(journal.Incarnation(bytes(16), 1, 4),),
        missing=((2, 3),),
        policies=b'{"version":["0123456789abcdef",3],"set":{}}',
        secret=bytes(range(32, 48)),
        ids_seq=11,
        ids_files=((1, 40),),
    )


def _deltas() -> list[journal.Delta]:
    """Return a delta of each kind."""
    kind = journal.Kind
    moved = ENTRY._replace(seq=11, state=journal.State.MOVING)
    return [
        journal.Delta(kind.CHANNEL_CREATED, "n", 29, paused=True),
        journal.Delta(kind.CHANNEL_DELETED, "n"),
        journal.Delta(kind.CURSOR_MOVED, "c", 9),
        journal.Delta(kind.ENTRY_ADDED, "c", entry=ENTRY._replace(seq=10)),
        journal.Delta(kind.ENTRY_FINISHED, "c", 7),
        journal.Delta(kind.CURSOR_NAMED, "", cursor=CURSOR),
        journal.Delta(kind.CURSOR_NAMED, "", cursor=CURSOR, deleted=True),
        journal.Delta(kind.ENTRY_TRANSFERRED, "c", 11, entry=moved, run=RUN, delayed=True),
        journal.Delta(kind.ENTRY_TRANSFERRED, "c", 11),
    ]


def _journal() -> bytes:
    """Return the entries of a journal, each with its size."""
    more = journal.encode_entries("c", MORE.pack(), struct.pack("<Q", MORE_ID))
    entries = [journal.encode_snapshot(_state()) + more, *map(journal.encode_delta, _deltas())]
    return b"".join(struct.pack("<I", len(each)) + each for each in entries)


def decoded_journal(content: bytes) -> list[object]:
    """Return the decoded entries."""
    entries = []
    while content:
        (size,) = struct.unpack_from("<I", content)
        entries.append(content[4 : 4 + size])
        content = content[4 + size :]
    return [journal.decode_snapshot(entries[0]), *map(journal.decode_delta, entries[1:])]


def expected_journal() -> list[object]:
    """Return what `decoded_journal` should return, in every generation."""
    state = _state()
    (channel,) = state.channels
    ids = struct.pack("<QQ", 0, MORE_ID)
    channel = replace(channel, entries=channel.entries + MORE.pack(), ids=ids)
    return [replace(state, channels=(channel,)), *_deltas()]


# -- what is exchanged


def exchanged() -> dict[str, Any]:
    """Return what is sent between processes, machines and clients, by format."""
    return {
        "control": _control(),
        "handoff": handoff.encode(5, "http", "10.0.0.1:4711", "10.0.0.2:4151").hex(),
        "shared memory": _shared_memory(),
        "copies stream": _copies_stream(),
        "registry": encode_group(GROUP).hex(),
        **_of_sessions(),
    }


def _control() -> list[str]:
    header = {"id": 1, "method": "Placed", "args": {"topic": "t", "worker": 1}}
    call = control.Message(control.CALL, header, b"blob" * 20_000)
    answer = control.Message(control.REPLY, {"id": 1, "value": None})
    return [crc_of(each) for one in (call, answer) for each in control.encode(one)]


def crc_of(data: bytes) -> str:
    """Return short data in hex, and the size, the start and a checksum of long data."""
    if len(data) <= 4096:
        return data.hex()
    return f"{len(data)} {data[:64].hex()} {crc32c(data):08x}"


def _shared_memory() -> dict[str, Any]:
    memory = mmap.mmap(-1, map_size(3))
    format_shared(memory, 3)
    return {
        "head": memory[: page_size(3)].rstrip(b"\0").hex(),
        "places": [page_size(3), ring_offset(3, 1, 2), quotas_offset(3), map_size(3)],
    }


def _copies_stream() -> list[str]:
    path = "t.topic/00000000000000000001.seg"
    each: list[Any] = [
        Greeting("cluster", "m.0", "n.0", GROUP_ID, "token"),
        Welcome("refused"),
        messages.Alive(True),
        messages.Offer(3),
        messages.Align(path, 64),
        messages.Filled([path], 4),
        messages.Write(path, 64, Data(b"records", are_records=True), 5),
        messages.Truncate(path, 64, 6),
        messages.Rename(path, "t.topic/journal", 7),
        messages.Delete(path, 8),
        messages.Have({path: messages.Extent(64, b"identity")}),
        messages.Refuse("epoch"),
        messages.Received(),
        messages.Confirm(9),
        messages.Fetch(1, path, b"identity", 64, 128),
        messages.Fetched(1, "", b"data"),
    ]
    return [encode(one).hex() for one in each]


def _of_sessions() -> dict[str, Any]:
    """Return the content of a ring, a packed session, and the answer to a LOG_FETCH."""
    near = Near()
    client = near.client(client_id="c", hostname="h", user_agent="a/1")
    assert client.publish("t", b"body") == OK
    state, unread, unsent = client.session.pack()
    memory = near.shared.lease_word.obj
    head = ring_offset(2, HOME, OWNER)
    (size,) = struct.unpack_from("<Q", memory, head)
    ring = memory[head + PAGE : head + PAGE + size]
    near.close()
    return {
        "mesh": ring.decode("latin-1"),
        "session": [state, unread.hex(), unsent.hex()],
        "log block": _log_block(),
    }


def _log_block() -> str:
    folder = tempfile.TemporaryDirectory()
    core = Core(Path(folder.name), policies=Policies(TopicPolicy(retention_time=YEAR)))
    client = core.client(topic_log=True)
    for body in (b"one", b"two"):
        assert client.publish("t", body) == OK
    client.publish("t", b"later", 1000)
    core.advance(SECOND)
    log_id = core.topic("t").log_facts()["log_id"]  # type: ignore[union-attr]
    kind, block = client.ask(f"LOG_FETCH t {log_id} 1 4 1000000 {ALL}\n".encode()) or (ERROR, b"")
    assert kind == RESPONSE
    core.close()
    folder.cleanup()
    return block.hex()


def main() -> None:
    last = newest()
    folder = FOLDER / str(int(last.name) + 1 if last else 1)
    folder.mkdir(parents=True)
    write(folder)
    print(folder)


if __name__ == "__main__":
    sys.exit(main())
