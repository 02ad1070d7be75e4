"""The memory for messages of each worker, which outlives the worker.

Owns the descriptors of each worker's memfds, and which of them a start gets, and which of them a
death, the end of a restore and a clean exit close. Independent of processes, and of the contents of
the memory. `Memfds` makes the system calls.

Each worker has `records`, the blocks of records, and `state`, the structs that describe them. A
worker that dies leaves both: its replacement adopts `records`, reads the old state (`left`), and
gets a new `state`. When it has restored everything, `left` is closed. If it dies before, its own
state is dropped, and the next replacement reads the same `left`. `marks` is the page that shows
what is being read (nsqd/reading_marks.py).

A successor takes over from a worker that is up: it gets a new state (`next`), and the worker's
state is what it will read. If it takes over, these become `state` and `left`, as after a death.

    up                        records, state, marks
    up, with a successor      records, state, marks, next
    up, and restoring         records, state, marks, left
    down after a death        records, marks, left
    down after a clean exit   nothing
"""

import errno
import os
import resource
from typing import Any, Protocol

from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd import reading_marks
from nsqcy.nsqd.boot_memory import WorkerMemory
from nsqcy.nsqd.reading_marks import LeftOut, Mark
from nsqcy.process.ancillary import Keep
from nsqcy.storage.core import create_memory

NONE = -1
PER_WORKER = 4  # maximum number of descriptors for one worker
SHARE = 4  # the descriptors may use this fraction of the open files


class Calls(Protocol):
    """The system calls."""

    def create(self) -> int:
        """Return the descriptor of a new memfd for messages. Raises OSError."""

    def create_marks(self) -> int:
        """Return the descriptor of a new page for marks. Raises OSError."""

    def close(self, fd: int) -> None: ...

    def has_pages(self, fd: int) -> bool:
        """Return whether a memfd has ever been written to."""

    def mark(self, fd: int) -> Mark | None:
        """Return the mark on a page."""

    def clear_mark(self, fd: int) -> None:
        """Raises OSError."""


