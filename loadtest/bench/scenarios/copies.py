"""Cost of copies on other machines, compared with other brokers' replicas, and cost of a takeover.

All nodes run on this machine: they compete for its cores, and there is no network between them.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.bench import copied, load, procfs
from loadtest.bench.copied import KINDS, ONE, SYNCED, THREE, Kind
from loadtest.bench.daemon import Address, Cluster, NotOffered
from loadtest.bench.peers import servers
from loadtest.bench.scenarios.durable import on_disk
from loadtest.bench.speed import (
    BATCH,
    READY,
    Result,
    Settings,
    consume,
    measure,
    percentiles,
    publish,
    touch_memory,
)

if TYPE_CHECKING:
    from loadtest.bench.peers.drivers import Driver, Publisher, ReplicatedDriver

CONNECTIONS = 50
TURNS = 3  # repetitions of batches in each round, because they take less than a second
LEASE = 3  # seconds, for the takeover

Topics = dict[Kind, str]
Ours = dict[Kind, Result]
Make = Callable[[int], "Publisher"]
Reports = list[load.Report]


def copies(settings: Settings) -> Iterator[Result]:
    if settings.target is not None:
        raise NotOffered("it needs a cluster of its own")
    with on_disk() as folder, copied.running(settings, folder) as cluster:
        topics = {kind: copied.create(cluster, kind) for kind in KINDS}
        for _ in batches(settings, cluster, topics, {}):
            pass  # warm-up: the daemon recycles memory afterwards
        # The cost of obtaining memory for the page cache from the host must not be measured.
        touch_memory(6 * settings.count(1_000_000) * settings.size)
        for _ in settings.rounds():
            batched: Ours = {}
            waited: Ours = {}
            for _ in range(TURNS):
                yield from batches(settings, cluster, topics, batched)
            yield from singles(settings, cluster, topics, waited)
            for driver in replicated():
                with driver.replicated(folder) as server:
                    yield from theirs(settings, driver, server, batched, waited)
    with on_disk() as folder:
        yield takeover(settings, folder)


# -- nsqd


def batches(settings: Settings, cluster: Cluster, topics: Topics, ours: Ours) -> Iterator[Result]:
    """Publish to and consume from each kind of topic in turn. Adds the results to `ours`."""
    messages = settings.count(1_000_000)
    for kind, topic in topics.items():
        name = f"MPUB x200, 2 conn, {kind.title}"
        ours[kind] = publish(settings, cluster, topic, messages, name)
        consumed = consume(cluster, topic, messages, f"SUB+FIN, 2 conn, {kind.title}")
        consumed.durability = kind.durability
        yield beside_one(kind, ours)
        yield consumed


def singles(settings: Settings, cluster: Cluster, topics: Topics, ours: Ours) -> Iterator[Result]:
    """Publish messages one by one, from clients that wait. Adds the results to `ours`."""
    from loadtest.bench.peers import drivers

    for kind, topic in topics.items():
        messages = settings.count(10_000 if kind is SYNCED else 50_000)
        with load.Team(2) as team:
            make = publishers(settings, drivers.Nsq(), cluster.tcp, topic)
            add_singles(team, make, messages)
            name = f"PUB, wait for OK, {CONNECTIONS} conn, {kind.title}"
            ours[kind], reports = measure(name, cluster, team)
        consume(cluster, topic, messages)
        result = with_latencies(beside_one(kind, ours), reports)
        result.figures["beyond_us"] = result.figures["p99_us"] - 2 * ours[ONE].figures["p99_us"]
        result.order = "beyond_us"
        yield result


def beside_one(kind: Kind, ours: Ours) -> Result:
    """Compare with 1 copy."""
    result, one = ours[kind], ours[ONE]
    rate, cpu = result.rate / one.rate, result.daemon_us / one.daemon_us
    result.note = f"{rate:.2f} x the rate of 1 copy, {cpu:.2f} x its CPU"
    return compared(result, kind.durability, rate, cpu)


# -- other brokers


def replicated() -> "list[ReplicatedDriver]":
    from loadtest.bench.peers import drivers

    return [kind() for kind in drivers.REPLICATED if servers.program(kind.program)]


def theirs(
    settings: Settings, driver: "ReplicatedDriver", server: Cluster, batched: Ours, waited: Ours
) -> Iterator[Result]:
    """Measure the same work on another broker, and compare with 3 copies of the same durability
    class."""
    kind = SYNCED if driver.durability == SYNCED.durability else THREE
    measured(settings, driver, server, "warm-up", add_batches, 10_000)
    result, _ = measured(settings, driver, server, f"x{BATCH}, 2 conn", add_batches, 50_000)
    yield beside_ours(result, batched[kind], driver.durability)
    name = f"x1, {CONNECTIONS} waiting clients"
    result, reports = measured(settings, driver, server, name, add_singles, 10_000)
    yield with_latencies(beside_ours(result, waited[kind], driver.durability), reports)


def measured(
    settings: Settings,
    driver: "ReplicatedDriver",
    server: Cluster,
    name: str,
    add: Callable[[load.Team, Make, int], None],
    messages: int,
) -> tuple[Result, Reports]:
    """Measure a load on a new queue."""
    with settings.topic(server) as queue, load.Team(2) as team:
        driver.create(server.tcp, queue)
        make = publishers(settings, driver, driver.home(server, queue), queue)
        add(team, make, settings.count(messages))
        found = measure(f"{driver.name} {name}, 3 replicas", server, team)
        driver.drop(server, queue)
    return found


def beside_ours(result: Result, ours: Result, durability: str) -> Result:
    rate, cpu = ours.rate / result.rate, ours.daemon_us / result.daemon_us
    result.note = f"nsqd has {rate:.2f} x its rate, {cpu:.2f} x its CPU"
    return compared(result, durability, rate, cpu)


# -- building blocks


def publishers(settings: Settings, driver: "Driver", address: Address, queue: str) -> Make:
    return lambda batch: driver.publisher(address, queue, settings.body, batch)


def add_batches(team: load.Team, make: Make, messages: int) -> None:
    from loadtest.bench.peers import work

    for _ in range(2):
        team.add(work.publishing, make, BATCH, messages // BATCH // 2, work.IN_THE_PIPE)


def add_singles(team: load.Team, make: Make, messages: int) -> None:
    from loadtest.bench.peers import work

    for _ in range(2):
        team.add(work.publishing_in_turn, make, 1, messages // 2, CONNECTIONS // 2, True)


def with_latencies(result: Result, reports: Reports) -> Result:
    found = percentiles([each for report in reports for each in report["latencies"]])
    result.figures |= {f"{name}_us": us for name, us in found.items()}
    result.note = f"p50 {found['p50'] / 1e3:.2f} ms, p99 {found['p99'] / 1e3:.2f} ms; {result.note}"
    return result


def compared(result: Result, durability: str, rate: float, cpu: float) -> Result:
    result.durability = durability
    result.figures |= {"ratio": rate, "cpu_ratio": cpu}
    result.order = "cpu_ratio"
    return result


# -- takeover


def takeover(settings: Settings, folder: Path) -> Result:
    """Kill the node that has all messages, while consumers are waiting on the other nodes."""
    messages = settings.count(1_000_000)
    options = {"copies_lease": f"{LEASE}s", "copies_timeout": f"{LEASE}s"}
    with copied.running(settings, folder, **options) as cluster, load.Team(2) as team:
        first, *others = cluster.members
        topic = copied.create(cluster, THREE)
        publish(settings, cluster, topic, messages)
        for node in others:
            team.add(load.finishing, node.tcp, topic, READY, messages, slice(0, 2), 0)
        team.ready()
        before = [node.cpu_seconds() for node in others]
        killed = time.monotonic()
        procfs.end(first.pids)
        reports = team.run()
        cpu = [node.cpu_seconds() - then for node, then in zip(others, before, strict=True)]
        memory = Cluster(others).memory()
    begun = min(report["first"] for report in reports if report["messages"]) - killed
    ended = max(report["ended"] for report in reports) - killed
    return Result(
        f"takeover after kill -9, lease {LEASE} s",
        messages=sum(report["messages"] for report in reports),
        seconds=ended,
        daemon_cpu=sum(cpu),
        load_cpu=sum(report["cpu"] for report in reports),
        rss=memory["Rss"],
        pss=memory["Pss"],
        note=f"first message after {begun:.1f} s, last after {ended:.1f} s",
        durability=THREE.durability,
        workers=cluster.workers,
        busiest_cpu=max(cpu),
        figures={"first_s": begun, "last_s": ended},
    )
