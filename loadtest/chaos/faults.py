"""Injects the faults of a schedule, and ends them.

Each fault is a coroutine named after its kind: it returns when the fault is over, and leaves
nothing behind. Faults that end or stop processes of the same daemon wait for each other; others
overlap.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadtest.chaos import disks
from loadtest.chaos.cluster import Cluster, Node
from loadtest.chaos.proxy import TO_CLIENT, TO_NSQD, Proxy
from loadtest.chaos.register import Register
from loadtest.chaos.schedule import (
    KILLABLE,
    KILLABLE_LOOKUPD,
    LOOKUPD,
    NSQD,
    SLOW_DISK,
    SMALL_DISK,
    Fault,
)
from nsqcy.testing import DaemonError

PROCESSES = {  # faults that end or stop processes
    *("kill a worker", "kill nsqd", "kill the master", "restart nsqd"),
    *("stop a worker", "stop the master", "kill nsqlookupd", "stop nsqlookupd"),
}
COMES_BACK = 30.0  # time limit in seconds for a killed worker to be up again
REFILL = 0.2  # seconds between two checks of whether a full disk is still full
LOOK = 0.02


@dataclass(frozen=True)
class Inflicted:
    """A fault that was injected; times are in seconds since the run began. `error`: an unexpected
    failure of the injection."""

    begun: float
    ended: float
    kind: str
    victim: str
    error: str = ""

    def __str__(self) -> str:
        minutes, seconds = divmod(self.begun, 60)
        told = f"{self.kind}: {self.victim} for {self.ended - self.begun:.1f} s"
        return f"{minutes:3.0f}:{seconds:04.1f}  {told}{self.error and f', FAILED: {self.error}'}"


class Faults:
    def __init__(self, cluster: Cluster, register: Register) -> None:
        self.inflicted: list[Inflicted] = []
        self._cluster = cluster
        self._register = register
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def victims(self) -> dict[str, Sequence[int]]:
        """Possible targets of each kind, for a schedule."""
        nodes, lookupds = self._cluster.nodes, self._cluster.lookupds
        return {
            NSQD: [each.number for each in nodes],
            KILLABLE: [each.number for each in nodes[: len(nodes) - 1 or 1]],
            SLOW_DISK: [each.number for each in nodes if each.disk],
            SMALL_DISK: [each.number for each in nodes if each.small_disk],
            LOOKUPD: range(len(lookupds)),
            KILLABLE_LOOKUPD: range(len(lookupds) - 1),
        }

    async def run(self, plan: Sequence[Fault]) -> None:
        """Inject all faults, each at its time; return when the last one is over."""
        self._begun = time.monotonic()
        async with asyncio.TaskGroup() as under_way:
            for fault in plan:
                await asyncio.sleep(max(0.0, self._begun + fault.at - time.monotonic()))
                under_way.create_task(self._inflict(fault))

    async def _inflict(self, fault: Fault) -> None:
        async with self._turn(fault):
            begun, error = self._now, ""
            try:
                await getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)
            except (DaemonError, OSError, AssertionError) as failed:
                error = f"{type(failed).__name__}: {failed}"
            found = Inflicted(begun, self._now, fault.kind, self._name(fault), error)
            self.inflicted.append(found)
            print(found, flush=True)

    def _turn(self, fault: Fault) -> contextlib.AbstractAsyncContextManager[None]:
        """At most one fault at a time ends or stops processes of the same daemon."""
        if fault.kind in PROCESSES:
            return self._turns[self._name(fault)]
        return contextlib.nullcontext()

    def _name(self, fault: Fault) -> str:
        return f"{'nsqlookupd' if 'nsqlookupd' in fault.kind else 'nsqd'} {fault.victim}"

    @property
    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _node(self, fault: Fault) -> Node:
        return self._cluster.nodes[fault.victim]

    # -- nsqd ends

    async def _kill_a_worker(self, fault: Fault) -> None:
        node = self._node(fault)
        workers = node.daemon.workers
        victim = _one_of(workers, fault)
        node.killed += 1
        os.kill(victim, signal.SIGKILL)
        await _until(lambda: victim not in node.daemon.workers, "it does not end")
        await _until(lambda: len(node.daemon.workers) == len(workers), "it does not come back")

    async def _kill_nsqd(self, fault: Fault) -> None:
        node = self._node(fault)
        node.killed += len(node.daemon.workers)  # the master may still detect the death of a worker
        await asyncio.to_thread(node.daemon.kill)
        self._register.died(node.number)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(node.daemon.start)

    async def _kill_the_master(self, fault: Fault) -> None:
        """The workers save their messages, and the next start waits for them."""
        node = self._node(fault)
        node.daemon.process.kill()
        await asyncio.to_thread(node.daemon.process.wait)
        with contextlib.suppress(DaemonError):  # the process has already ended
            node.daemon.stop()
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(node.daemon.start)

    async def _restart_nsqd(self, fault: Fault) -> None:
        node = self._node(fault)
        try:
            await asyncio.to_thread(node.daemon.stop)
        finally:
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(node.daemon.start)

    # -- nsqd is stopped

    async def _stop_a_worker(self, fault: Fault) -> None:
        node = self._node(fault)
        with _stopped(_one_of(node.daemon.workers, fault)):
            await asyncio.sleep(fault.seconds)

    async def _stop_the_master(self, fault: Fault) -> None:
        node = self._node(fault)
        with _stopped(node.daemon.process.pid):
            await asyncio.sleep(fault.seconds)

    # -- disks

    async def _slow_disk(self, fault: Fault) -> None:
        disk = self._node(fault).disk
        assert disk is not None
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
        await asyncio.to_thread(daemon.kill)
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(daemon.start)

    async def _stop_nsqlookupd(self, fault: Fault) -> None:
        daemon = self._cluster.lookupds[fault.victim]
        with _stopped(daemon.process.pid):
            await asyncio.sleep(fault.seconds)


def _one_of(workers: list[int], fault: Fault) -> int:
    return workers[int(fault.chance * len(workers))]


async def _until(holds: Callable[[], bool], else_: str) -> None:
    deadline = time.monotonic() + COMES_BACK
    while not holds():
        assert time.monotonic() < deadline, else_
        await asyncio.sleep(LOOK)


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
