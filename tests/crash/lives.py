"""A core that goes through several lives on a recorded disk; each ends with a kill or a power
loss."""

import shutil
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from nsqcy.config.policies import Policies
from nsqcy.storage.io_faults import FaultyIoThread
from support.recorded_disk import RecordedDisk
from support.worker_core import SECOND, Core

POWER = 0.7  # fraction of ends that are power losses


class Lives:
    """`core` and `disk` belong to the current life. The I/O thread's operations run one by one, or
    in `core.settle()`. Call `listen` to process the effects of operations before checking
    anything."""

    policies: Policies
    file_bytes: int
    options: ClassVar[dict[str, Any]] = {}  # more of a core's options

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.chance = Random(number)
        self.lives = 0
        self.now = 1000 * SECOND
        folder = path / "0"
        folder.mkdir(parents=True)
        self.boot(folder)

    def boot(self, folder: Path) -> None:
        self.disk = RecordedDisk(folder)
        io = FaultyIoThread(stepped=True)
        io.record()
        self.core = Core(
            folder,
            io=io,
            policies=self.policies,
            now=self.now,
            log_options={
                "max_bytes_per_file": self.file_bytes,
                "sync_every": 0,
                "sync_timeout": 2 * SECOND,
            },
            **self.options,
        )
        for each in sorted(folder.glob("*.topic")):
            self.core.shard.load_topic(each.name.removesuffix(".topic").encode(), False, {})

    def step(self) -> None:
        """Run a few operations of the I/O thread, and process their effects."""
        for _ in range(self.chance.randint(1, 6)):
            self.core.manager.run_turn(self.core.now, self.core.wall)
            self.core.io.step_now()
        self.listen()

    def settle(self) -> None:
        self.core.settle()
        self.listen()

    def listen(self) -> None:
        self.disk.take(self.core.io.recorded())

    def crash(self) -> None:
        """End this life and start the next one."""
        self.listen()
        self.lives += 1
        folder = self.path / str(self.lives)
        if self.chance.random() < POWER:
            self.disk.lose_power(len(self.disk.calls), folder, self.chance)
        else:
            self.disk.kill(len(self.disk.calls), folder, self.chance)
        self.now = self.core.now
        self.core.io.clear_faults()
        self.core.close()
        shutil.rmtree(self.disk.root)
        self.boot(folder)
