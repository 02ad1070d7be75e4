"""nsqds with copies of each other's topics, upgraded in place under load: no connection ends, no
publish is refused, and no acknowledged message is lost."""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import ERROR, MESSAGE, RESPONSE, Conn, Message
from support.copying_nsqds import await_copies, copying_nsqds, groups
from support.etcd_process import Etcd, needs_etcd
from support.nsqd_process import Nsqd
from support.replaced_workers import ReplacingNsqd

pytestmark = [needs_etcd, pytest.mark.ours]

SLOW = 90.0  # seconds
PACE = 0.005  # seconds between publishes
CHANNEL = "billing"
TOPICS = ("orders1", "orders2")
POLICIES = "[nsqd]\n\n[topic orders*]\ncopies = {copies}\n"
KEYS = "key = json:/k\n[channel orders1/billing]\norder = key\n"
LEASE = "10s"  # the default
TIMEOUT = "10s"


class Load:
    """Publishers, and a consumer for each topic, at one nsqd."""

    def __init__(self, nsqd: Nsqd, previous: "Load | None" = None) -> None:
        """previous: a load whose connections have ended"""
        self.nsqd = nsqd
        self.name = f"{nsqd.data.name}{'' if previous is None else ' again'}"
        self.accepted: set[bytes] = set() if previous is None else set(previous.accepted)
        self.received: list[bytes] = [] if previous is None else list(previous.received)
        self.refused: list[bytes] = []
        self.ended: list[BaseException] = []
        self.longest = 0.0
        self._is_over = threading.Event()
        self._is_closed = threading.Event()
        parts = [(self._publish, topic) for topic in TOPICS]
        parts += [(self._consume, topic) for topic in TOPICS]
        self._threads = [
            threading.Thread(target=self._guard, args=part, daemon=True) for part in parts
        ]
        for thread in self._threads:
            thread.start()

    def _guard(self, part: Callable[[str], None], topic: str) -> None:
        try:
            part(topic)
        except BaseException as error:
            if not self._is_closed.is_set():
                self.ended.append(error)

    def _publish(self, topic: str) -> None:
        with Conn(self.nsqd.address, timeout=SLOW) as conn:
            number = 0
            while not self._is_over.is_set():
                body = f"{self.name} {topic} {number}".encode()
                number += 1
                started = time.monotonic()
                conn.command("PUB", topic, body=body)
                frame = conn.frame()
                self.longest = max(self.longest, time.monotonic() - started)
                if frame.kind == RESPONSE:
                    self.accepted.add(body)
                else:
                    self.refused.append(frame.data)
                self._is_over.wait(PACE)

    def _consume(self, topic: str) -> None:
        with Conn(self.nsqd.address, timeout=SLOW) as conn:
            conn.negotiate(client_id="c", msg_timeout=60_000)
            conn.sub(topic, CHANNEL, 20)
            while not self._is_closed.is_set():
                frame = conn.frame()
                if frame.kind == MESSAGE:
                    message = Message.parse(frame.data)
                    self.received.append(message.body)
                    conn.fin(message)
                elif frame.kind == ERROR:
                    self.refused.append(frame.data)

    def moves(self) -> None:
        """Wait for more publishes and deliveries."""
        accepted, received = len(self.accepted), len(self.received)
        eventually(
            lambda: (
                self.ended
                or (len(self.accepted) > accepted + 20 and len(self.received) > received + 20)
            ),
            timeout=SLOW,
        )

    def stop_publishing(self) -> None:
        self._is_over.set()

    def close(self) -> None:
        """End the load. Its consumers still receive what arrives until then."""
        self._is_over.set()
        self._is_closed.set()


class Cluster:
    """Three nsqds with their loads."""

    def __init__(self, nsqds: list[Nsqd]) -> None:
        self.nsqds = nsqds
        for nsqd in nsqds:
            for topic in TOPICS:
                await_topic(nsqd, topic)
        self.loads = [Load(nsqd) for nsqd in nsqds]
        for load in self.loads:
            load.moves()

    def verify(self, *, but: int = -1) -> None:
        """Check that nothing was refused, no connection has ended, and everything that was
        acknowledged arrives. `but`: an nsqd whose clients may have noticed something."""
        for load in self.loads:
            load.stop_publishing()
        accepted = set().union(*(load.accepted for load in self.loads))

        def lost() -> set[bytes]:
            return accepted.difference(*(load.received for load in self.loads))

        eventually(lambda: not lost() or None, SLOW)
        received = sum(len(load.received) for load in self.loads)
        print(
            f"accepted {len(accepted)}, received again"
            f" {received - len(set().union(*(load.received for load in self.loads)))}, longest"
            f" waits {[round(load.longest, 2) for load in self.loads]}"
        )
        for number, load in enumerate(self.loads):
            if number != but:
                assert (load.ended, load.refused) == ([], []), load.nsqd.log_text()

    def close(self) -> None:
        for load in self.loads:
            load.close()


