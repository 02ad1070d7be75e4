"""Starts worker processes: the descriptors that each worker inherits, and the ends that the master
keeps.

Owns everything the processes share: the memory of slots and rings, one wake-up eventfd for each
worker, and the pipe whose end of file tells the workers that the master is gone. Imports nothing
heavy, so that workers start, and import their modules, before the master has a hub.
"""

import mmap
import os
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqcy.process import ancillary, spawn

if TYPE_CHECKING:  # it imports gevent, which is too early for this module
    from nsqcy.process.heartbeat import Slots

WORKER = "nsqcy.nsqd.worker.main"
RINGS = "nsqcy.ipc.ring"


class Born(NamedTuple):
    """A started worker process, and the master's ends of its two channels."""

    worker: int
    pid: int
    control: socket.socket
    handoff: socket.socket


class Launcher:
    """Starts workers.

    Every worker receives `context` as JSON; changes to it apply to later workers. `rings` names a
    module, and `engine` a module and its factory function.
    """

    def __init__(
        self,
        workers: int,
        lock_fd: int,
        context: dict[str, Any],
        engine: str,
        rings: str = RINGS,
    ) -> None:
        self.workers = workers
        self._lock_fd = lock_fd
        self.context = context
        self._engine = engine
        self._rings = rings
        module = import_module(rings)
        self._memory = os.memfd_create("nsqd", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, module.map_size(workers))
        with mmap.mmap(self._memory, 0) as whole:
            module.format(whole, workers)
        self.shared: Slots = module.Shared(self._memory, workers)
        # Non-blocking, because every worker reads its own eventfd on its hub.
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self._wake = [os.eventfd(0, flags) for _ in range(workers)]
        self._alive, self._held = os.pipe2(os.O_CLOEXEC)

    def launch(self, worker: int) -> Born:
        """Start one worker process. Its generation is that of its rings."""
        control, its_control = ancillary.pair()
        handoff, its_handoff = ancillary.pair()
        fds = {
            "control": its_control.fileno(),
            "handoff": its_handoff.fileno(),
            "alive": self._alive,
            "lock": self._lock_fd,
            "memory": self._memory,
        }
        boot = {
            "worker": worker,
            "workers": self.workers,
            "generation": self.shared.view(worker).generation,
            "engine": self._engine,
            "rings": self._rings,
            "fds": fds,
            "wake": self._wake,
            "context": self.context,
        }
        boot_fd = spawn.pack(boot)
        try:
            inherited = [*fds.values(), *self._wake, boot_fd]
            pid = spawn.spawn(spawn.python(WORKER, str(boot_fd)), inherited)
        except BaseException:
            control.close()
            handoff.close()
            raise
        finally:
            os.close(boot_fd)
            its_control.close()
            its_handoff.close()
        return Born(worker, pid, control, handoff)
