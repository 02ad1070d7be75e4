"""Processes that are killed or stopped: which clients are affected, which data is restored, and
which is lost."""

import itertools
import os
import signal
import socket
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from conftest import Starter
from loadtest.many_clients import Loop, owners
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, Hangup, Silence
from support.many_clients import Producer, Taker, homes, homes_of
from support.nsqd_process import Nsqd, free_port

WORKERS = 4
PROMPT = 2.0
SETTLED = 12.0
LIVE = [f"live{number}" for number in range(2 * WORKERS)]
KEPT = [f"kept{number}" for number in range(WORKERS)]
BARE = [f"bare{number}" for number in range(WORKERS)]


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix} {number} ".encode().ljust(150, b".") for number in range(count)]


def create(daemon: Nsqd) -> dict[str, int]:
    """Create the topics: LIVE has publishers and consumers, KEPT only publishers, and BARE neither.
    Return the owners of the topics."""
    names = [*LIVE, *KEPT, *BARE]
    for topic in names:
        daemon.web.create(topic, "c")
    return owners(WORKERS, names)


def ended(conn: Conn) -> bool:
    """Return whether the daemon has closed the connection."""
    try:
        while True:
            conn.frame(timeout=0.01)
    except Silence:
        return False
    except (Hangup, OSError):
        return True


def drained(daemon: Nsqd, topic: str, count: int) -> Counter[bytes]:
    conn = daemon.connect().sub(topic, "c", rdy=2500)
    return Counter(message.body for message in conn.take(count))


class Crew:
    """The worker processes by index, kept up to date when workers die."""

    def __init__(self, daemon: Nsqd) -> None:
        self.daemon = daemon
        self.pids = daemon.workers()
        self.deaths = [0] * WORKERS

    def kill(self, index: int) -> None:
        """Kill a worker that has run for a while: repeated deaths delay each restart further."""
        self.deaths[index] += 1
        if self.deaths[index] > 2:
            process = psutil.Process(self.pids[index])
            eventually(lambda: time.time() - process.create_time() > SETTLED, 2 * SETTLED)
        os.kill(self.pids[index], signal.SIGKILL)

    def await_successor(self, index: int) -> None:
        def successor() -> list[int]:
            return [pid for pid in self.daemon.workers() if pid not in self.pids]

        self.pids[index] = eventually(successor, 20)[0]


def one_death(daemon: Nsqd, crew: Crew, served_by: dict[str, int], victim: int) -> None:
    """Kill a worker while every worker has clients, which use topics of every owner."""
    by_home: dict[int, list[Conn]] = {index: [] for index in range(WORKERS)}
    while min(len(own) for own in by_home.values()) <= WORKERS:
        conns = [daemon.connect() for _ in range(2 * WORKERS)]
        for conn, home in zip(conns, homes(daemon, conns, crew.pids), strict=True):
            by_home[home].append(conn)
    doomed, safe = [], []
    topics = {owner: [t for t in LIVE if served_by[t] == owner] for owner in range(WORKERS)}
    for home, own in by_home.items():
        for owner in range(WORKERS):
            topic = topics[owner][home % 2]
            taker = Taker(own.pop().sub(topic, "c", rdy=5), topic)
            (doomed if victim in (home, owner) else safe).append(taker)
    others = [topic for topic in LIVE if served_by[topic] != victim]
    producers = [
        Producer(by_home[home].pop(), f"p{home}", others, ahead=8)
        for home in range(WORKERS)
        if home != victim
    ]
    reading = [Loop(taker.step) for taker in safe]
    writing = [Loop(producer.step) for producer in producers]

    def going_on() -> None:
        """Wait until every producer is answered and every consumer is served again."""
        answered = [producer.answered for producer in producers]
        taken = [len(taker.taken) for taker in safe]
        eventually(lambda: all(p.answered > n for p, n in zip(producers, answered, strict=True)))
        eventually(lambda: all(len(t.taken) > n for t, n in zip(safe, taken, strict=True)))

    going_on()
    crew.kill(victim)
    death = time.monotonic()
    assert daemon.web.get("/info").status == 200
    daemon.web.pub(others[0], b"x")
    assert time.monotonic() - death < PROMPT
    for taker in doomed:
        eventually(lambda taker=taker: ended(taker.conn))  # type: ignore[misc]
    going_on()
    # Publishes to the victim's topics wait for its successor, over both protocols.
    for topic in topics[victim]:
        daemon.web.pub(topic, b"x")
        daemon.connect().pub(topic, b"x")
    eventually(lambda: daemon.web.get("/ping").body == b"OK")
    crew.await_successor(victim)
    going_on()
    for loop in [*writing, *reading]:
        loop.stop()
    for producer in producers:
        assert producer.answered == len(producer.sent)
    for topic in LIVE:
        daemon.connect().sub(topic, "c")
    daemon.hang_up()


