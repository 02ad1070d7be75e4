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
from nsqcy.nsqd.master.master_state import Program
from nsqcy.nsqd.master.worker_memory import Memfds, MemoryOfWorkers
from nsqcy.process import ancillary, spawn
from nsqcy.process.data_path_lock import DataPathLock

WORKER = "nsqcy.nsqd.worker.main"


class Born(NamedTuple):
    """A started worker process, and the master's ends of its two channels."""

    worker: int
    pid: int
    control: socket.socket
    handoff: socket.socket


class Common(NamedTuple):
    """Descriptors that all processes share, and the end of the pipe that only the master has."""

    memory: int
    wake: list[int]
    alive: int
    held: int

    @classmethod
    def create(cls, workers: int) -> "Common":
        memory = os.memfd_create("nsqd", os.MFD_CLOEXEC)
        os.ftruncate(memory, map_size(workers))
        with mmap.mmap(memory, 0) as whole:
            format_shared(whole, workers)
        # Non-blocking, because each worker reads its own eventfd on its hub.
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        wake = [os.eventfd(0, flags) for _ in range(workers)]
        return cls(memory, wake, *os.pipe2(os.O_CLOEXEC))

    def dump(self, keep: ancillary.Keep) -> list[Any]:
        memory, wake, alive, held = self
        return [keep(memory), [keep(fd) for fd in wake], keep(alive), keep(held)]


class Successor(NamedTuple):
    """A started process that will take over from a running worker, and the end of a socket pair
    that the worker gets, so that it can hand over."""

    born: Born
    succession: socket.socket


class Launcher:
    """Starts workers.

    Every worker receives `context` as JSON; changes to it apply to later workers. `engine` is a
    module and its factory function.
    """

    def __init__(
        self,
        workers: int,
        lock: DataPathLock,
        context: dict[str, Any],
        engine: str,
        log: Lines,
        common: Common | None = None,
    ) -> None:
        """common: from the master's previous version"""
        self.workers = workers
        self._lock = lock
        self.context = context
        self._engine = engine
        self.memory = MemoryOfWorkers(workers, Memfds(workers), log)
        self._common = Common.create(workers) if common is None else common
        self.shared = Shared(self._common.memory, workers)

    @property
    def shared_memory(self) -> int:
        """The descriptor of the memory for slots and rings."""
        return self._common.memory

    def dump(self, keep: ancillary.Keep) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {
            "workers": self.workers,
            "lock": self._lock.dump(keep),
            "context": self.context,
            "memory": self.memory.dump(keep),
            "common": self._common.dump(keep),
        }

    @classmethod
    def restore(
        cls, dumped: dict[str, Any], context: dict[str, Any], engine: str, log: Lines
    ) -> "Launcher":
        """Return the launcher of the workers of the previous version. context: boot data for later
        workers"""
        lock, common = DataPathLock.restore(dumped["lock"]), Common(*dumped["common"])
        launcher = cls(dumped["workers"], lock, context, engine, log, common)
        launcher.memory.restore(dumped["memory"])
        return launcher

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

    def launch(self, worker: int, program: Program | None = None) -> Born:
        """Start one worker as a new program. program: another version of nsqd. Raises OSError."""
        return self._start(worker, lambda boot_fd, fds: _execute(boot_fd, fds, program))

    def launch_successor(self, worker: int) -> Successor | None:
        """Start a process that waits until it takes over from a running worker; None if it would
        not find the worker's messages. Raises OSError."""
        memory = self.memory.begin_successor(worker)
        if memory is None:
            return None
        ours, its = ancillary.pair()
        try:
            born = self._start_with(worker, memory, _execute, its)
        except BaseException:
            ours.close()
            self.memory.not_succeeded(worker)
            raise
        finally:
            its.close()
        return Successor(born, ours)

    def _start(self, worker: int, start: Callable[[int, list[int]], int]) -> Born:
        """Start one worker process. Raises OSError."""
        memory = self.memory.begin(worker)
        try:
            return self._start_with(worker, memory, start)
        except BaseException:
            self.memory.not_started(worker)
            raise

    def _start_with(
        self,
        worker: int,
        memory: WorkerMemory | None,
        start: Callable[[int, list[int]], int],
        succession: socket.socket | None = None,
    ) -> Born:
        """Start one worker process. Its generation is its rings' generation."""
        control, its_control = ancillary.pair()
        handoff, its_handoff = ancillary.pair()
        fds = {
            "control": its_control.fileno(),
            "handoff": its_handoff.fileno(),
            "alive": self._common.alive,
            "lock": self._lock.fd,
            "memory": self._common.memory,
        }
        if succession is not None:
            fds["succession"] = succession.fileno()
        boot = {
            "formats": formats.numbers_in_use(),
            "worker": worker,
            "workers": self.workers,
            "generation": self.shared.view(worker).generation,
            "engine": self._engine,
            "fds": fds,
            "wake": self._common.wake,
            "context": self.context,
            "memory": None if memory is None else memory._asdict(),
        }
        inherited = [*fds.values(), *self._common.wake, *([] if memory is None else memory.fds())]
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


def _execute(boot_fd: int, fds: list[int], program: Program | None = None) -> int:
    """Run a worker as a new program."""
    if program is None:
        return spawn.spawn(spawn.python(WORKER, str(boot_fd)), fds)
    return spawn.spawn(program.run(WORKER, str(boot_fd)), fds, program.environ())
