"""The memory of a small worker that has died, with damage: what the next worker makes of it."""

import functools
import os
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nsqcy.config.policies import Policies
from nsqcy.storage.core import BlockPool, LeftMemory, MemoryRange, create_memory
from nsqcy.storage.io_faults import FaultyIoThread
from nsqcy.storage.state_probe import block_bytes, cells, sizes
from support.worker_core import RESPONSE, SECOND, Client, Core, mpub

SIZE = 32 << 20  # of both memories
UNIT, SLAB_HEADER, PAGE = 65536, 64, 4096
OWNERS, NOTES, HEAD = 7, (8, 9, 10), 11  # enum UnitKind
NOTE_CELLS = (256, 2048, 16368)
HEAD_BYTES = 48
OWNER, NOTE_HEADER = sizes()
NAME_AT, POSITIONS_AT, POSITION = 56, 128, 56
"""Offsets in an Owner, and the size of a Position."""
MEM_QUEUE_SIZE = 10
HOUR = 3600 * SECOND
ALL = "all"


class Write(NamedTuple):
    memory: str  # "state" or "records"
    offset: int
    data: bytes


class Part(NamedTuple):
    memory: str
    offset: int
    size: int
    topic: str


class Image:
    """The content of a memfd."""

    def __init__(self, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        self.pages: dict[int, bytes] = {}
        at = 0
        while True:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # there is no more data
                return
            end = os.lseek(fd, at, os.SEEK_HOLE)
            for page in range(at, end, PAGE):
                content = os.pread(fd, PAGE, page)
                if content.strip(b"\0"):
                    self.pages[page] = content
            at = end

    def read(self, offset: int, size: int) -> bytes:
        first = offset - offset % PAGE
        found = b"".join(
            self.pages.get(at, bytes(PAGE)) for at in range(first, offset + size, PAGE)
        )
        return found[offset - first :][:size]

    def copy(self) -> int:
        fd = create_memory(self.size)
        for at, content in self.runs:
            os.pwrite(fd, content, at)
        return fd

    @functools.cached_property
    def runs(self) -> list[tuple[int, bytes]]:
        """The pages; adjacent ones are joined."""
        found: list[tuple[int, list[bytes]]] = []
        for at, content in self.pages.items():
            if found and found[-1][0] + PAGE * len(found[-1][1]) == at:
                found[-1][1].append(content)
            else:
                found.append((at, [content]))
        return [(at, b"".join(contents)) for at, contents in found]


def memory() -> MemoryRange:
    return MemoryRange(SIZE, memfd=True)


def opened(fd: int) -> MemoryRange:
    found = MemoryRange(fd=fd)
    found.open()
    return found


def policies() -> Policies:
    found = Policies(sections=[("keyed", {"key": "json:/k"})])
    found.set("keyed/x", {"order": "key"})
    return found


class Scene:
    """A worker with some messages in each state, and what it leaves."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="left", dir="/dev/shm"))
        (self.folder / "data").mkdir()
        pool = BlockPool(1 << 40, memory(), memory())
        core = Core(self.folder / "data", pool=pool, mem_queue_size=MEM_QUEUE_SIZE,
                    policies=policies())  # fmt: skip
        self.expected: dict[str, dict[str, list[bytes]]] = {}
        self.live = core
        self.clients: list[Client] = []
        self._fill("spilled", ["x", "y"], [b"spilled %d" % n for n in range(25)])
        self._fill("memory", ["x"], [b"m%d" % n for n in range(7)] + [b"large" * 60_000])
        keys = [b'{"k":"%d","n":%d}' % (n % 3, n) for n in range(9)]
        self._fill("keyed", ["x"], keys)
        self._fill("paused", ["x"], [b"p%d" % n for n in range(5)])
        topic = core.topic("paused")
        assert topic is not None
        topic.pause(True)
        topic.pause_channel("x", True)
        core.settle()
        self._publish("paused", [b"backlog 1", b"backlog 2"])
        self.paused = {"paused"}
        core.settle()
        self.now, self.wall = core.now, core.wall
        self.path = shutil.copytree(core.path or "", self.folder / "left")
        self.images = {
            "state": Image(pool.state.fileno()),
            "records": Image(pool.records.fileno()),
        }
        core.close()
        self._find_parts()

    def _publish(self, topic: str, bodies: list[bytes]) -> None:
        assert self.live.client().ask(mpub(topic, bodies)) == (RESPONSE, b"OK")
        for found in self.expected[topic].values():
            found += bodies

    def _fill(self, name: str, channels: list[str], bodies: list[bytes]) -> None:
        """Publish messages; let one consumer finish, requeue, defer and hold some."""
        core = self.live
        self.expected[name] = {channel: [] for channel in channels}
        for channel in channels:
            core.create(name).channel(channel)
        self._publish(name, bodies)
        late = b'{"k":"1","n":100}'
        assert core.client().publish(name, late, 50_000) == (RESPONSE, b"OK")
        for found in self.expected[name].values():
            found.append(late)
        client = core.client().subscribe(name, channels[0], 6)
        self.clients.append(client)
        core.settle()
        messages = client.messages()
        client.ready(0)
        for number, message in enumerate(messages):
            if number == 1:
                client.finish(message.id)
                self.expected[name][channels[0]].remove(message.body)
            elif number == 2:
                client.requeue(message.id)
            elif number == 3:
                client.requeue(message.id, 40_000)
        core.settle()
        assert len(messages) >= 3

    def bytes_of(self, memory: str, offset: int, size: int) -> bytes:
        return self.images[memory].read(offset, size)

    # -- which topic a byte belongs to --

    def _find_parts(self) -> None:
        fds = {name: image.copy() for name, image in self.images.items()}
        state, records = opened(fds["state"]), opened(fds["records"])
        self.pieces = {
            "state": list(state.pieces()),
            "records": list(records.pieces()),
        }
        left = LeftMemory(state)
        left.read()
        assert left.damaged == 0
        assert left.topics.keys() == {name.encode() for name in self.expected}
        (base,) = struct.unpack("<Q", os.pread(state.fileno(), 8, self.slab(HEAD) + 32))
        self.parts = [Part("state", self.slab(HEAD), HEAD_BYTES, ALL)]
        self.owners = {owner.number: owner for owner in self._owners(state.fileno())}
        self.notes: list[Part] = []
        for owner in self.owners.values():
            name = self.topic_of(owner)
            self.parts.append(Part("state", owner.offset, OWNER, name))
            for pointer in owner.notes:
                if pointer:
                    at = pointer - base
                    kind = os.pread(state.fileno(), 1, at // UNIT)[0]
                    size = NOTE_CELLS[kind - NOTES[0]]
                    self.notes.append(Part("state", at, size, name))
        self.parts += self.notes
        self.cells = cells(left)
        self.parts += cell_parts(left)
        self.parts += block_parts(left)
        self.used = [part for part in self.parts if part.topic != ALL]

    def slab(self, wanted: int) -> int:
        return next(at for kind, at, _ in self.pieces["state"] if kind == wanted)

    def _owners(self, fd: int) -> Iterator["_Owner"]:
        for kind, at, _ in self.pieces["state"]:
            if kind == OWNERS:
                slab = os.pread(fd, UNIT, at)
                for cell in range(UNIT - OWNER, SLAB_HEADER - 1, -OWNER):
                    owner = _Owner.read(slab, at, cell)
                    if owner.number:
                        yield owner

    def topic_of(self, owner: "_Owner") -> str:
        of = self.owners.get(owner.topic) if owner.topic else owner
        return "" if of is None else of.name

    # -- the next worker --

    def touched(self, writes: list[Write], left: LeftMemory, fd: int) -> set[str]:
        """Return the topics to which changed bytes belong now, or belonged before."""
        if left.refusal is not None:
            return set(self.expected)
        spans: list[tuple[str, int, int]] = []
        for write in writes:
            spans.append((write.memory, write.offset, len(write.data)))
            if write.offset < SIZE // UNIT:
                spans += self._unit_spans(write)
        parts = self.parts + cell_parts(left) + block_parts(left)
        found = {
            part.topic
            for part in parts
            for memory, at, size in spans
            if memory == part.memory and at < part.offset + part.size and part.offset < at + size
        }
        for owner in self._owners(fd):
            if any(at < owner.offset + OWNER and owner.offset < at + size
                   for memory, at, size in spans if memory == "state"):  # fmt: skip
                of = [self.owners.get(owner.number), self.owners.get(owner.topic)]
                found |= {owner.name, *(self.topic_of(each) for each in of if each is not None)}
        bytes_of = [part for part in parts if part.memory == "records"]
        for one in bytes_of:
            for other in bytes_of:
                if one.topic != other.topic and one.offset < other.offset + other.size \
                        and other.offset < one.offset + one.size:  # fmt: skip
                    found |= {one.topic, other.topic}
        return set(self.expected) if ALL in found else found

    def _unit_spans(self, write: Write) -> Iterator[tuple[str, int, int]]:
        """Yield the pieces whose entries in the table may have another meaning."""
        for unit in range(write.offset, write.offset + len(write.data)):
            yield write.memory, unit * UNIT, UNIT
            for _, at, units in self.pieces[write.memory]:
                if at and at // UNIT <= unit <= at // UNIT + units:
                    yield write.memory, at, units * UNIT

    def survive(self, writes: Iterable[Write] = ()) -> "Outcome":
        """Let the next worker find the memory with some bytes changed; consume all messages."""
        fds = {name: image.copy() for name, image in self.images.items()}
        done = []
        for write in writes:
            data = write.data[: SIZE - write.offset]
            before = os.pread(fds[write.memory], len(data), write.offset)
            os.pwrite(fds[write.memory], data, write.offset)
            if before != data:
                done.append(write._replace(data=data))
        path = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            shutil.copytree(self.path, path, dirs_exist_ok=True)
            return self._survive(path, fds, done)
        finally:
            shutil.rmtree(path)

    def _survive(self, path: Path, fds: dict[str, int], done: list[Write]) -> "Outcome":
        left = LeftMemory(MemoryRange(fd=os.dup(fds["state"])))
        left.read()
        touched = self.touched(done, left, fds["state"]) if done else set()
        pool = BlockPool(1 << 40, MemoryRange(fd=fds["records"]), memory())
        core = Core(
            path, pool=pool, now=self.now, wall=self.wall, mem_queue_size=MEM_QUEUE_SIZE,
            policies=policies(), io=FaultyIoThread(stepped=True),
        )  # fmt: skip
        core.shard.inherit(left)
        found = {}
        for name, channels in self.expected.items():
            paused = name in self.paused
            core.shard.load_topic(name.encode(), paused, dict.fromkeys(channels, paused))
        core.shard.end_inheritance()
        os.close(fds["state"])
        core.settle()
        for name, channels in self.expected.items():
            topic: Any = core.topic(name)
            topic.pause(False)
            found[name] = {channel: drained(core, name, channel) for channel in channels}
        core.close()
        return Outcome(found, touched, left.damaged, self.lost(found))

    def lost(self, found: dict[str, dict[str, list[bytes]]]) -> dict[str, int]:
        """Return the number of lost messages by topic."""
        return {
            name: sum(
                (Counter(bodies) - Counter(found[name][channel])).total()
                for channel, bodies in channels.items()
            )
            for name, channels in self.expected.items()
        }

    def check(self, outcome: "Outcome") -> None:
        """Check that only topics with damaged parts have changed."""
        for name, channels in self.expected.items():
            if name not in outcome.touched:
                for channel, bodies in channels.items():
                    assert sorted(outcome.found[name][channel]) == sorted(bodies), (name, channel)


class _Owner(NamedTuple):
    offset: int
    number: int
    topic: int
    name: str
    notes: tuple[int, ...]

    @classmethod
    def read(cls, slab: bytes, at: int, cell: int) -> "_Owner":
        number, topic, _, length = struct.unpack_from("<4I", slab, cell + 8)
        name = slab[cell + NAME_AT :][: min(length, 72)].decode("latin")
        notes: list[int] = []
        for position in (0, 1):
            first = cell + POSITIONS_AT + position * POSITION
            notes += struct.unpack_from("<2Q", slab, first + 24)
        return cls(at + cell, number, topic, name, tuple(notes))


class Outcome(NamedTuple):
    found: dict[str, dict[str, list[bytes]]]  # bodies by topic and channel
    touched: set[str]
    damaged: int
    lost: dict[str, int]


def cell_parts(left: LeftMemory) -> list[Part]:
    return [Part("state", at, size, topic.decode()) for topic, _, at, size in cells(left)]


def block_parts(left: LeftMemory) -> list[Part]:
    return [Part("records", at, size, topic.decode()) for topic, at, size in block_bytes(left)]


def drained(core: Core, topic: str, channel: str) -> list[bytes]:
    """Finish all messages of a channel; return their bodies."""
    found: Any = core.topic(topic)
    found.pause_channel(channel, False)
    client = core.client(msg_timeout=3000).subscribe(topic, channel, 2500)
    bodies = []
    for _ in range(20):
        core.advance(HOUR)
        messages = client.messages()
        for message in messages:
            bodies.append(message.body)
            client.finish(message.id)
        if not messages:
            break
    client.transport.end()
    core.settle()
    return bodies


@functools.cache
def scene() -> Scene:
    return Scene()
