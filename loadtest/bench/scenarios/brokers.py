"""nsqd and other brokers that keep messages in files: syncs, recovery, many queues and clients.

Each contestant has its own server. A contestant that cannot be measured has a row that says why.
"""

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.bench import load, speed
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.peers import servers
from loadtest.bench.scenarios.durable import on_disk
from loadtest.bench.scenarios.many import SETTLE
from loadtest.bench.speed import Result, Settings, measure

if TYPE_CHECKING:
    from loadtest.bench.peers.drivers import Driver, Publisher, StoredDriver

SYNCED = ((100, 16, 100_000), (1, 50, 10_000))  # messages per batch, clients, messages
LOGS = (0.1, 1.0, 3.0)  # GB
LOGGED, LOGGED_BATCH = 10_000, 20  # bytes of a message in a log, and messages per batch
QUEUES, PART = 2_000, 100
CLIENTS = 5_000
FIRST_BUDGET = 120.0  # maximum seconds until the first message

Measure = Callable[[Settings, "StoredDriver", Path], Iterator[Result]]


def synced(settings: Settings) -> Iterator[Result]:
    """Many publishers that wait until their messages are synced."""
    for _ in settings.rounds():
        ours: dict[tuple[int, int], Result] = {}
        yield from _each(settings, partial(_synced, ours), lists=True)


def recovery(settings: Settings) -> Iterator[Result]:
    """Kill a server that has a log, and wait for the first message after its start."""
    for size in LOGS:
        yield from _each(settings, partial(_recovery, size))


def queues(settings: Settings) -> Iterator[Result]:
    """Create queues with a message each, stop the server, and start it again."""
    yield from _each(settings, _queues)


def clients(settings: Settings) -> Iterator[Result]:
    """Consumers of an empty queue."""
    yield from _each(settings, _clients)


def _each(settings: Settings, run: Measure, *, lists: bool = False) -> Iterator[Result]:
    """Run every contestant, and Redis also with its lists if wanted."""
    from loadtest.bench.peers import drivers, packages

    if settings.target is not None:
        raise NotOffered("it needs servers that it may kill")
    for kind in drivers.STORED:
        if kind is drivers.StoredLists and not lists:
            continue
        driver = kind()
        version = packages.version(driver.package) if driver.package else driver.version
        try:
            if driver.program and not servers.program(driver.program):
                raise NotOffered(f"{driver.package} is not installed")
            with on_disk() as folder:
                for result in run(settings, driver, folder):
                    result.note = f"{version}; {result.note}".rstrip("; ")
                    yield result
        except Exception as error:
            why = speed.failure("", error)["why"]
            yield Result(driver.name, 1, 1.0, 0.0, 0.0, note=f"{version}; not measured: {why}")


def _synced(
    ours: dict[tuple[int, int], Result], settings: Settings, driver: "StoredDriver", folder: Path
) -> Iterator[Result]:
    with driver.stored(folder, "fsync") as server:
        for batch, clients, count in SYNCED:
            messages = settings.count(int(count * driver.share**2))  # one by one, some are slow
            with settings.topic(server) as queue:
                driver.create(server.tcp, queue)
                result = waiting(settings, driver, server, queue, messages, batch, clients)
                driver.drop(server, queue)
            first = ours.setdefault((batch, clients), result)
            result.durability = "fsync"
            result.figures["ratio"] = first.rate / result.rate
            result.order = "ratio"
            yield result


