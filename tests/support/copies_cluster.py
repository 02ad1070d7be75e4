"""Workers with copies in one process: real files, sockets and etcd, and logs without topics."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent

from nsqcy.copies.group import Group
from nsqcy.copies.ports import Limits
from nsqcy.nsqd.copies.host import CopiesHost
from nsqcy.nsqd.copies.node import Node, machine_id
from nsqcy.storage.core import Log, LogProbe, MirroredIo, RunHandle
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import messages, run
from support.etcd_process import Etcd

JOURNAL = b"state of the channels"
BUDGET = 30.0  # seconds within which a condition must become true
LIMITS = Limits(
    lease=2.0,
    copy_timeout=2.0,
    alive_interval=0.1,
    retry_interval=0.5,
    rejoin_delay=0.5,
    unclaimed_timeout=2.0,
)


@dataclass
class Settings:
    """A worker's options."""

    cluster: str = "test"
    limits: Limits = LIMITS
    listen: tuple[str, int] = ("127.0.0.1", 0)
    advertise: str = ""
    zone: str = ""
    token: str = "secret"
    server_tls: Any = None
    client_tls: Any = None
    scrub_rate: int = 0
    scrub_pause: float = 0.1


class Lines:
    """Keeps log lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, **_: object) -> None:
        self.lines.append(text)

    warn = error = info


@dataclass
class OwnedLog:
    """A log in an owned group."""

    group: Group
    files: MirroredIo
    log: Log
    probe: LogProbe
    done: list[int] = field(default_factory=list)
    handle: RunHandle | None = None
    """The first run."""

    def append(self, first: int, count: int = 3) -> None:
        data = run(messages(first, count))
        handle = self.probe.append(data, first, first + count - 1, count, done=self.done.append)
        self.handle = self.handle or handle

    def write_journal(self) -> None:
        self.probe.write_snapshot(JOURNAL)


class Machine:
    """A worker on its own machine; the worker can be stopped and restarted."""

    def __init__(self, path: Path, etcd: Etcd, settings: Settings | None = None) -> None:
        self.root = path / "copies"
        self.etcd = etcd
        self.settings = settings or Settings()
        self.lines = Lines()
        self.boot = "b"
        self.logs: dict[str, OwnedLog] = {}
        self.start()

    def start(self) -> None:
        self.io = FaultyIoThread()
        self._watcher = gevent.get_hub().loop.io(self.io.fileno(), 1)
        self._watcher.start(self.io.poll_now)
        machine = machine_id(self.root, self.lines)
        node = Node(self.root, self.root, machine, 0, self.boot, self.lines)
        self.name = node.name
        self.host = CopiesHost(
            self.io, self.root, node, self.settings, self.etcd.client(), self, self.lines
        )

    def stop(self) -> None:
        """End the process without notifying the others."""
        self.host.stop()
        self.io.drain_now()
        self._watcher.stop()
        self.logs.clear()
        self.io.close()

    # host.Topics

    def owned(self, group: Group, files: MirroredIo, directory: Path) -> None:
        log = Log(files, directory, "t", sync_every=0)
        self.logs[group.id] = OwnedLog(group, files, log, LogProbe(log))

    def lost(self, group: Group) -> None:
        del self.logs[group.id]

    def write_journal(self, group_id: str, topic: str) -> None:
        self.logs[group_id].write_journal()

    def degraded(self, group_id: str) -> None:
        pass

    def cut_off(self, is_cut_off: bool) -> None:
        pass

    def begun(self, group: Group, files: MirroredIo, directory: Path) -> None:
        pass

    def tick(self) -> None:
        pass

    # for tests

    def group(self, group_id: str) -> Group | None:
        return self.host.worker.group(group_id)

    def contents(self, group_id: str) -> dict[str, bytes]:
        root = self.root / group_id
        found = {}
        for path in root.glob("*.topic/*"):
            with contextlib.suppress(FileNotFoundError):  # it was renamed in the meantime
                found[str(path.relative_to(root))] = path.read_bytes()
        return found


@contextlib.contextmanager
def running(
    etcd: Etcd, path: Path, settings: Settings | None = None, count: int = 3
) -> Iterator[list[Machine]]:
    """Run machines whose disks are below `path`."""
    machines = [Machine(path / str(number), etcd, settings) for number in range(count)]
    try:
        yield machines
    finally:
        for machine in machines:
            machine.stop()


def until(condition: Callable[[], object]) -> None:
    """Run the hub until a condition holds."""
    deadline = time.monotonic() + BUDGET
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition does not hold")
        gevent.sleep(0.02)