class Memfds:
    """`Calls` of the kernel."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def create(self) -> int:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            # a replacement needs addresses for three memfds
            raise OSError(errno.ENOMEM, "the address space is limited (ulimit -v)")
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and self._workers * PER_WORKER * SHARE > limit:
            raise OSError(errno.EMFILE, f"the limit of {limit} open files is too low")
        return create_memory()

    def create_marks(self) -> int:
        return reading_marks.create_page()

    def close(self, fd: int) -> None:
        os.close(fd)

    def has_pages(self, fd: int) -> bool:
        return os.fstat(fd).st_blocks > 0

    def mark(self, fd: int) -> Mark | None:
        return reading_marks.read(fd)

    def clear_mark(self, fd: int) -> None:
        reading_marks.ReadingMarks(fd).end()


class _Held:
    """The descriptors of one worker."""

    def __init__(self) -> None:
        self.records = self.state = self.left = self.marks = self.next = NONE
        self.left_out = LeftOut()
        self.is_kept = False

    def dump(self, keep: Keep) -> dict[str, Any]:
        fds = {name: getattr(self, name) for name in _NAMES}
        return {
            **{name: fd if fd == NONE else keep(fd) for name, fd in fds.items()},
            "left_out": self.left_out.parts,
            "is_kept": self.is_kept,
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        for name in _NAMES:
            setattr(self, name, dumped[name])
        self.left_out = LeftOut(Mark(*each) for each in dumped["left_out"])
        self.is_kept = dumped["is_kept"]


_NAMES = ("records", "state", "left", "marks", "next")


class MemoryOfWorkers:
    """The memory of all workers."""

    def __init__(self, workers: int, calls: Calls, log: Lines) -> None:
        self._held = [_Held() for _ in range(workers)]
        self._calls = calls
        self._log = log
        self._is_reported = False

    def dump(self, keep: Keep) -> dict[str, Any]:
        """Return the state for the master's next version."""
        workers = [held.dump(keep) for held in self._held]
        return {"workers": workers, "is_reported": self._is_reported}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        for held, each in zip(self._held, dumped["workers"], strict=True):
            held.restore(each)
        self._is_reported = dumped["is_reported"]

    def begin(self, worker: int) -> WorkerMemory | None:
        """Return what a starting worker gets; None if no memfd can be created. Raises OSError if
        that would lose what its predecessor has left: try again later."""
        held = self._held[worker]
        try:
            self._create(held)
        except OSError as error:
            if held.left != NONE:
                raise
            if not self._is_reported:
                self._is_reported = True
                events.memory_not_shared(self._log, error=error.strerror or str(error))
            return None
        parts = [(each.topic, each.block) for each in held.left_out.parts]
        return WorkerMemory(held.records, held.state, held.left, held.marks, parts)

    def _create(self, held: _Held) -> None:
        created: list[int] = []
        try:
            created.append(self._calls.create())
            if held.left == NONE:
                created.append(self._calls.create())
                created.append(self._calls.create_marks())
            else:
                self._calls.clear_mark(held.marks)
        except BaseException:
            for fd in created:
                self._calls.close(fd)
            raise
        held.state = created[0]
        if held.left == NONE:
            _, held.records, held.marks = created

    def not_started(self, worker: int) -> None:
        """Handle the failure to start a worker after `begin`."""
        held = self._held[worker]
        self._close(held, "state")
        if held.left == NONE:
            self._free(held)

    def begin_successor(self, worker: int) -> WorkerMemory | None:
        """Return what the successor of a running worker gets; None if it could not find the
        worker's messages there, because they are not in a memfd, or not restored yet. Raises
        OSError."""
        held = self._held[worker]
        if held.state == NONE or held.left != NONE:
            return None
        self._calls.clear_mark(held.marks)
        held.next = self._calls.create()
        return WorkerMemory(held.records, held.next, held.state, held.marks, [])

    def not_succeeded(self, worker: int) -> None:
        """Handle the end of a successor that has not taken over."""
        self._close(self._held[worker], "next")

    def succeeded(self, worker: int) -> None:
        """Handle a successor that has taken over: it restores what its predecessor has left."""
        held = self._held[worker]
        held.left, held.state, held.next = held.state, held.next, NONE

    def restored(self, worker: int) -> None:
        """Handle a worker's report that it has restored everything that its predecessor has
        left."""
        held = self._held[worker]
        if held.state != NONE:
            self._close(held, "left")
            self._forget(held)

    def finished(self, worker: int) -> None:
        """Handle a clean exit: everything is on disk."""
        self._free(self._held[worker])

    def exited(self, worker: int, *, crashed: bool) -> Mark | None:
        """Handle any other exit. If the worker crashed while it was reading, return the part that
        its replacement leaves out for this reason."""
        held = self._held[worker]
        if held.left == NONE:
            held.left, held.state = held.state, NONE
            return None
        self._close(held, "state")
        mark = self._calls.mark(held.marks) if crashed else None
        return None if mark is None else held.left_out.died_at(mark)

    def is_used(self, worker: int) -> bool:
        """Return whether a worker, or its predecessor, has stored anything in the memory."""
        held = self._held[worker]
        return any(self._has_pages(fd) for fd in (held.state, held.left))

    def is_left(self, worker: int) -> bool:
        """Return whether a dead worker has left anything that is not restored yet."""
        return self._has_pages(self._held[worker].left)

    def contents(self, worker: int) -> dict[str, int]:
        """Return the descriptors of what a dead worker has left, by name; empty if there is
        nothing, or if a file already has it."""
        held = self._held[worker]
        if held.left == NONE or held.is_kept:
            return {}
        return {"records": held.records, "state": held.left}

    def kept(self, worker: int) -> None:
        """Handle the success of storing `contents` in files."""
        self._held[worker].is_kept = True

    def _has_pages(self, fd: int) -> bool:
        return fd != NONE and self._calls.has_pages(fd)

    def _free(self, held: _Held) -> None:
        for name in _NAMES:
            self._close(held, name)
        self._forget(held)

    def _forget(self, held: _Held) -> None:
        held.left_out = LeftOut()
        held.is_kept = False

    def _close(self, held: _Held, name: str) -> None:
        fd = getattr(held, name)
        if fd != NONE:
            setattr(held, name, NONE)
            self._calls.close(fd)