def deaths(daemon: Nsqd, count: int) -> None:
    served_by = create(daemon)
    crew = Crew(daemon)
    published: dict[str, list[bytes]] = {topic: [] for topic in KEPT}
    for turn in range(count):
        producer = daemon.connect()
        for topic in KEPT:
            more = bodies(f"{topic} {turn}", 50)
            producer.mpub(topic, more[:25])
            producer.pub(topic, *more[25:])
            published[topic] += more
        one_death(daemon, crew, served_by, turn % WORKERS)
        stats = daemon.web.topics()
        assert set(stats) == {*LIVE, *KEPT, *BARE}
        for topic in stats.values():
            assert [channel["channel_name"] for channel in topic["channels"]] == ["c"]
        for topic in KEPT:
            assert daemon.web.counts(topic, "c")["depth"] == len(published[topic])
    for topic in KEPT:
        assert drained(daemon, topic, len(published[topic])) == Counter(published[topic])


def test_a_killed_worker(starter: Starter) -> None:
    deaths(starter(mem_queue_size=0), 5)


@pytest.mark.soak
def test_a_worker_killed_fifty_times(starter: Starter) -> None:
    deaths(starter(mem_queue_size=0), 50)


@pytest.mark.parametrize("memory", [0, 10000])
def test_a_killed_master_and_an_immediate_restart(starter: Starter, memory: int) -> None:
    """The workers save their state, and the next nsqd waits for them."""
    daemon = starter(
        mem_queue_size=memory,
        tcp_address=f"127.0.0.1:{free_port()}",
        http_address=f"127.0.0.1:{free_port()}",
    )
    create(daemon)
    published = bodies("m", 2000)
    for topic in KEPT:
        daemon.connect().mpub(topic, published)
        in_flight = daemon.connect().sub(topic, "c", rdy=5)
        assert len(in_flight.messages(5)) == 5
    eventually(lambda: BARE[-1] in (daemon.data / "nsqd.dat").read_text())
    for _ in range(3):
        daemon.restart(killed=True)
    assert set(daemon.web.topics()) == {*LIVE, *KEPT, *BARE}
    for topic in KEPT:
        assert daemon.web.channel(topic, "c") is not None
        assert drained(daemon, topic, len(published)) == Counter(published)


def unread(conn: socket.socket) -> bool:
    """Return whether the daemon has not yet read everything sent to it."""
    ours, theirs = conn.getsockname()[1], conn.getpeername()[1]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if (int(local[-4:], 16), int(remote[-4:], 16)) == (theirs, ours):
            return int(queues.partition(":")[2], 16) > 0
    raise AssertionError("the kernel lists no such connection")


