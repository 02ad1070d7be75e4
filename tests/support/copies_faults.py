"""Faults of machines, processes, disks, the network and etcd, applied one after another to copied
nsqds under load."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.copied_nsqds import LEASE, WORKERS, CopiedNsqd, CopiedNsqds
from support.copies_load import CopiesLoad

BRIEF = LEASE / 3  # seconds; leases survive a fault of this length
LONG = LEASE * 2  # seconds; leases end during a fault of this length
FILLER = "filler"  # name of the file that fills a disk
BLOCK = 64 << 10


@dataclass
class Faults:
    """Applies faults, and waits after each until the cluster is in sync.

    Each kind of fault is a method, which chooses the affected nodes at random. The other nodes take
    over during long faults only.
    """

    cluster: CopiedNsqds
    load: CopiesLoad
    rng: random.Random
    lines: list[str] = field(default_factory=list)
    """Report of each fault."""

    def apply(self, kinds: Sequence[str]) -> None:
        for kind in kinds:
            since = time.monotonic()
            try:
                getattr(self, kind)()
                self.cluster.await_sync()
                self.load.goes_on()
            except BaseException as error:
                raise AssertionError(f"fault {len(self.lines) + 1}, {kind}: {error}") from error
            self.lines.append(f"{kind}: in sync after {time.monotonic() - since:.1f} s")
            print(self.lines[-1], flush=True)

    # -- machines and processes

    def kill_briefly(self) -> None:
        node = self._node()
        node.kill_all()
        node.start()

    def kill_for_long(self) -> None:
        node = self._node()
        names = self.cluster.sessions(node)
        node.kill_all()
        self.cluster.await_takeover(names, self.cluster.others(node))
        self.load.goes_on()
        node.start()

    def kill_worker(self) -> None:
        self._node().kill_worker(self.rng.randrange(WORKERS))

    def kill_everything(self) -> None:
        self.cluster.on_each(CopiedNsqd.kill_all, self.cluster.nodes)
        self.cluster.on_each(CopiedNsqd.start, self.cluster.nodes)

    def restart(self) -> None:
        self._node().restart()

    def pause_briefly(self) -> None:
        with self._paused(self._node()):
            time.sleep(BRIEF)

    def pause_for_long(self) -> None:
        node = self._node()
        names = self.cluster.sessions(node)
        with self._paused(node):
            self.cluster.await_takeover(names, self.cluster.others(node))

    # -- disks

    def lose_disk(self) -> None:
        node = self._node()
        node.kill_all()
        node.erase()
        node.start()

    def fill_disk(self) -> None:
        node = self._node()
        path = node.data / FILLER
        try:
            _fill(path)
            time.sleep(LONG)
        finally:
            path.unlink()

    # -- the network

    def separate_one_way(self) -> None:
        sender, receiver = self.rng.sample(self.cluster.nodes, 2)
        with self._separated((sender, receiver.ip)):
            time.sleep(LONG)

    def separate_pair(self) -> None:
        one, other = self.rng.sample(self.cluster.nodes, 2)
        with self._separated((one, other.ip), (other, one.ip)):
            time.sleep(LONG)

    def separate_pair_briefly(self) -> None:
        one, other = self.rng.sample(self.cluster.nodes, 2)
        with self._separated((one, other.ip), (other, one.ip)):
            time.sleep(BRIEF)

    def separate_from_etcd(self) -> None:
        node = self._node()
        with self._separated((node, self.cluster.etcd_address)):
            time.sleep(LONG)
            self.load.goes_on()

    def isolate(self) -> None:
        """Separate a node from the other nodes, but not from etcd."""
        node = self._node()
        routes = [
            route
            for each in self.cluster.others(node)
            for route in ((node, each.ip), (each, node.ip))
        ]
        with self._separated(*routes):
            time.sleep(LONG)

    def isolate_completely(self) -> None:
        """Separate a node from the other nodes and from etcd."""
        node = self._node()
        names = self.cluster.sessions(node)
        others = self.cluster.others(node)
        routes = [route for each in others for route in ((node, each.ip), (each, node.ip))]
        with self._separated(*routes, (node, self.cluster.etcd_address)):
            self.cluster.await_takeover(names, others)

    # -- etcd

    def pause_etcd_briefly(self) -> None:
        with self._etcd_paused():
            time.sleep(BRIEF)

    def pause_etcd_for_long(self) -> None:
        with self._etcd_paused():
            time.sleep(LONG)
            self.load.goes_on()

    def kill_etcd_for_long(self) -> None:
        (member,) = self.cluster.etcd.members
        member.kill()
        time.sleep(LONG)
        self.load.goes_on()
        self.cluster.etcd.restart(member)

    # -- inside

    def _node(self) -> CopiedNsqd:
        return self.rng.choice(self.cluster.nodes)

    @contextlib.contextmanager
    def _paused(self, node: CopiedNsqd) -> Iterator[None]:
        node.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            node.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _etcd_paused(self) -> Iterator[None]:
        (member,) = self.cluster.etcd.members
        member.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            member.process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _separated(self, *routes: tuple[CopiedNsqd, str]) -> Iterator[None]:
        silently = self.rng.random() < 0.5
        try:
            for node, address in routes:
                self.cluster.network.separate(node.name, address, silently=silently)
            yield
        finally:
            self.cluster.network.heal()


KINDS = tuple(
    name for name in vars(Faults) if not name.startswith("_") and name not in ("apply", "lines")
)
"""All kinds of faults."""


def _fill(path: Path) -> None:
    """Write a file until the disk is full."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(file, bytes(BLOCK))
    except OSError:
        pass
    finally:
        os.close(file)