@contextlib.contextmanager
def running(
    home: Path, etcd: Etcd, copies: int = 3, workers: int = 1, **options: Any
) -> Iterator[Cluster]:
    policies = POLICIES.format(copies=copies)
    options = {"copies_lease": LEASE, "copies_timeout": TIMEOUT, "workers": workers} | options
    with copying_nsqds(home, etcd, policies, **options) as nsqds:
        cluster = Cluster(nsqds)
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(
    params=[
        pytest.param((3, 1), marks=pytest.mark.soak, id="c3w1"),
        pytest.param((3, 2), id="c3w2"),
        pytest.param((2, 1), id="c2w1"),
    ]
)
def cluster(tmp_path: Path, etcd: Etcd, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(tmp_path, etcd, *request.param) as cluster:
        yield cluster


@pytest.fixture
def replacing(tmp_path: Path, etcd: Etcd) -> Iterator[Cluster]:
    """nsqds whose processes can be killed at a step of a replacement."""
    with running(tmp_path, etcd, kind=ReplacingNsqd) as cluster:
        yield cluster


def upgrade(nsqd: Nsqd) -> None:
    nsqd.process.send_signal(signal.SIGUSR2)


def state(nsqd: Nsqd) -> dict[str, Any]:
    found: dict[str, Any] = nsqd.web.get("/upgrade").json()
    return found


def await_upgrade(nsqd: Nsqd, before: int) -> None:
    def is_done() -> bool:
        found = state(nsqd)
        assert not found["error"], (found, nsqd.log_text())
        return found["upgrades"] == before + 1 and not found["under_way"]

    eventually(is_done, SLOW)


def upgraded(nsqd: Nsqd) -> None:
    before, workers = state(nsqd)["upgrades"], nsqd.workers()
    upgrade(nsqd)
    await_upgrade(nsqd, before)
    assert not set(nsqd.workers()) & set(workers)


def await_topic(nsqd: Nsqd, topic: str) -> None:
    """Create a topic with its channel, and wait until it has all of its copies."""

    def create() -> bool:
        found = nsqd.web.post("/channel/create", topic=topic, channel=CHANNEL)
        return nsqd.web.post("/topic/create", topic=topic).status == found.status == 200

    eventually(create, SLOW)
    await_copies(nsqd, topic)


def settled(nsqd: Nsqd) -> dict[str, Any]:
    """Return a channel once it has no messages left."""
    page = nsqd.web.get("/stats", format="json", topic=TOPICS[0]).json()
    channel: dict[str, Any] = page["topics"][0]["channels"][0]
    return channel if not channel["depth"] + channel["in_flight_count"] else {}


def owned(nsqd: Nsqd) -> set[str]:
    return {each["group"] for each in groups(nsqd) if each["role"] == "owner"}


def test_one_node_after_the_other(cluster: Cluster) -> None:
    """Each node owns groups and holds copies of the others' groups. All keep their groups."""
    before = [owned(nsqd) for nsqd in cluster.nsqds]
    for nsqd in cluster.nsqds:
        upgraded(nsqd)
        for load in cluster.loads:
            load.moves()
    assert [owned(nsqd) for nsqd in cluster.nsqds] == before
    cluster.verify()
    for nsqd in cluster.nsqds:
        assert "no longer owning" not in nsqd.log_text()
        nsqd.stop()


def test_all_nodes_at_once(cluster: Cluster) -> None:
    before = [state(nsqd)["upgrades"] for nsqd in cluster.nsqds]
    for nsqd in cluster.nsqds:
        upgrade(nsqd)
    for nsqd, count in zip(cluster.nsqds, before, strict=True):
        await_upgrade(nsqd, count)
    for load in cluster.loads:
        load.moves()
    cluster.verify()
    assert all("no longer owning" not in nsqd.log_text() for nsqd in cluster.nsqds)


def replace(nsqd: Nsqd) -> None:
    assert isinstance(nsqd, ReplacingNsqd)
    lines = nsqd.replace()
    assert lines and all(line.endswith(": replaced") for line in lines), nsqd.log_text()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("waiting", marks=pytest.mark.soak),
        pytest.param("receiving", marks=pytest.mark.soak),
        "received",
    ],
)
def test_the_worker_serves_on_if_its_successor_is_killed(replacing: Cluster, step: str) -> None:
    nsqd = replacing.nsqds[0]
    assert isinstance(nsqd, ReplacingNsqd)
    workers, groups = nsqd.workers(), owned(nsqd)
    nsqd.kill_at(step)
    lines = nsqd.replace()
    assert "not replaced" in lines[0]
    assert (nsqd.workers(), owned(nsqd)) == (workers, groups)
    for load in replacing.loads:
        load.moves()
    replace(nsqd)
    for load in replacing.loads:
        load.moves()
    replacing.verify()


