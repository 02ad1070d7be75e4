"""A worker's memory for messages, and what its dead predecessor has left there.

Owns the choice between the master's memfds and anonymous memory, and the marks of what is being
read. The core restores the topics (broker/memory_recovery).
"""

from nsqcy.broker.core import Shard
from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.nsqd.boot_memory import WorkerMemory
from nsqcy.nsqd.reading_marks import ReadingMarks
from nsqcy.storage.core import BlockPool, LeftMemory, MemoryRange


class Marks:
    """The part that is being read, and the parts that must not be read."""

    def __init__(self, page: ReadingMarks, leave_out: list[tuple[str, int]]) -> None:
        self._page = page
        self._leave_out = {(name.encode(), block) for name, block in leave_out}

    def begin(self, key: bytes, block: int) -> None:
        self._page.begin(key, block)

    def end(self) -> None:
        self._page.end()

    def leaves_out(self, key: bytes, block: int) -> bool:
        return (key, block) in self._leave_out


class LeftMemories:
    """The memory that the master has passed, if any."""

    def __init__(self, memory: WorkerMemory | None, log: Log) -> None:
        self._memory = memory
        self._log = log
        self._left: LeftMemory | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the next worker finds this worker's messages."""
        return self._memory is not None

    def make_pool(self, budget: int) -> BlockPool:
        """Return the worker's block pool. Raises OSError and MemoryError."""
        if self._memory is None:
            return BlockPool(budget)
        return BlockPool(
            budget,
            MemoryRange(fd=self._memory.records_fd),
            MemoryRange(fd=self._memory.state_fd),
        )

    def inherit(self, shard: Shard, *, taken_over: bool) -> None:
        """Let a shard restore its topics from the memory that is left. `taken_over`: the consumers
        will be there, too."""
        if self._memory is None or self._memory.left_fd < 0:
            return
        left = LeftMemory(MemoryRange(fd=self._memory.left_fd))
        left.read()
        if left.refusal is not None:
            events.memory_refused(self._log, reason=left.refusal)
        page = ReadingMarks(self._memory.marks_fd)
        marks = Marks(page, self._memory.leave_out)
        shard.inherit(left, marks, taken_over=taken_over)
        self._left = left

    def report(self) -> None:
        """Log how much of what was left could not be restored, once all topics are restored."""
        if self._left is not None and self._left.damaged:
            events.memory_damaged(self._log, parts=self._left.damaged)
        self._left = None