def test_http_publishes_when_the_owner_dies(four: Nsqd) -> None:
    """If the dead owner may have executed a publish, nsqd does not answer it, because any answer
    might be wrong. A publish that never reached the owner is refused."""
    served_by = create(four)
    victim = served_by[KEPT[0]]
    pid = four.workers()[victim]
    conns = [socket.create_connection(("127.0.0.1", four.http_port)) for _ in range(4 * WORKERS)]
    elsewhere = [
        conn for conn, home in zip(conns, homes_of(four, conns), strict=True) if home != victim
    ]
    os.kill(pid, signal.SIGSTOP)
    for number, conn in enumerate(elsewhere):
        way = b"mpub" if number % 2 else b"pub"
        body = b"one\ntwo" * 50_000 * (number % 2) or b"one"
        head = b"POST /%s?topic=%s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
        conn.sendall(head % (way, KEPT[0].encode(), len(body)) + body)
    eventually(lambda: not any(unread(conn) for conn in elsewhere))
    os.kill(pid, signal.SIGKILL)
    answers = []
    for conn in elsewhere:
        conn.settimeout(SETTLED)
        answers.append(conn.recv(100))
    assert b"" in answers
    assert all(not answer or answer.startswith(b"HTTP/1.1 503 ") for answer in answers)
    four.web.pub(KEPT[0], b"x")
    for conn in conns:
        conn.close()


def test_everything_killed_and_restarted(starter: Starter) -> None:
    daemon = starter(mem_queue_size=0)
    create(daemon)
    eventually(lambda: BARE[-1] in (daemon.data / "nsqd.dat").read_text())
    published: Counter[bytes] = Counter()
    for turn in range(3):
        producer = Producer(daemon.connect(), f"p{turn}", KEPT)
        writing = Loop(producer.step)
        eventually(lambda producer=producer: producer.answered > 200)  # type: ignore[misc]
        os.killpg(daemon.process.pid, signal.SIGKILL)
        writing.join()
        daemon.wait()
        published += Counter(body for _, body in producer.sent[: producer.answered])
        daemon.hang_up()
        daemon.start()
    assert set(daemon.web.topics()) == {*LIVE, *KEPT, *BARE}
    found: Counter[bytes] = Counter()
    for topic in KEPT:
        found += drained(daemon, topic, daemon.web.counts(topic, "c")["depth"])
    assert not published - found, "acknowledged messages are lost"
    assert max(found.values()) == 1


def test_a_second_nsqd_is_refused_at_once(four: Nsqd, starter: Starter) -> None:
    second = starter.prepare(data=four.data)
    second.launch()
    assert second.wait(10) == 1
    assert "cannot flock directory" in second.log_text()
    assert "possibly in use by another instance of nsqd" in second.log_text()
    four.connect().usable()


def test_a_stopped_worker_goes_on_where_it_was(four: Nsqd) -> None:
    served_by = create(four)
    takers = [Taker(four.connect().sub(topic, "c", rdy=50), topic) for topic in LIVE]
    producers = [Producer(four.connect(), f"p{n}", LIVE, ahead=16) for n in range(2 * WORKERS)]
    aside = [topic for topic in LIVE if served_by[topic] != 1]
    reading = [Loop(taker.step) for taker in takers]
    writing = [Loop(producer.step) for producer in producers]
    eventually(lambda: all(producer.answered > 100 for producer in producers))
    pid = four.workers()[1]
    fresh = [four.connect() for _ in range(2 * WORKERS)]
    elsewhere = [c for c, home in zip(fresh, homes(four, fresh), strict=True) if home != 1]
    assert elsewhere
    for _ in range(3):
        os.kill(pid, signal.SIGSTOP)
        try:
            # Clients that do not use the stopped worker are served.
            for conn in elsewhere:
                for topic in aside:
                    conn.pub(topic, b"beside")
        finally:
            os.kill(pid, signal.SIGCONT)
        answered = [producer.answered for producer in producers]
        eventually(
            lambda answered=answered: all(  # type: ignore[misc]
                p.answered > n for p, n in zip(producers, answered, strict=True)
            )
        )
    for loop in writing:
        loop.stop()
    sent: Counter[tuple[str, bytes]] = Counter()
    for producer in producers:
        assert producer.answered == len(producer.sent)
        sent += producer.acknowledged()

    def taken() -> Counter[tuple[str, bytes]]:
        entries = itertools.chain.from_iterable(taker.bodies() for taker in takers)
        return Counter(entry for entry in entries if entry[1] != b"beside")

    eventually(lambda: taken().total() >= sent.total(), 30)
    for loop in reading:
        loop.stop()
    assert taken() == sent