def test_a_successor_that_is_killed_after_it_has_taken_over(replacing: Cluster) -> None:
    """As at any death of a worker, its connections end. Other nodes notice nothing."""
    nsqd = replacing.nsqds[0]
    assert isinstance(nsqd, ReplacingNsqd)
    groups = owned(nsqd)
    nsqd.kill_at("taken over")
    nsqd.replace()
    eventually(lambda: owned(nsqd) == groups, SLOW)
    for load in replacing.loads[1:]:
        load.moves()
    replacing.loads[0] = Load(nsqd, replacing.loads[0])
    replacing.loads[0].moves()
    replacing.verify(but=0)


@pytest.mark.parametrize("line", ["UPGRADE: version", "worker 0: replaced"])
def test_another_node_is_killed_during_an_upgrade(tmp_path: Path, etcd: Etcd, line: str) -> None:
    """Its clients lose their connections; no other client does. The upgrade succeeds."""
    short = {"copies_lease": "3s", "copies_timeout": "3s"}
    with running(tmp_path, etcd, **short) as cluster:
        first, _, last = cluster.nsqds
        before = state(first)["upgrades"]
        upgrade(first)
        eventually(lambda: line in first.log_text(), SLOW)
        os.killpg(last.process.pid, signal.SIGKILL)
        await_upgrade(first, before)
        for load in cluster.loads[:2]:
            load.moves()
        cluster.verify(but=2)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), 2])
@pytest.mark.parametrize("policy", ["", KEYS], ids=["plain", "keys"])
def test_messages_in_flight_stay_in_flight(
    tmp_path: Path, etcd: Etcd, workers: int, policy: str
) -> None:
    """They keep their consumers, deadlines and attempts, and the channel its counters."""
    policies = POLICIES.format(copies=3) + policy
    with copying_nsqds(tmp_path, etcd, policies, workers=workers) as nsqds:
        nsqd = nsqds[0]
        await_topic(nsqd, TOPICS[0])
        producer = nsqd.connect()
        consumers = [nsqd.connect() for _ in range(4)]
        for each in consumers:
            each.negotiate(client_id="c", msg_timeout=60_000)
            each.sub(TOPICS[0], CHANNEL, 2)
        bodies = [b'{"k": %d}' % number for number in range(16)]
        for body in bodies:
            producer.pub(TOPICS[0], body)
        held = [(each, message) for each in consumers for message in each.messages(2)]
        requeued = held.pop()
        requeued[0].req(requeued[1])
        held.append((requeued[0], requeued[0].message()))
        consumers[0].send(b"FIN " + held[0][1].id[:7])
        upgraded(nsqd)
        consumers[0].send(held[0][1].id[7:] + b"\n")
        seen = Counter(message.body for _, message in held)
        for consumer, message in held[1:]:
            consumer.touch(message)
            consumer.fin(message)
        while sum(seen.values()) < len(bodies):
            for each in consumers:
                each.rdy(2)
                for message in each.drain(0.05):
                    assert message.attempts <= 2
                    seen[message.body] += 1
        assert seen == Counter(bodies)
        channel = eventually(lambda: settled(nsqd), SLOW)
        assert channel["message_count"] == len(bodies)
        assert (channel["requeue_count"], channel["timeout_count"]) == (1, 0)
        for each in (producer, *consumers):
            each.usable()


def test_without_etcd_the_workers_serve_on(tmp_path: Path, etcd: Etcd) -> None:
    """A new process could not open the groups. The next upgrade replaces the workers."""
    with running(tmp_path, etcd) as cluster:
        nsqd = cluster.nsqds[0]
        workers = nsqd.workers()
        (member,) = etcd.members
        member.kill()
        eventually(lambda: not nsqd.web.get("/copies").json()["workers"][0]["etcd"], SLOW)
        upgrade(nsqd)
        eventually(lambda: state(nsqd)["error"], SLOW)
        assert "etcd does not respond" in state(nsqd)["error"]
        assert nsqd.workers() == workers
        for load in cluster.loads:
            load.moves()
        etcd.restart(member)
        eventually(lambda: nsqd.web.get("/copies").json()["workers"][0]["etcd"], SLOW)
        upgraded(nsqd)
        cluster.verify()
