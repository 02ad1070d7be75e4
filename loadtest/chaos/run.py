"""A run, from its first process to the verification of its guarantees."""

import asyncio
import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from loadtest.chaos import balance, churn, consumers, publishers
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.faults import Faults, Inflicted
from loadtest.chaos.load import FAILURES, Load
from loadtest.chaos.register import broken
from loadtest.chaos.schedule import plan
from loadtest.chaos.watch import Life, Slope, Watch, left_behind, samples, slope
from loadtest.soak.ledger import Account

THREADS = 64  # threads for blocking calls
LOOK = 2.0  # seconds between two samples
DRAIN = 120.0  # time limit in seconds for delivering everything
SURE = 1.0  # seconds; if nothing is left for this long, nothing more is expected
SETTLE = 30.0  # time limit in seconds for closing extra descriptors
AGAIN = 0.5


@dataclass(frozen=True)
class Options:
    minutes: float
    seed: int
    rate: float
    nsqds: int
    workers: int
    pause: tuple[float, float]
    forget: int


@dataclass
class Outcome:
    """Results of a run, and the guarantees that it broke."""

    options: Options
    load: Load
    watch: Watch
    begun: float  # seconds since 1970
    seconds: float = 0.0  # duration of the load
    drained: float | None = None  # seconds until the remaining messages were delivered
    accounts: list[Account] = field(default_factory=list)
    faults: list[Inflicted] = field(default_factory=list)
    slopes: list[Slope] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)


async def run(options: Options) -> Outcome:
    """Raises errors in the run itself."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    cluster = Cluster(options.nsqds, options.workers)
    try:
        await cluster.start()
        chance = random.Random(options.seed)
        load = Load(cluster, chance, options.rate)
        load.forget = options.forget
        outcome = Outcome(options, load, Watch(), time.time())
        await _live(load, outcome)
        await asyncio.to_thread(_end, cluster, outcome)
        return outcome
    finally:
        await cluster.close()


async def _live(load: Load, outcome: Outcome) -> None:
    """Run from the first publish until everything is delivered and the clients have left."""
    cluster, watch = load.cluster, outcome.watch
    watch.look(cluster.processes())
    before = list(watch.lives.values())
    faults = Faults(cluster, load.register)
    async with asyncio.TaskGroup() as group:
        staying = [group.create_task(_look(watch, cluster)), *consumers.start(load, group)]
        leaving = [*publishers.start(load, group), *churn.start(load, group)]
        seconds = outcome.options.minutes * 60
        await faults.run(
            plan(outcome.options.seed, seconds, outcome.options.pause, faults.victims())
        )
        await asyncio.sleep(max(0.0, watch.begun + seconds - time.monotonic()))
        load.quiet.set()
        await asyncio.wait(leaving)
        outcome.seconds = time.time() - outcome.begun
        await _drain(load, outcome)
        for task in staying:
            task.cancel()
    outcome.faults = faults.inflicted
    outcome.broken += [f"{each.kind}: {each.error}" for each in faults.inflicted if each.error]
    await _settle(load, outcome, before)


async def _look(watch: Watch, cluster: Cluster) -> None:
    """Run until it is cancelled."""
    while True:
        await asyncio.sleep(LOOK)
        await asyncio.to_thread(lambda: watch.look(cluster.processes()))


async def _drain(load: Load, outcome: Outcome) -> None:
    """Wait until nothing is left according to both nsqd and the ledger, or until the missing
    messages count as lost."""
    begun = time.monotonic()
    empty_since = begun
    left: dict[str, Any] = {}
    while time.monotonic() < begun + DRAIN:
        left = {}
        for node in load.cluster.nodes:
            try:
                left[f"nsqd {node.number}"] = await load.call(balance.left, node)
            except FAILURES as error:
                left[f"nsqd {node.number}"] = repr(error)
        if any(left.values()):
            empty_since = time.monotonic()
        elif not load.register.owed or time.monotonic() > empty_since + SURE:
            outcome.drained = time.monotonic() - begun
            return
        await asyncio.sleep(AGAIN)
    outcome.broken.append(f"not drained within {DRAIN:g} s: {left}")


async def _settle(load: Load, outcome: Outcome, before: list[Life]) -> None:
    """Wait until the clients have left and their resources are free."""
    for node in load.cluster.nodes:
        with contextlib.suppress(*FAILURES, AssertionError):
            await churn.clean_up(load, node)
    deadline = time.monotonic() + SETTLE
    while True:
        told = left_behind(before, samples(load.cluster.processes()))
        if not told or time.monotonic() > deadline:
            break
        await asyncio.sleep(AGAIN)
    outcome.broken += told


def _end(cluster: Cluster, outcome: Outcome) -> None:
    """Verify guarantees, before and after the cluster is stopped."""
    load, watch = outcome.load, outcome.watch
    outcome.accounts = load.register.accounts()
    for account in outcome.accounts:
        for name, count in broken(account).items():
            some = f" ({', '.join(account.named[name])}, ...)" if name in account.named else ""
            outcome.broken.append(f"{account.topic}/{account.channel}: {name} {count:,}{some}")
    outcome.broken += [f"elsewhere: {name} {n:,}" for name, n in load.register.strays.items()]
    for node in cluster.nodes:
        outcome.broken += balance.unbalanced(node)
    outcome.slopes = [found for each in watch.lives.values() if (found := slope(each))]
    outcome.broken += [
        f"{each.name} {each.pid} grows by {each.an_hour / 1e6:,.1f} MB an hour"
        for each in outcome.slopes
        if each.grows
    ]
    outcome.broken += [f"{name}: {why}" for name, why in cluster.stop().items()]
    outcome.logs = {name: daemon.log for name, daemon in cluster.daemons.items()}
    killed = {f"nsqd {node.number}": node.killed for node in cluster.nodes}
    for name, log in outcome.logs.items():
        outcome.broken += balance.complaints(name, log, killed.get(name, 0))
    for node in cluster.nodes:
        outcome.broken += balance.damaged(node)
