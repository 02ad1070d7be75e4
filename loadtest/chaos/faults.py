"""How the faults of a schedule are inflicted, and undone.

Each is a coroutine named as its kind: it comes back when the fault is over, and then nothing of it
is left. Those that end or stop processes of the same daemon wait for each other; others overlap.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtest.chaos import disks
from loadtest.chaos.cluster import Cluster, Node
from loadtest.chaos.ledger import Ledger
from loadtest.chaos.proxy import TO_CLIENT, TO_NSQD, Proxy
from loadtest.chaos.schedule import (
    KILLABLE,
    KILLABLE_LOOKUPD,
    LOOKUPD,
    NSQD,
    SMALL_DISK,
    Fault,
)
from nsqcy.testing import DaemonError

COMES_BACK = 30.0  # seconds for a worker that was killed to be there again
REFILL = 0.2  # seconds between two looks at whether a full disk is still full
LOOK = 0.02


@dataclass(frozen=True)
class Inflicted:
    """What was done, in seconds of the run. `error`: what went wrong with it, that must not."""

    begun: float
    ended: float
    kind: str
    victim: str
    error: str = ""


class Faults:
    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.inflicted: list[Inflicted] = []
        self._cluster = cluster
        self._ledger = ledger
        self._lookupds = {id(each): asyncio.Lock() for each in cluster.lookupds}
        self._under_way: set[asyncio.Task[None]] = set()

    def victims(self) -> dict[str, Sequence[int]]:
        """Who may be hurt in which way, for a schedule."""
        nodes, lookupds = self._cluster.nodes, self._cluster.lookupds
        return {
            NSQD: [each.number for each in nodes],
            KILLABLE: [each.number for each in nodes[: len(nodes) - 1 or 1]],
            SMALL_DISK: [each.number for each in nodes if each.small_disk],
            LOOKUPD: range(len(lookupds)),
            KILLABLE_LOOKUPD: range(len(lookupds) - 1),
        }

    async def run(self, plan: Sequence[Fault]) -> None:
        """Inflict all, each at its time; comes back when the last is over."""
        self._begun = time.monotonic()
        for fault in plan:
            await asyncio.sleep(max(0.0, self._begun + fault.at - time.monotonic()))
            task = asyncio.create_task(self._inflict(fault))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _inflict(self, fault: Fault) -> None:
        begun, error = self._now, ""
        name = "nsqlookupd" if "nsqlookupd" in fault.kind else "nsqd"
        try:
            await getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)
        except (DaemonError, OSError, AssertionError) as failed:
            error = f"{type(failed).__name__}: {failed}"
        victim = f"{name} {fault.victim}"
        self.inflicted.append(Inflicted(begun, self._now, fault.kind, victim, error))
        length = f" for {self._now - begun:.1f} s"
        print(
            f"{_clock(begun)}  {fault.kind}: {victim}{length}{' FAILED ' + error if error else ''}",
            flush=True,
        )

    @property
    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _node(self, fault: Fault) -> Node:
        return self._cluster.nodes[fault.victim]

    # -- ends of nsqd

    async def _kill_a_worker(self, fault: Fault) -> None:
        node = self._node(fault)
        async with node.busy:
            before = node.workers
            victim = before[int(fault.chance * len(before))]
            os.kill(victim, signal.SIGKILL)
            node.deaths += 1
            deadline = time.monotonic() + COMES_BACK
            while victim in node.workers or len(node.workers) < len(before):
                if victim not in node.workers:
                    self._ledger.died(node.number)
                assert time.monotonic() < deadline, "the worker does not come back"
                await asyncio.sleep(LOOK)
            self._ledger.died(node.number)

    async def _kill_nsqd(self, fault: Fault) -> None:
        node = self._node(fault)
        async with node.busy:
            await asyncio.to_thread(node.daemon.kill)
            self._ledger.died(node.number)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(node.daemon.start)

    async def _kill_the_master(self, fault: Fault) -> None:
        """Its workers save what they have; who is started next waits for that."""
        node = self._node(fault)
        async with node.busy:
            node.daemon.process.kill()
            await asyncio.to_thread(node.daemon.process.wait)
            with contextlib.suppress(DaemonError):  # it has ended already
                node.daemon.stop()
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(node.daemon.start)

    async def _restart_nsqd(self, fault: Fault) -> None:
        node = self._node(fault)
        async with node.busy:
            await asyncio.to_thread(node.daemon.stop)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(node.daemon.start)

    # -- nsqd stands still

    async def _stop_a_worker(self, fault: Fault) -> None:
        node = self._node(fault)
        async with node.busy:
            workers = node.workers
            with _stopped(workers[int(fault.chance * len(workers))]):
                await asyncio.sleep(fault.seconds)

    async def _stop_the_master(self, fault: Fault) -> None:
        node = self._node(fault)
        async with node.busy:
            with _stopped(node.daemon.process.pid):
                await asyncio.sleep(fault.seconds)

    # -- disks

    async def _slow_disk(self, fault: Fault) -> None:
        disk = self._node(fault).disk
        if disk is None:
            return
        disk.delay(int(10 + fault.chance * 400))
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            disk.delay(0)

    async def _disk_full(self, fault: Fault) -> None:
        path = self._node(fault).data
        until = time.monotonic() + fault.seconds
        try:
            while time.monotonic() < until:
                disks.fill(path)
                await asyncio.sleep(REFILL)
        finally:
            disks.empty(path)

    # -- the network

    async def _cut(self, fault: Fault) -> None:
        with self._hurt_network(fault) as proxy:
            proxy.cut()
            await asyncio.sleep(fault.seconds)

    async def _reset(self, fault: Fault) -> None:
        with self._hurt_network(fault) as proxy:
            proxy.reset()

    async def _stall(self, fault: Fault) -> None:
        with self._hurt_network(fault) as proxy:
            proxy.stall(TO_NSQD, TO_CLIENT)
            await asyncio.sleep(fault.seconds)

    async def _half_stall(self, fault: Fault) -> None:
        with self._hurt_network(fault) as proxy:
            proxy.stall(TO_NSQD if fault.chance < 0.5 else TO_CLIENT)
            await asyncio.sleep(fault.seconds)

    async def _delay(self, fault: Fault) -> None:
        with self._hurt_network(fault) as proxy:
            proxy.lag = 0.02 + fault.chance * 0.5
            await asyncio.sleep(fault.seconds)

    async def _dribble(self, fault: Fault) -> None:
        with self._hurt_network(fault) as proxy:
            proxy.dribbles = True
            await asyncio.sleep(fault.seconds)

    @contextlib.contextmanager
    def _hurt_network(self, fault: Fault) -> Iterator[Proxy]:
        proxy = self._node(fault).proxy
        try:
            yield proxy
        finally:
            proxy.heal()

    # -- nsqlookupd

    async def _kill_nsqlookupd(self, fault: Fault) -> None:
        daemon = self._cluster.lookupds[fault.victim]
        async with self._lookupds[id(daemon)]:
            await asyncio.to_thread(daemon.kill)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(daemon.start)

    async def _stop_nsqlookupd(self, fault: Fault) -> None:
        daemon = self._cluster.lookupds[fault.victim]
        async with self._lookupds[id(daemon)]:
            with _stopped(daemon.process.pid):
                await asyncio.sleep(fault.seconds)


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:3}:{seconds % 60:04.1f}"