def waiting(
    settings: Settings,
    driver: "Driver",
    server: Daemon,
    queue: str,
    messages: int,
    batch: int,
    clients: int,
) -> Result:
    """Connections that each wait until all messages in a batch are acknowledged."""
    from loadtest.bench.peers import work

    def make(batch: int) -> "Publisher":
        return driver.publisher(server.tcp, queue, settings.body, batch)

    with load.Team(2) as team:
        for _ in range(2):
            commands = messages // batch // 2
            team.add(work.publishing_in_turn, make, batch, commands, clients // 2, False)
        return measure(f"{driver.name} x{batch}, {clients} waiting clients", server, team)[0]


def _recovery(
    size: float, settings: Settings, driver: "StoredDriver", folder: Path
) -> Iterator[Result]:
    from loadtest.bench.peers import work

    body = speed.body(LOGGED)
    commands = settings.some(int(size * 1e9)) // LOGGED // LOGGED_BATCH + 1
    with driver.stored(folder, "os") as server, settings.topic(server) as queue:
        driver.create(server.tcp, queue)
        with load.Team(1) as team:
            team.add(
                work.publishing,
                lambda batch: driver.publisher(server.tcp, queue, body, batch),
                *(LOGGED_BATCH, commands, work.IN_THE_PIPE),
            )
            measure("", server, team)
        files = server.disk()
        _, started = server.restart(signal.SIGKILL)
        result = _first(driver, server, queue, f"{driver.name}, {size:g} GB")
    result.figures |= {"first_s": started + result.seconds, "files": files}
    yield result


def _first(driver: "Driver", server: Daemon, queue: str, title: str) -> Result:
    """Wait for a message. The CPU time is that of the whole server since its start."""
    began = time.monotonic()
    while not _taken(driver, server, queue):
        if time.monotonic() > began + FIRST_BUDGET:
            raise RuntimeError(f"no message within {FIRST_BUDGET:.0f} s after the start")
        time.sleep(0.02)
    result = Result(title, 1, time.monotonic() - began, server.cpu_seconds(), 0.0, durability="os")
    memory = server.memory()
    result.rss, result.pss = memory["Rss"], memory["Pss"]
    return result


def _taken(driver: "Driver", server: Daemon, queue: str) -> bool:
    """Return whether a consumer gets a message; False also while the server reads its log."""
    from loadtest.bench.peers import work

    try:
        consumer = driver.consumer(server.tcp, queue, 1)
        with consumer.sock as sock:
            sock.settimeout(FIRST_BUDGET)
            sock.sendall(consumer.first)
            received = work.Received(1 << 20)
            while True:
                taken = consumer.take(received.read(sock))
                received.used(taken.used)
                if taken.messages:
                    return True
                sock.sendall(taken.send)
    except (OSError, RuntimeError, ValueError):
        return False


def _queues(settings: Settings, driver: "StoredDriver", folder: Path) -> Iterator[Result]:
    count = settings.some(QUEUES, PART)
    with driver.stored(folder, "os") as server, settings.topics(server, count) as names:
        before = server.memory()["Pss"]
        parts = [names[start : start + PART] for start in range(0, count, PART)]
        with load.Team(1) as team:
            team.add(_creating, driver, server.tcp, parts, settings.body)
            result = measure(f"{driver.name}, {count:,} queues", server, team)[0]
        time.sleep(settings.seconds(SETTLE))
        memory = server.memory()
        result.rss, result.pss = memory["Rss"], memory["Pss"]
        stopped, started = server.restart(signal.SIGTERM)
        began = time.monotonic()
        driver.create(server.tcp, names[-1])  # a consumer group
        first = _first(driver, server, names[-1], "")
        started += time.monotonic() - began
    result.durability = "os"
    result.figures |= {
        "bytes": (result.pss - before) / count,
        "stop_s": stopped,
        "start_s": started,
        "start_cpu_s": first.daemon_cpu,
    }
    yield result


def _creating(
    driver: "StoredDriver",
    address: tuple[str, int],
    parts: list[list[str]],
    body: bytes,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    sock, exchanges = driver.one_each(address, parts, body)
    sock.settimeout(FIRST_BUDGET)

    def run() -> load.Report:
        for command, mark, count in exchanges:
            sock.sendall(command)
            answers = b""
            while answers.count(mark) < count:
                received = sock.recv(1 << 16)
                if not received:
                    raise RuntimeError(f"closed after {answers[-200:]!r}")
                answers += received
        return {"messages": sum(map(len, parts))}

    return run


def _clients(settings: Settings, driver: "StoredDriver", folder: Path) -> Iterator[Result]:
    count = settings.some(CLIENTS, 10)
    with driver.stored(folder, "os") as server, settings.topic(server) as queue:
        driver.create(server.tcp, queue)
        with load.Team(2) as team:
            for connections in (1, count):
                team.add(_connecting, driver, server.tcp, queue, connections)
                team.ready()
                if connections == 1:
                    time.sleep(settings.seconds(SETTLE))
                    before, cpu = server.memory()["Pss"], server.cpu_seconds()
            time.sleep(settings.seconds(SETTLE))
            memory, used = server.memory(), server.cpu_seconds() - cpu
    grown = (memory["Pss"] - before) / count
    yield Result(
        f"{driver.name}, {count:,} connections",
        *(count, 1.0, used, 0.0, memory["Rss"], memory["Pss"]),
        durability="os",
        figures={"bytes": grown},
    )


def _connecting(
    driver: "Driver",
    address: tuple[str, int],
    queue: str,
    connections: int,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    consumers = [driver.consumer(address, queue, 1) for _ in range(connections)]
    for each in consumers:
        each.sock.sendall(each.first)
    return lambda: {"messages": len(consumers)}
