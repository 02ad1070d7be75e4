"""Two workers in this process, in one thread: one with the clients, which owns topic `h`, and the
owner of topic `t`."""

import mmap
from collections.abc import Callable

from nsqcy.ipc.core import Mesh, Shared, Stream, StreamEnd, format_shared, map_size
from nsqcy.protocol.core import Session
from nsqcy.server.core import accept_stream
from support.worker_core import Core

HOME, OWNER = 0, 1


class Streams(Mesh):
    core: Core

    def on_open(self, stream: Stream, hello: bytes) -> StreamEnd:
        return accept_stream(self.core.manager, stream, hello)

    def wake(self, peer: int) -> int:
        return 0


class Near(Core):
    """The worker with the clients, which runs in alternation with the owner."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, map_size(2))
        format_shared(memory, 2)
        self.shared = Shared(memory, 2)
        self.moved: list[Session] = []
        # Called in the middle of the owner's turn, when one of its own sessions migrates.
        self.during_a_turn: Callable[[], None] = lambda: None
        self.owner: Core | None = None
        meshes = [Streams(self.shared, index, [-1, -1]) for index in (HOME, OWNER)]
        super().__init__(None, mesh=meshes[HOME], index=HOME, migrate=self.take_note)
        self.owner = Core(
            None, mesh=meshes[OWNER], index=OWNER, migrate=lambda *_: self.during_a_turn()
        )
        for core, mesh in ((self, meshes[HOME]), (self.owner, meshes[OWNER])):
            mesh.core = core
            core.manager.placed(b"t", OWNER)
            core.manager.placed(b"h", HOME)
            core.manager.peer_up(OWNER - mesh.index, 0)

    def take_note(self, session: Session, owner: int) -> None:
        assert owner == OWNER
        self.moved.append(session)

    def settle(self) -> None:
        for _ in range(4):
            super().settle()
            if self.owner is not None:
                self.owner.now, self.owner.wall = self.now, self.wall
                self.owner.settle()

    def busy(self, permille: int) -> None:
        """Set the owner's load."""
        self.load(OWNER, permille, permille)

    def load(self, worker: int, busy: int, ran: int) -> None:
        self.shared.beat(worker, self.now, busy, ran, 0)

    def close(self) -> None:
        super().close()
        self.settle()
        self.owner.close()
