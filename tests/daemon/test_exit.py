"""SIGTERM under full load: nsqd exits promptly and loses no acknowledged message."""

import itertools
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from conftest import Starter
from loadtest.many_clients import Loop, publish
from nsqcy.testing.certificates import make
from nsqcy.testing.encoded_connection import client_context
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import MESSAGE, UNKNOWN_ID, Conn, Hangup
from support.many_clients import Producer, Taker
from support.memory_http_client import Connection, request
from support.nsqd_process import Nsqd

LIMIT = 5.0
TOPICS = [f"t{number}" for number in range(8)]
LATE = "late"


def terminate(daemon: Nsqd) -> None:
    start = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    code = daemon.wait(30)
    assert code == 0, f"exit code {code}; the log:\n{daemon.tail()}"
    assert time.monotonic() - start < LIMIT
    daemon.hang_up()


class Ledger:
    """Record of all publishes and their outcomes, across restarts of the daemon."""

    def __init__(self) -> None:
        self.sent: Counter[tuple[str, bytes]] = Counter()
        self.acknowledged: Counter[tuple[str, bytes]] = Counter()
        self.taken: Counter[tuple[str, bytes]] = Counter()
        self.due: dict[bytes, float] = {}
        self.attempts: dict[bytes, int] = {}

    def defer(self, daemon: Nsqd, life: int) -> None:
        """Create deferred messages: some published with a delay, others requeued with one at their
        second or third attempt."""
        producer = daemon.connect()
        consumer = daemon.connect().sub(LATE, "c", rdy=0)
        for number, delay in enumerate((2000, 4000, 9000)):
            body = f"published {life} {number}".encode()
            self.due[body] = consumer.clock() + delay / 1000
            self.attempts[body] = 1
            producer.dpub(LATE, delay, body)
        fresh = {f"requeued {life} {number}".encode() for number in range(5)}
        producer.mpub(LATE, sorted(fresh))
        again = dict.fromkeys(fresh, 2)
        consumer.rdy(1)
        while again:
            message = consumer.message()
            if message.body not in fresh:  # from an earlier run, and already due
                self.arrived(message.body, message.attempts)
                consumer.fin(message)
            elif again[message.body]:
                again[message.body] -= 1
                consumer.req(message, 0)
            else:
                assert message.attempts == 3
                self.due[message.body] = consumer.clock() + 3
                self.attempts[message.body] = 4
                consumer.req(message, 3000)
                del again[message.body]
        consumer.rdy(0)
        consumer.fin(UNKNOWN_ID)
        while consumer.frame().kind == MESSAGE:
            pass  # the message stays in flight

    def arrived(self, body: bytes, attempts: int) -> None:
        assert time.monotonic() >= self.due.pop(body), f"{body!r} arrived before its due time"
        assert attempts >= self.attempts[body], "the number of attempts has decreased"

    def live(self, daemon: Nsqd, life: int, minimum: int) -> None:
        """Run producers and consumers at full load, and send SIGTERM during the load."""
        for topic in TOPICS:
            daemon.connect().sub(topic, "c")
        takers = [Taker(daemon.connect().sub(topic, "c", rdy=200), topic) for topic in TOPICS]
        producers = [Producer(daemon.connect(), f"p{life} {n}", TOPICS, ahead=64) for n in range(6)]
        loops = [Loop(each.step) for each in [*takers, *producers]]
        self.defer(daemon, life)
        eventually(lambda: all(producer.answered > minimum for producer in producers), 60)
        eventually(lambda: all(len(taker.taken) > minimum for taker in takers), 60)
        terminate(daemon)
        for loop in loops:
            loop.join()
        for producer in producers:
            self.sent += Counter(producer.sent)
            self.acknowledged += producer.acknowledged()
        for taker in takers:
            self.taken += Counter(taker.bodies())

    def settle(self, daemon: Nsqd) -> None:
        """Consume all remaining messages, and account for every message."""
        takers = [Taker(daemon.connect().sub(topic, "c", rdy=2500), topic) for topic in TOPICS]
        loops = [Loop(taker.step) for taker in takers]
        late = daemon.connect().sub(LATE, "c", rdy=100)
        while self.due:
            message = late.message(timeout=20)
            self.arrived(message.body, message.attempts)
            late.fin(message)
        for topic in [*TOPICS, LATE]:
            daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
        for loop in loops:
            loop.stop()
        for taker in takers:
            self.taken += Counter(taker.bodies())
        assert not self.acknowledged - self.taken, "acknowledged messages are lost"
        assert set(self.taken) <= set(self.sent)


