"""A hand-over in one process: another core takes over topics, clients and streams of a core."""

import json
import mmap
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

from nsqcy.broker.core import pack_counters, restore_counters
from nsqcy.ipc.core import (
    Mesh,
    Shared,
    Stream,
    StreamEnd,
    format_shared,
    map_size,
    ring_offset,
)
from nsqcy.server.core import BytesTransport, accept_stream, adopt_far_end
from support.left import Remains
from support.worker_core import Core, frames


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def hand_over(
    core: Core,
    path: Path,
    *,
    mesh: Mesh | None = None,
    ended: Callable[[], object] = lambda: None,
    **settings: Any,
) -> Core:
    """End a core as a process that hands over ends; return the core that continues.

    path: where its files are copied to; it does not exist yet
    mesh: the next core's mesh, if there are other workers
    ended: called between the two
    settings: those of the next core
    """
    manager = core.manager
    manager.stop_reading()
    core.settle()
    assert manager.is_at_rest
    clients = {each.session: each for each in core.clients if not each.closed}
    for client in clients.values():
        client.look()
    packed = []
    for session in manager.clients():
        state, unread, unsent = session.pack_whole()
        packed.append((clients.get(session), (through_json(state), unread, unsent)))
    streams = None if mesh is None else through_json(manager.mesh.pack())
    counters = through_json(pack_counters(core.shard))
    remains = Remains(core, path)
    end(core)
    ended()
    following = remains.next_core(
        taken_over=True, mesh=mesh, index=manager.index, **({"memfd": True} | settings)
    )
    remains.load(following, taken_over=True)
    restore_counters(following.shard, counters)
    if mesh is not None:
        following.manager.owners.update(manager.owners)
        mesh.unpack(streams)
    for owner, each in packed:
        if owner is None:
            adopt_far_end(following.manager, *each)
        else:
            owner.continue_on(following, each)
    if mesh is not None:
        mesh.close_unclaimed()
    remains.end(following)
    return following


def end(core: Core) -> None:
    """End a core whose clients continue elsewhere: nothing of it reaches other workers."""
    mesh = core.manager.mesh
    if mesh is not None:
        for peer in range(mesh.shared.workers):
            if peer != mesh.index:
                mesh.peer_down(peer)
    core.close()


class RawClient:
    """A client that sends and receives bytes as they are."""

    closed = False

    def __init__(self, core: Core) -> None:
        self.transport = BytesTransport(core.manager)
        self.session = self.transport.client
        self.received = b""
        core.clients.append(self)  # type: ignore[arg-type]

    def look(self) -> None:
        self.received += self.transport.sent()
        self.closed = bool(self.transport.closed)

    def continue_on(self, core: Core, packed: tuple[dict[str, Any], bytes, bytes]) -> None:
        room = self.transport.full
        self.transport = BytesTransport(core.manager)
        self.transport.full = room
        self.session = self.transport.client
        self.session.unpack_whole(*packed)
        core.clients.append(self)  # type: ignore[arg-type]

    def frames(self) -> list[tuple[int, bytes]]:
        """Return the frames received since the last call, which are complete."""
        self.look()
        whole, self.received = self.received, b""
        return list(frames(whole))


class Streams(Mesh):
    """The mesh of a core, whose worker never sleeps."""

    core: Core

    def on_open(self, stream: Stream, hello: bytes) -> StreamEnd:
        return accept_stream(self.core.manager, stream, hello)

    def wake(self, peer: int) -> int:
        return 0


class Workers:
    """The workers of one nsqd in one thread; each can be replaced by a hand-over."""

    def __init__(self, base: Path, count: int, **settings: Any) -> None:
        self.base = base
        self.number = 0
        self.settings = {name: each for name, each in settings.items() if name != "wall"}
        self.owners: dict[bytes, int] = {}
        self.shared: Shared | None = None
        if count > 1:
            self.memory = mmap.mmap(-1, map_size(count))
            format_shared(self.memory, count)
            self.shared = Shared(self.memory, count)
        self.cores: list[Core] = []
        for index in range(count):
            path = self.path()
            path.mkdir(parents=True)
            mesh = self.make_mesh(index)
            core = Core(path, mesh=mesh, index=index, memfd=True, **settings)
            self.cores.append(self.connect(core))
        for core in self.cores:
            for peer in range(count):
                if peer != core.manager.index:
                    core.manager.peer_up(peer, 0)

    def on_ended(self) -> None:
        """Called while a worker is being replaced, and has no process."""

    def path(self) -> Path:
        self.number += 1
        return self.base / str(self.number)

    def make_mesh(self, index: int) -> Streams | None:
        if self.shared is None:
            return None
        return Streams(self.shared, index, [-1] * self.shared.workers)

    def connect(self, core: Core) -> Core:
        if core.manager.mesh is not None:
            core.manager.mesh.core = core
        return core

    def place(self, topic: bytes, owner: int) -> None:
        self.owners[topic] = owner
        if self.shared is not None:
            for core in self.cores:
                core.manager.placed(topic, owner)

    def replace(self, index: int) -> None:
        """Replace a worker, which need not have finished the work of its clients."""
        old = self.cores[index]
        mesh = self.make_mesh(index)
        core = hand_over(old, self.path(), mesh=mesh, ended=self.on_ended, **self.settings)
        self.cores[index] = self.connect(core)

    def settle(self) -> None:
        """Run turns of all workers until nothing is left to do."""
        before = None
        while before != self.positions():
            before = self.positions()
            for core in self.cores:
                core.settle()

    def positions(self) -> list[bytes]:
        """Return the heads and tails of all rings."""
        count = len(self.cores)
        heads = [ring_offset(count, *pair) for pair in permutations(range(count), 2)]
        return [self.memory[at : at + 128] for at in heads]

    def close(self) -> None:
        for core in self.cores:
            core.manager.close_sessions()
        self.settle()
        for core in self.cores:
            core.close()
