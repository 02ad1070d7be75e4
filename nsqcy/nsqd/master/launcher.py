"""Starts worker processes: creates the descriptors that each worker inherits, and the ends that the
master keeps.

Owns everything the processes share: the memory for slots and rings, one wake-up eventfd per worker,
the memory for messages that outlives each worker, and the pipe whose end of file signals to the
workers that the master has exited. Needs no hub: the first workers are forked before the master has
one.
"""

import gc
import mmap
import os
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from nsqcy import formats
from nsqcy.ipc.core import Shared, format_shared, map_size
from nsqcy.logging.types import Lines
from nsqcy.nsqd.boot_memory import WorkerMemory
from nsqcy.nsqd.master.worker_memory import Memfds, MemoryOfWorkers
from nsqcy.process import ancillary, spawn

WORKER = "nsqcy.nsqd.worker.main"


class Born(NamedTuple):
    """A started worker process, and the master's ends of its two channels."""

    worker: int
    pid: int
    control: socket.socket
    handoff: socket.socket


class Launcher:
    """Starts workers.

    Every worker receives `context` as JSON; changes to it apply to later workers. `engine` is a
    module and its factory function.
    """

    def __init__(
        self,
        workers: int,
        lock_fd: int,
        context: dict[str, Any],
        engine: str,
        log: Lines,
    ) -> None:
        self.workers = workers
        self._lock_fd = lock_fd
        self.context = context
        self._engine = engine
        self.memory = MemoryOfWorkers(workers, Memfds(workers), log)
        self._shared_memory = os.memfd_create("nsqd", os.MFD_CLOEXEC)
        os.ftruncate(self._shared_memory, map_size(workers))
        with mmap.mmap(self._shared_memory, 0) as whole:
            format_shared(whole, workers)
        self.shared = Shared(self._shared_memory, workers)
        # Non-blocking, because each worker reads its own eventfd on its hub.
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self._wake = [os.eventfd(0, flags) for _ in range(workers)]
        self._alive, self._held = os.pipe2(os.O_CLOEXEC)

    def fork(self) -> list[Born]:
        """Fork all workers, which share the modules imported here. No hub may exist yet."""
        run = import_module(WORKER).main
        import_module(self._engine.partition(":")[0])
        # prevents garbage collections in the workers from writing to the shared objects
        gc.freeze()
        return [
            self._start(
                worker,
                lambda boot_fd, fds: spawn.fork(lambda: run([WORKER, str(boot_fd)]), fds),
            )
            for worker in range(self.workers)
        ]

    def launch(self, worker: int) -> Born:
        """Start one worker as a new program."""
        return self._start(
            worker,
            lambda boot_fd, fds: spawn.spawn(spawn.python(WORKER, str(boot_fd)), fds),
        )

    def _start(self, worker: int, start: Callable[[int, list[int]], int]) -> Born:
        """Start one worker process. Raises OSError."""
        memory = self.memory.begin(worker)
        try:
            return self._start_with(worker, memory, start)
        except BaseException:
            self.memory.not_started(worker)
            raise

    def _start_with(
        self, worker: int, memory: WorkerMemory | None, start: Callable[[int, list[int]], int]
    ) -> Born:
        """Start one worker process. Its generation is its rings' generation."""
        control, its_control = ancillary.pair()
        handoff, its_handoff = ancillary.pair()
        fds = {
            "control": its_control.fileno(),
            "handoff": its_handoff.fileno(),
            "alive": self._alive,
            "lock": self._lock_fd,
            "memory": self._shared_memory,
        }
        boot = {
            "formats": formats.numbers_in_use(),
            "worker": worker,
            "workers": self.workers,
            "generation": self.shared.view(worker).generation,
            "engine": self._engine,
            "fds": fds,
            "wake": self._wake,
            "context": self.context,
            "memory": None if memory is None else memory._asdict(),
        }
        inherited = [*fds.values(), *self._wake, *([] if memory is None else memory.fds())]
        boot_fd = spawn.pack(boot)
        try:
            pid = start(boot_fd, [*inherited, boot_fd])
        except BaseException:
            control.close()
            handoff.close()
            raise
        finally:
            os.close(boot_fd)
            its_control.close()
            its_handoff.close()
        return Born(worker, pid, control, handoff)