def lives(starter: Starter, count: int, minimum: int) -> None:
    ledger = Ledger()
    daemon = starter.prepare()
    for life, workers in zip(range(count), itertools.cycle((1, 4, 3)), strict=False):
        daemon.options["workers"] = workers
        daemon.start()
        ledger.live(daemon, life, minimum)
    daemon.start()
    ledger.settle(daemon)
    daemon.stop()


def test_exits_under_full_load(starter: Starter) -> None:
    lives(starter, 3, 1000)


@pytest.mark.soak
def test_twenty_exits_under_full_load(starter: Starter) -> None:
    lives(starter, 20, 5000)


@pytest.mark.parametrize("workers", [1, 4])
def test_exit_beside_peers_that_do_not_care(starter: Starter, workers: int) -> None:
    daemon = starter(workers=workers)
    for topic in TOPICS:
        daemon.web.create(topic, "c")
    bodies = [b"%06d" % number + bytes(20_000) for number in range(100)]
    producer = daemon.connect()
    for topic in TOPICS:
        producer.mpub(topic, bodies)
    peers = [daemon.connect(magic=b"") for _ in range(200)]
    peers += [daemon.connect(magic=b"  V") for _ in range(20)]
    peers += [daemon.connect() for _ in range(20)]
    for number in range(40):
        half = daemon.connect()
        half.send(publish(TOPICS[number % len(TOPICS)], bytes(500_000))[:-1])
        peers.append(half)
    for number in range(40):
        topic = TOPICS[number % len(TOPICS)]
        peers.append(daemon.connect(receive_buffer=4096).sub(topic, "c", rdy=2500))
    # The buffers of consumers that do not read are full, and the daemon has served all of them.
    for topic in TOPICS:
        eventually(lambda topic=topic: daemon.web.counts(topic, "c")["in_flight_count"])  # type: ignore[misc]
    producer.usable()
    start = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait(30) == 0
    assert time.monotonic() - start < LIMIT
    for peer in peers:
        assert ends(peer)
    daemon.restart()
    for topic in TOPICS:
        conn = daemon.connect().sub(topic, "c", rdy=10)
        assert sorted(message.body for message in conn.take(len(bodies))) == bodies


def ends(conn: Conn) -> bool:
    try:
        while True:
            conn.frame(timeout=5)
    except (Hangup, OSError):
        return True


def test_while_a_worker_takes_up_its_topics(tmp_path: Path) -> None:
    """The worker stops before the next topic; the topics that it has not loaded are unchanged."""
    names = [f"topic-{number:03}" for number in range(150)]
    daemon = Nsqd(tmp_path, workers=1, durability="fsync").start()
    try:
        for name in names:
            daemon.web.pub(name, b"kept")
        killed = daemon.kill_worker(0)
        (worker,) = eventually(lambda: [pid for pid in daemon.workers() if pid != killed])
        files = Path(f"/proc/{worker}/fd")
        eventually(lambda: len(list(files.iterdir())) > 40)
        terminate(daemon)
        assert "cannot load" not in daemon.log_text()
        daemon.start()
        assert [daemon.web.counts(name)["depth"] for name in names] == [1] * len(names)
    finally:
        daemon.destroy()


def test_an_exit_answers_http_requests(nsqd: Starter, tmp_path: Path) -> None:
    files = make("server").save(tmp_path)
    daemon = nsqd(https_address="127.0.0.1:0", http_address="127.0.0.1:0", **files.options)
    daemon.web.create("t", "c")
    clients = [
        Connection(str(daemon.http_port)),
        Connection(str(daemon.https_port), tls=client_context()),
    ]
    data = request("POST", "/pub?topic=t", b"x" * 1000)
    for client in clients:
        client.request("GET", "/ping")
        client.send(data[:-500])
    for client in clients:
        client.send(data[-500:])
    daemon.process.send_signal(signal.SIGTERM)
    for client in clients:
        assert client.answer().status == 200
        assert client.rest() == b""
    assert daemon.wait(30) == 0
    daemon.start()
    daemon.web.await_counts("t", "c", depth=2)
