"""Three nsqds with copies, whose disks are temporarily unreadable or contain damaged data: each
acknowledged message is delivered, and none is skipped."""

import errno
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqcy.client import Consumer, Message
from nsqcy.testing.http_requests import eventually
from support.copying_nsqds import BUDGET, NAMES, await_copies, copying_nsqds
from support.etcd_process import Etcd, needs_etcd
from support.failing_reads import FailingReads
from support.nsqd_process import Nsqd

pytestmark = needs_etcd

COUNT = 15_000
SIZE = 500  # bytes of a message
POLICIES = "[topic orders*]\ncopies = 3\ndurability = fsync\n"
ON_DISK = {"mem_queue_size": 0, "memory_bytes": 1 << 20, "max_bytes_per_file": 1_000_000}
"""Options that keep most messages on disk only."""
FLIPPED = 250  # bytes


class Cluster:
    """The nsqds, and the disks from which they read logs."""

    def __init__(self, nsqds: list[Nsqd], disks: list[FailingReads]) -> None:
        self.nsqds = nsqds
        self.disks = disks

    def fail_reads(self, *numbers: int) -> None:
        """From now on, make the logs of these nsqds unreadable, and the logs of all others
        readable."""
        for number, disk in enumerate(self.disks):
            disk.fail_with(errno.EIO if number in numbers else 0)

    def publish(self, topic: str) -> set[bytes]:
        """Publish messages to the first nsqd; return them."""
        owner = self.nsqds[0]
        owner.web.create(topic, "c")
        await_copies(owner, topic)
        bodies = [b"%06d" % number + bytes(SIZE) for number in range(COUNT)]
        producer = owner.connect()
        for at in range(0, COUNT, 500):
            producer.mpub(topic, bodies[at : at + 500])
        return set(bodies)

    @contextmanager
    def consumed(self, topic: str) -> Iterator[set[bytes]]:
        """Consume a topic of all nsqds; yield the set to which received messages are added."""
        found: set[bytes] = set()
        lock = threading.Lock()

        def take(message: Message) -> None:
            with lock:
                found.add(bytes(message.body))

        consumer = Consumer(
            topic,
            "c",
            nsqd_tcp_addresses=[each.options["tcp_address"] for each in self.nsqds],
            max_in_flight=100,
            max_tries=0,
            message_handler=take,
        )
        consumer.start()
        try:
            yield found
        finally:
            consumer.close(graceful=False)

    def sums(self, name: str, nsqds: list[Nsqd] | None = None) -> float:
        """Return the sum of a metric over these nsqds, or over all nsqds."""
        pages = [each.web.get("/metrics").body.decode() for each in nsqds or self.nsqds]
        found = re.findall(rf"^nsqd_{name}{{.*}} (.*)$", "\n".join(pages), re.M)
        return sum(map(float, found))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("copies")
    disks = []
    for name in NAMES:
        (home / f"disk-{name}").mkdir()
        disks.append(FailingReads(home / f"disk-{name}", home / name, ".topic/"))
    environs = {name: disk.environ for name, disk in zip(NAMES, disks, strict=True)}
    with (
        Etcd() as etcd,
        copying_nsqds(home, etcd, POLICIES, environs, **ON_DISK) as nsqds,
    ):
        yield Cluster(nsqds, disks)


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """Check that all nsqds are running and have all of their copies."""
    for nsqd in running.nsqds:
        if not nsqd.alive():
            nsqd.start()
    yield running
    running.fail_reads()


def is_delivered(cluster: Cluster, found: set[bytes], wanted: set[bytes]) -> bool:
    """Check that no message is lost, once all have been received."""
    eventually(lambda: len(found) >= len(wanted), BUDGET)
    skipped = cluster.sums("damages_total", [each for each in cluster.nsqds if each.alive()])
    return found == wanted and skipped == 0


def test_the_owner_cannot_read(cluster: Cluster, topic: str) -> None:
    topic = f"orders_{topic}"
    owner, *others = cluster.nsqds
    wanted = cluster.publish(topic)
    with cluster.consumed(topic) as found:
        eventually(lambda: len(found) > 1000)
        cluster.fail_reads(0)
        eventually(lambda: owner.web.get("/ping").status == 500)
        assert f"topic {topic} has been unreadable since" in owner.web.get("/ready").body.decode()
        eventually(lambda: cluster.sums("copies_mended_total", [owner]) > 0)
        cluster.fail_reads()
        assert is_delivered(cluster, found, wanted)
    eventually(lambda: owner.web.get("/ping").body == b"OK")
    assert cluster.sums("copies_takeovers_total", others) == 0


def test_another_node_takes_over_if_that_lasts(cluster: Cluster, topic: str) -> None:
    topic = f"orders_{topic}"
    owner, *others = cluster.nsqds
    wanted = cluster.publish(topic)
    before = cluster.sums("copies_takeovers_total", others)
    with cluster.consumed(topic) as found:
        eventually(lambda: len(found) > 1000)
        cluster.fail_reads(0)
        eventually(lambda: cluster.sums("copies_takeovers_total", others) > before, BUDGET)
        assert is_delivered(cluster, found, wanted)
    assert owner.alive()


def test_a_takeover_waits_for_disks_that_cannot_be_read(cluster: Cluster, topic: str) -> None:
    topic = f"orders_{topic}"
    owner, *others = cluster.nsqds
    wanted = cluster.publish(topic)
    before = cluster.sums("copies_takeovers_total", others)
    cluster.fail_reads(1, 2)
    owner.destroy()
    with cluster.consumed(topic) as found:
        eventually(lambda: all(sessions(each) == 2 for each in others), BUDGET)
        cluster.fail_reads(2)
        eventually(lambda: cluster.sums("copies_takeovers_total", others) > before, BUDGET)
        assert is_delivered(cluster, found, wanted)


def sessions(nsqd: Nsqd) -> int:
    """Return the number of nodes that an nsqd sees in the registry."""
    return len(nsqd.web.get("/copies").json()["workers"][0]["sessions"])


def test_a_start_waits_for_disks_that_cannot_be_read(cluster: Cluster, topic: str) -> None:
    topic = f"orders_{topic}"
    wanted = cluster.publish(topic)
    for nsqd in cluster.nsqds:
        nsqd.hang_up()
        nsqd.stop()
    cluster.fail_reads(0, 1, 2)
    for nsqd in cluster.nsqds:
        nsqd.launch()
    for nsqd in cluster.nsqds:
        nsqd.await_ready(is_healthy=False)
        eventually(lambda n=nsqd: cluster.sums("copies_unreadable_files", [n]) > 0, BUDGET)
    cluster.fail_reads()
    for nsqd in cluster.nsqds:
        nsqd.await_ready()
    with cluster.consumed(topic) as found:
        assert is_delivered(cluster, found, wanted)


def test_flipped_bytes_are_mended(cluster: Cluster, topic: str) -> None:
    topic = f"orders_{topic}"
    owner = cluster.nsqds[0]
    wanted = cluster.publish(topic)
    *closed, _ = sorted(owner.data.glob(f"copies/*/*/{topic}.topic/*.seg"))
    rng = random.Random(7)
    for _ in range(FLIPPED):
        flip(rng.choice(closed), rng)
    before = cluster.sums("copies_mended_total", [owner])
    with cluster.consumed(topic) as found:
        assert is_delivered(cluster, found, wanted)
    print(f"mended {cluster.sums('copies_mended_total', [owner]) - before:.0f} ranges")


def flip(path: Path, rng: random.Random) -> None:
    """Invert a byte of a file."""
    with path.open("r+b") as file:
        at = rng.randrange(path.stat().st_size)
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))
