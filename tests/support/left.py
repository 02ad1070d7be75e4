"""The death of a worker's core in one process: the next core gets copies of its memory and
files.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from nsqcy.storage.core import BlockPool, LeftMemory, MemoryRange, create_memory
from support.worker_core import Core


def copy_memory(fd: int) -> int:
    """Return a memfd with the same content. Only pages that exist are read."""
    copy = create_memory(os.fstat(fd).st_size)
    at = 0
    while True:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # there is no more data
            return copy
        end = os.lseek(fd, at, os.SEEK_HOLE)
        while at < end:
            at += os.pwrite(copy, os.pread(fd, min(1 << 20, end - at), at), at)


class Remains:
    """The memory and the files of a core that dies now.

    `topics`: the knowledge of the master, as name -> (paused, {channel: paused}).
    """

    def __init__(self, core: Core, path: Path) -> None:
        """path: where its files are copied to; it does not exist yet."""
        assert core.path is not None
        self.now, self.wall = core.now, core.wall
        self.records = copy_memory(core.pool.records.fileno())
        self.state = copy_memory(core.pool.state.fileno())
        self.path = shutil.copytree(core.path, path)
        self.topics = {}
        for key, topic in core.shard.topics.items():
            channels = {name: bool(each.paused) for name, each in topic.channels.items()}
            self.topics[key.decode()] = (bool(topic.paused), channels)

    def read(self) -> LeftMemory:
        left = LeftMemory(MemoryRange(fd=os.dup(self.state)))
        left.read()
        return left

    def next_core(
        self,
        *,
        budget: int = 1 << 40,
        memfd: bool = True,
        marks: Any = None,
        taken_over: bool = False,
        **settings: Any,
    ) -> Core:
        """Return the core of the next worker, which has no topics yet. `taken_over`: it continues
        the clients, too."""
        records = MemoryRange(fd=os.dup(self.records))
        pool = BlockPool(budget, records, MemoryRange(memfd=memfd))
        core = Core(self.path, pool=pool, **{"now": self.now, "wall": self.wall, **settings})
        core.shard.inherit(self.read(), marks, taken_over=taken_over)
        return core

    def load(self, core: Core, *, taken_over: bool = False) -> None:
        """Load all topics that still exist; those that cannot be read are loaded later. Ephemeral
        topics and channels exist if the next worker has taken over."""
        for name, (paused, channels) in self.topics.items():
            kept = {each: on for each, on in channels.items() if taken_over or _is_durable(each)}
            if taken_over or _is_durable(name):
                core.shard.load_or_wait(name.encode(), paused, kept)

    def end(self, core: Core) -> None:
        """All topics are loaded."""
        core.shard.end_inheritance()
        os.close(self.records)
        os.close(self.state)


def _is_durable(name: str) -> bool:
    return not name.endswith("#ephemeral")
