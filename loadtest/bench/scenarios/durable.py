"""Cost of acknowledging a publish only once its messages are safe, compared with Redis."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.bench import load
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.peers import servers
from loadtest.bench.speed import Result, Settings, consume, measure, publish, touch_memory

if TYPE_CHECKING:
    from loadtest.bench.peers.drivers import Driver, Publisher

CLASSES = ("memory", "os", "fsync")
PUBLISHERS, BATCH = 16, 100
IN_MEMORY = {"tmpfs", "ramfs"}
BUILD = Path(__file__).parents[3] / "build" / "bench"


def durable(settings: Settings) -> Iterator[Result]:
    """Measure the classes alternately, each on its own nsqd; published messages are consumed in
    between."""
    if settings.target is not None:
        raise NotOffered("nobody knows which class its topics are of")
    with on_disk() as folder, ExitStack() as stack:
        nsqds = {
            name: stack.enter_context(settings.nsqd(durability=name, data_path=made(folder, name)))
            for name in CLASSES
        }
        redis = stack.enter_context(synced_redis(folder))
        for _ in classes(settings, nsqds):
            pass  # warm-up: the daemon recycles memory afterwards
        # The page cache takes new memory for each file; the cost of obtaining it from the host must
        # not be measured.
        touch_memory(4 * settings.count(1_000_000) * settings.size)
        for _ in settings.rounds():
            yield from classes(settings, nsqds)
            yield from publishers(settings, nsqds["fsync"], redis)


def classes(settings: Settings, nsqds: dict[str, Daemon]) -> Iterator[Result]:
    messages = settings.count(1_000_000)
    first: Result | None = None
    for name, nsqd in nsqds.items():
        with settings.topic(nsqd) as topic:
            result = publish(settings, nsqd, topic, messages, f"MPUB x200, 2 conn, {name}")
            consume(nsqd, topic, messages)
        first = first or result
        yield told(result, name, result.rate / first.rate, "{:.2f} x the rate of class memory")


def publishers(settings: Settings, nsqd: Daemon, redis: Daemon | None) -> Iterator[Result]:
    """Measure many publishers that wait for their OK, on nsqd and on Redis: one sync serves all of
    them."""
    from loadtest.bench.peers import drivers

    messages = settings.count(200_000)
    with settings.topic(nsqd) as topic:
        ours = waiting(settings, drivers.Nsq(), nsqd, topic, messages)
        consume(nsqd, topic, messages)
    ours.durability = "fsync"
    yield ours
    if redis is None:
        return
    for peer in drivers.RedisStreams(), drivers.RedisLists():
        with settings.topic(redis) as queue:
            peer.create(redis.tcp, queue)
            theirs = waiting(settings, peer, redis, queue, messages)
            peer.drop(redis, queue)
        yield told(theirs, "fsync", ours.rate / theirs.rate, "nsqd has {:.2f} x its rate")


def waiting(
    settings: Settings, driver: "Driver", server: Daemon, queue: str, messages: int
) -> Result:
    """Connections that each wait until all messages in a batch are acknowledged."""
    from loadtest.bench.peers import work

    def make(batch: int) -> "Publisher":
        return driver.publisher(server.tcp, queue, settings.body, batch)

    with load.Team(2) as team:
        for _ in range(2):
            commands = messages // BATCH // 2
            team.add(work.publishing_in_turn, make, BATCH, commands, PUBLISHERS // 2, False)
        name = f"{driver.name} x{BATCH}, {PUBLISHERS} waiting clients"
        return measure(name, server, team)[0]


def told(result: Result, durability: str, ratio: float, note: str) -> Result:
    result.durability = durability
    result.figures["ratio"] = ratio
    result.order = "ratio"
    result.note = note.format(ratio)
    return result


@contextmanager
def synced_redis(folder: Path) -> Iterator[Daemon | None]:
    """A Redis server that syncs before it responds, if Redis is installed."""
    if not servers.program("redis-server"):
        yield None
        return
    from loadtest.bench.peers.drivers import Redis

    with servers.started(
        servers.REDIS_SYNCED, lambda address: Redis.ask(address, b"PING"), folder
    ) as server:
        yield server


@contextmanager
def on_disk() -> Iterator[Path]:
    """Return a directory on a disk, where a sync really writes. The directory for temporary files
    may be in memory."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for place in (tempfile.gettempdir(), str(BUILD)):
        words = ["stat", "--file-system", "--format=%T", place]
        kind = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        if kind not in IN_MEMORY:
            with tempfile.TemporaryDirectory(prefix="nsqcy-bench-", dir=place) as folder:
                yield Path(folder)
            return
    raise NotOffered("no folder is on a disk")


def made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
