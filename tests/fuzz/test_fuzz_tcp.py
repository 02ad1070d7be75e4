"""Random and mutated input: the daemon stays up, serves other clients, and does not grow.

A debug build counts its live objects. After the topics of the garbage are deleted, the counts are
the same as before, and a clean exit leaves none.

`NSQCY_FUZZ_SEED` selects a different run.
"""

import os
import random
import socket
from collections.abc import Callable, Iterator

import pytest

from fuzz.garbage import CONVERSATIONS, some_requests
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, split_frames
from support.debug_counters import COUNTS, Counters, census, told
from support.nsqd_process import Nsqd, free_port
from support.runs import runs
from support.sanitizer import at_most

ATTACKS = runs(250)
SEED = int(os.environ.get("NSQCY_FUZZ_SEED", "20240229"))
GROWTH = 64 << 20
WARM_UP = 40


@pytest.fixture(scope="module")
def target(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("victim")
    level = "info" if COUNTS else "error"
    daemon = Nsqd(path, workers=workers, log_level=level, **fixed_addresses()).start()
    if COUNTS:
        publish_from_everywhere(daemon)
    yield daemon
    try:
        raze(daemon)
        daemon.stop()
        if COUNTS:
            found = told(daemon.log_text())
            assert len(found) == workers and is_bare(found), found
    finally:
        daemon.destroy()


@pytest.fixture
def victim(target: Nsqd) -> Iterator[Nsqd]:
    yield target
    target.hang_up()


def fixed_addresses() -> dict[str, object]:
    """Return options with ports chosen in advance: the daemon logs too little to announce its
    ports."""
    ports = [free_port(), free_port()]
    return {
        "announced": False,
        "tcp_address": f"127.0.0.1:{ports[0]}",
        "http_address": f"127.0.0.1:{ports[1]}",
    }


def publish_from_everywhere(daemon: Nsqd) -> None:
    """Open the streams between all workers. The first HTTP publish from one worker to another opens
    a permanent stream, which would change the counts later."""

    def connected() -> bool:
        for number in range(7):
            assert daemon.web.post("/pub", b"x", topic=f"everywhere{number}").status == 200
        found = census(daemon)
        return all(counters["legs"] == len(found) - 1 for counters in found.values())

    eventually(connected)
    raze(daemon)


def raze(daemon: Nsqd) -> None:
    """Delete every topic."""
    topics = daemon.web.get("/stats", format="json").json()["topics"]
    for each in topics:
        assert daemon.web.post("/topic/delete", topic=each["topic_name"]).status == 200


def is_bare(found: Counters) -> bool:
    """Return whether the only remaining objects belong to streams between workers."""
    maximum = 2 * (len(found) - 1)
    return all(
        count <= (maximum if name in ("sessions", "outputs", "legs", "streams") else 0)
        for counters in found.values()
        for name, count in counters.items()
    )


def settled(daemon: Nsqd) -> Counters:
    """Return the counts of live objects once nothing of the deleted topics remains."""

    def bare() -> Counters:
        found = census(daemon)
        return found if is_bare(found) else {}

    return eventually(bare)


def attack(port: int, data: bytes, chance: random.Random) -> bytes:
    """Send `data` in pieces, then half-close or vanish; return the answer.

    The daemon may break off the connection, but must not leave it open forever.
    """
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as link:
            at = 0
            while at < len(data):
                size = chance.choice([1, 7, 100, 5000, 1 << 20])
                link.sendall(data[at : at + size])
                at += size
            if chance.random() < 0.3:
                return b""
            link.shutdown(socket.SHUT_WR)
            while chunk := link.recv(65536):
                answer += chunk
    except TimeoutError:
        raise
    except OSError:
        pass
    return bytes(answer)


def well_formed(answer: bytes) -> None:
    """Check that the answer contains only complete frames of known kinds."""
    frames, rest = split_frames(answer)
    assert len(rest) < 8 or 4 <= int.from_bytes(rest[:4], "big") < 2**21, rest[:64]
    assert {frame.kind for frame in frames} <= {0, 1, 2}


class Witness:
    """Well-behaved client of the same daemon: its messages must always arrive."""

    def __init__(self, daemon: Nsqd, topic: str) -> None:
        self.topic = topic
        self.producer: Conn = daemon.connect()
        self.consumer = daemon.connect().sub(topic, "c", rdy=10)
        self.count = 0

    def testify(self) -> None:
        self.count += 1
        self.producer.pub(self.topic, b"%d" % self.count)
        assert [message.body for message in self.consumer.take(1)] == [b"%d" % self.count]

    def leave(self) -> None:
        self.producer.close()
        self.consumer.close()


def besiege(daemon: Nsqd, topic: str, one: Callable[[random.Random], None]) -> None:
    """Attack with a different seed each time; a failure names its seed."""
    raze(daemon)
    counters = settled(daemon) if COUNTS else {}
    processes = [daemon.process.pid, *daemon.workers()]
    witness = Witness(daemon, topic)
    # Daemons with one and with several workers receive different attacks.
    first = SEED + ATTACKS * (len(processes) > 2)
    memory = 0
    for number in range(ATTACKS):
        seed = first + number
        try:
            one(random.Random(seed))
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
        if number % 20 == 0:
            witness.testify()
            for name in ("fuzz1", "fuzz2", "fuzz3#ephemeral"):
                daemon.web.post("/topic/empty", topic=name)
                daemon.web.post("/channel/empty", topic=name, channel="c")
        if number == WARM_UP:
            memory = daemon.memory()
    witness.testify()
    witness.leave()
    raze(daemon)
    assert [daemon.process.pid, *daemon.workers()] == processes
    assert daemon.memory() - memory < at_most(GROWTH)
    if COUNTS:
        eventually(lambda: census(daemon) == counters)


@pytest.mark.random
@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_commands(victim: Nsqd, topic: str, kind: str) -> None:
    def one(chance: random.Random) -> None:
        well_formed(attack(victim.tcp_port, CONVERSATIONS[kind](chance), chance))

    besiege(victim, topic, one)


@pytest.mark.random
def test_requests(victim: Nsqd, topic: str) -> None:
    def one(chance: random.Random) -> None:
        answer = attack(victim.http_port, some_requests(chance), chance)
        assert answer[:5] in (b"", b"HTTP/"), answer[:100]

    besiege(victim, topic, one)


def test_announced_giants(victim: Nsqd, topic: str) -> None:
    """Announced lengths and incomplete bodies use memory only for the bytes that have arrived."""
    victim.connect().usable()
    before = victim.memory()
    for _ in range(100):
        conn = victim.connect()
        conn.send(b"PUB giants\n\x00\x0f\xff\xff", b"x" * 100)
        conn = victim.connect()
        conn.send(b"MPUB giants\n\x00\x4f\xff\xff\x00\x00\x00\x05\x00\x0f\xff\xff", b"x" * 100)
        conn = victim.connect()
        conn.send(b"IDENTIFY\n\x00\x4f\xff\xff", b"{")
    Witness(victim, topic).testify()
    assert victim.memory() - before < at_most(GROWTH)
    assert victim.web.counts("giants")["message_count"] == 0
