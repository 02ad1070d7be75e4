"""The core of one worker in this process: a fake clock, no sockets, real files."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loadtest.worker_core import make_core, options
from nsqcy.base.core import Percentiles
from nsqcy.broker.core import Topic
from nsqcy.channels.core import Events, SchedulerState
from nsqcy.config.policies import Policies
from nsqcy.ipc.core import Mesh
from nsqcy.nsqd.worker.negotiate import negotiate
from nsqcy.protocol.core import Session
from nsqcy.server.core import BytesTransport, Publisher
from nsqcy.storage.core import BlockPool, MemoryRange
from nsqcy.storage.io_faults import FaultyIoThread
from support.memory_checker import check_discarded, check_memory

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MOMENT = 20_000
"""Nanoseconds. The deferred messages of a turn, which are one nanosecond apart, span less time."""
EPOCH = 1_700_000_000 * SECOND
RESPONSE, ERROR, MESSAGE = 0, 1, 2
MAX_TURNS = 2000
MEMFD = "NSQCY_MEMFD" in os.environ
"""Whether the memory of all cores is a memfd: NSQCY_MEMFD=1 runs their tests with one."""


class Log:
    """Records the lines that the daemon would log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, **_: object) -> None:
        self.lines.append(line)

    debug = warn = error = fatal = info


def frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Parse the frames of a stream that ends with a complete frame."""
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">ii", data, at)
        assert size >= 4 and len(data) - at - 4 >= size, "an incomplete frame"
        yield kind, data[at + 8 : at + 4 + size]
        at += 4 + size


class Delivery:
    """A message as a client receives it."""

    def __init__(self, data: bytes) -> None:
        self.timestamp, self.attempts, self.id = struct.unpack_from(">qH16s", data)
        self.body = data[26:]

    def __repr__(self) -> str:
        return f"<{self.id.decode()} attempt {self.attempts}: {self.body[:20]!r}>"


class Client:
    """A connection. Tests see sent data immediately, whether the client reads it or not."""

    def __init__(self, core: "Core", number: int = 1, **identity: Any) -> None:
        self.transport = BytesTransport(core.manager, f"127.0.0.1:{number}")
        self.session = self.transport.client
        self.core = core
        self.number = number
        self.known = b""  # in its output, and already parsed
        self.heard: list[tuple[int, bytes]] = []
        core.clients.append(self)
        wanted = {"heartbeat_interval": 10**9, **identity}
        text = json.dumps(wanted).encode()
        size = struct.pack(">i", len(text))
        assert self.ask(b"  V2IDENTIFY\n", size, text) == (RESPONSE, b"OK")

    @property
    def closed(self) -> bool:
        return bool(self.transport.closed)

    def send(self, *parts: bytes) -> None:
        self.transport.feed(b"".join(parts))

    def look(self) -> None:
        """Split received bytes into frames; earlier output never changes."""
        fresh = self.transport.sent()
        whole = fresh + self.transport.unsent()
        if self.closed and len(whole) < len(self.known):
            assert self.known.startswith(whole)
            return
        assert whole.startswith(self.known), "the output has changed"
        for frame in frames(whole[len(self.known) :]):
            if frame != (RESPONSE, b"_heartbeat_"):
                self.heard.append(frame)
        self.known = whole[len(fresh) :]

    def answer(self) -> tuple[int, bytes] | None:
        """Return the first frame that is not a message; None if there is none yet."""
        self.look()
        for i, (kind, data) in enumerate(self.heard):
            if kind != MESSAGE:
                del self.heard[i]
                return kind, data
        return None

    def ask(self, *parts: bytes) -> tuple[int, bytes] | None:
        """Send a command that is answered."""
        self.send(*parts)
        return self.answer() or (self.core.settle() or self.answer())

    def continue_on(self, core: "Core", packed: tuple[dict[str, Any], bytes, bytes]) -> None:
        """Continue on the core that takes over. The output has been read with look()."""
        room = self.transport.full
        self.transport = BytesTransport(core.manager, f"127.0.0.1:{self.number}")
        self.session = self.transport.client
        self.session.unpack_whole(*packed)
        self.transport.full = room
        self.core = core
        core.clients.append(self)

    def messages(self) -> list[Delivery]:
        """Return the messages received since the last call."""
        self.look()
        found = [Delivery(data) for kind, data in self.heard if kind == MESSAGE]
        self.heard = [frame for frame in self.heard if frame[0] != MESSAGE]
        return found

    def publish(self, topic: str, body: bytes, delay: int = 0) -> tuple[int, bytes] | None:
        """delay: ms"""
        size = struct.pack(">i", len(body))
        if delay:
            return self.ask(f"DPUB {topic} {delay}\n".encode(), size, body)
        return self.ask(f"PUB {topic}\n".encode(), size, body)

    def subscribe(self, topic: str, channel: str, ready: int = 0) -> "Client":
        assert self.ask(f"SUB {topic} {channel}\n".encode()) == (RESPONSE, b"OK")
        if ready:
            self.ready(ready)
        return self

    def ready(self, count: int) -> None:
        self.send(b"RDY %d\n" % count)

    def finish(self, id: bytes) -> None:
        self.send(b"FIN ", id, b"\n")

    def requeue(self, id: bytes, delay: int = 0) -> None:
        """delay: ms"""
        self.send(b"REQ ", id, b" %d\n" % delay)

    def touch(self, id: bytes) -> None:
        self.send(b"TOUCH ", id, b"\n")


def mpub(topic: str, bodies: list[bytes]) -> bytes:
    """Return an MPUB command."""
    parts = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    whole = struct.pack(">i", len(bodies)) + parts
    return f"MPUB {topic}\n".encode() + struct.pack(">i", len(whole)) + whole


def log_pub(
    topic: str,
    chunk: int,
    bodies: list[bytes],
    *,
    producer: str = "p",
    epoch: int = 1,
    part: int = 0,
) -> bytes:
    """Return a LOG_PUB command."""
    _, body = mpub(topic, bodies).split(b"\n", 1)
    return f"LOG_PUB {topic} {producer} {epoch} {part} {chunk}\n".encode() + body


class Core:
    """A worker without its process."""

    def __init__(
        self,
        path: Path | None,
        *,
        mem_queue_size: int = 10000,
        budget: int = 1 << 40,
        now: int = 1000 * SECOND,
        wall: int = EPOCH,
        max_msg_timeout: int = 900 * SECOND,
        log_options: dict[str, int] | None = None,
        policies: Policies | None = None,
        max_topics: int = 0,
        percentiles: Percentiles | None = None,
        events: Events | None = None,
        on_event: Callable[[str, str, str | None], None] | None = None,
        auth: Any = None,
        hold_new: int = 0,
        announce_new: bool = False,
        snapshot_budget: int = 4096,
        io: FaultyIoThread | None = None,
        max_msg_size: int = 1 << 20,
        max_body_size: int = 5 << 20,
        max_input_bytes: int = 256 << 20,
        max_defer_timeout: int = 0,
        mesh: Mesh | None = None,
        index: int = 0,
        pool: BlockPool | None = None,
        memfd: bool = MEMFD,
        tls_cert: str = "",
        migrate: Callable[[Session, int], None] | None = None,
        key_index_bytes: int = 256 << 20,
    ) -> None:
        """`pool`: the empty block pool of an earlier core."""
        self.path = path
        self.now, self.wall = now, wall
        self.clients: list[Client] = []
        self.pool = pool or BlockPool(budget, MemoryRange(memfd=memfd), MemoryRange(memfd=memfd))
        scheduler = SchedulerState(
            self.pool,
            mem_queue_size=mem_queue_size,
            max_msg_timeout=max_msg_timeout,
            percentiles=percentiles,
            events=events,
            key_index_bytes=key_index_bytes,
        )
        scheduler.now, scheduler.wall = now, wall
        self.scheduler = scheduler
        self.log = Log()
        self.io = io or (FaultyIoThread() if path is not None else None)
        self.manager = make_core(
            scheduler,
            options(
                max_msg_timeout=max_msg_timeout,
                max_msg_size=max_msg_size,
                max_body_size=max_body_size,
                max_input_bytes=max_input_bytes,
                max_defer_timeout=max_defer_timeout,
                max_topics=max_topics,
                tls_cert=tls_cert,
            ),
            mesh=mesh,
            index=index,
            negotiate=negotiate,
            auth=auth,
            migrate=migrate,
            log=self.log,
            io=self.io,
            data_path=None if path is None else str(path),
            log_options=log_options
            or {
                "max_bytes_per_file": 100 << 20,
                "sync_every": 2500,
                "sync_timeout": 2 * SECOND,
            },
            policies=policies,
            has_room=(lambda: len(self.shard.topics) < max_topics) if max_topics else None,
            on_event=on_event,
        )
        self.shard = self.manager.shard
        self.shard.hold_new = hold_new
        self.shard.announce_new = announce_new
        self.shard.host.snapshot_budget = snapshot_budget
        scheduler.publish_once = Publisher(self.manager).publish_once

    def settle(self) -> None:
        """Run turns until nothing is left to do at this moment."""
        for _ in range(MAX_TURNS):
            due = self.manager.run_turn(self.now, self.wall)
            check_discarded(self.shard)
            if self.io is not None and self.io.outstanding:
                self.io.drain_now()
            elif due > self.now:
                self.due = due
                check_memory(self.shard)
                return
        raise AssertionError("the turns do not end")

    def advance(self, ns: int) -> None:
        self.now += ns
        self.wall += ns
        self.scheduler.now, self.scheduler.wall = self.now, self.wall
        self.settle()

    def topic(self, name: str) -> Topic | None:
        return self.shard.topic(name.encode())

    def create(self, name: str) -> Topic:
        return self.shard.topic(name.encode(), create=True)

    def client(self, **identity: Any) -> Client:
        return Client(self, len(self.clients) + 1, **identity)

    def counters(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        found = self.topic(topic)
        assert found is not None
        if channel is None:
            return found.counters()
        return found.channels[channel].counters()

    def live(self) -> dict[str, int]:
        """Return the resources in use; all zero when every topic is gone."""
        found = {"blocks": self.pool.blocks, "entries": self.pool.entries}
        found["deferred"] = self.pool.deferred
        found["resident"] = self.pool.resident_bytes
        found["index"] = self.scheduler.key_room.used
        if self.io is not None:
            found["outstanding"] = self.io.outstanding
        return found

    def load_all(self) -> None:
        """Load every topic on disk; there are no metadata."""
        assert self.path is not None
        for folder in sorted(self.path.glob("*.topic")):
            self.shard.load_topic(folder.name.removesuffix(".topic").encode(), False, {})
        self.settle()

    def copied(self) -> Path:
        """Copy the current content of the disk to a path next to it."""
        assert self.path is not None
        return shutil.copytree(self.path, self.path.with_name(f"{self.path.name}-copy"))

    def close(self) -> None:
        """Delete everything and check that nothing is left behind."""
        self.manager.close_sessions()
        for key in list(self.shard.topics):
            self.shard.delete_topic(key)
        self.settle()
        self.end()

    def save(self) -> None:
        """A clean exit."""
        self.manager.close_sessions()
        self.shard.save()
        self.end()

    def end(self) -> None:
        if self.io is not None:
            self.io.drain_now()
        assert not any(self.live().values()), self.live()
        if self.io is not None:
            self.io.close()
            self.io.clear_faults()

    def files(self) -> list[str]:
        assert self.path is not None
        return sorted(os.listdir(self.path))
