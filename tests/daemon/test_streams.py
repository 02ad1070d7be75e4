"""Topics on other workers: no stream stalls, no message is lost, and the order is kept."""

import itertools
import time
from collections import Counter
from pathlib import Path

import pytest

from conftest import Starter
from loadtest.many_clients import Loop, owners, publish, send_as_far_as_it_goes
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import ERROR, MESSAGE, RESPONSE, Conn, Message
from support.concurrent_cases import together
from support.many_clients import Producer, Taker, frames_until_end, homes
from support.nsqd_process import Nsqd

WORKERS = 4


def create(daemon: Nsqd, topics: list[str], *channels: str) -> dict[str, int]:
    """Create topics and channels; return the worker that serves each topic."""
    for topic in topics:
        daemon.web.create(topic, *channels)
    return owners(WORKERS, topics)


def numbered(count: int, size: int) -> list[bytes]:
    return [(b"%d " % number).ljust(size, b".") for number in range(count)]


def finish_all(conn: Conn, count: int) -> list[bytes]:
    return [message.body for message in conn.take(count)]


def test_consumers_that_never_read_beside_a_hundred_that_do(four: Nsqd) -> None:
    topics = [f"t{number}" for number in range(20)]
    served_by = create(four, ["slow", *topics], *(f"c{number}" for number in range(5)))
    stuck: list[Conn] = []
    # The loads of the workers are known with a delay, so eight connections may not reach all four.
    # All connect before the first one subscribes: later, new connections avoid the topic's owner.
    while len(stuck) < 8 or set(homes(four, stuck)) != set(range(WORKERS)):
        stuck.append(four.connect(receive_buffer=4096))
    for conn in stuck:
        conn.sub("slow", "c0", rdy=2500)
    backlog = numbered(400, 20_000)
    producer = four.connect()
    for start in range(0, len(backlog), 40):
        producer.mpub("slow", backlog[start : start + 40])

    readers = [
        (four.connect().sub(topic, f"c{number}", rdy=100), topic)
        for number in range(5)
        for topic in topics
    ]
    where = homes(four, [conn for conn, _ in readers])
    pairs = {(home, served_by[topic]) for home, (_, topic) in zip(where, readers, strict=True)}
    assert len(pairs) > WORKERS, "no consumer reads a topic of another worker"
    bodies = numbered(300, 200)
    for topic in topics:
        producer.mpub(topic, bodies)
    for conn, _ in readers:
        assert finish_all(conn, len(bodies)) == bodies

    # The consumers that did not read have lost nothing.
    takers = [Taker(conn, "slow") for conn in stuck]
    loops = [Loop(taker.step) for taker in takers]
    eventually(lambda: sum(len(taker.taken) for taker in takers) >= len(backlog), 30)
    for loop in loops:
        loop.stop()
    assert Counter(m.body for t in takers for m in t.taken) == Counter(backlog)
    four.web.await_counts("slow", "c0", depth=0, in_flight_count=0)


def test_both_directions_filled_at_once(four: Nsqd) -> None:
    topics = [f"t{number}" for number in range(8)]
    served_by = create(four, topics, "c")
    producer = four.connect()
    backlog = numbered(150, 50_000)
    for topic in topics:
        for start in range(0, len(backlog), 50):
            producer.mpub(topic, backlog[start : start + 50])
    create(four, ["quick"], "c")

    # Each client consumes one topic and publishes to the next one, without reading.
    greedy = [four.connect(receive_buffer=4096).sub(topic, "c", rdy=2500) for topic in topics]
    pairs = {
        (home, served_by[topic]) for home, topic in zip(homes(four, greedy), topics, strict=True)
    }
    assert any(home != owner for home, owner in pairs)
    into = [f"into {topic}".replace(" ", "-") for topic in topics]
    create(four, into)
    bodies = numbered(24, 500_000)
    commands = [b"".join(publish(name, body) for body in bodies) for name in into]
    sent = [send_as_far_as_it_goes(conn, data) for conn, data in zip(greedy, commands, strict=True)]

    # Other clients are served.
    other = [four.connect() for _ in range(WORKERS)]
    for conn in other:
        for topic in ("quick", *into):
            conn.pub(topic, b"from another")
    quick = four.connect().sub("quick", "c", rdy=10)
    assert finish_all(quick, WORKERS) == [b"from another"] * WORKERS

    # When the greedy clients finally read, they get every answer and every message.
    def rest(conn: Conn, data: bytes) -> None:
        def read() -> bool:
            frame = conn.frame()
            if frame.kind == MESSAGE:
                message = Message.parse(frame.data)
                got.append(message.body)
                to_finish.append(message)
            else:
                assert frame == (RESPONSE, b"OK")
                answers.append(frame)
            return len(got) < len(backlog) or len(answers) < len(bodies)

        got: list[bytes] = []
        to_finish: list[Message] = []
        answers: list[object] = []
        reader = Loop(read)
        conn.socket.settimeout(30)
        conn.socket.sendall(data)
        reader.join()
        for message in to_finish:
            conn.fin(message)
        assert got == backlog

    together(
        *(
            lambda conn=conn, data=data[count:]: rest(conn, data)  # type: ignore[misc]
            for conn, data, count in zip(greedy, commands, sent, strict=True)
        )
    )
    for topic, name in zip(topics, into, strict=True):
        four.web.await_counts(topic, "c", depth=0, in_flight_count=0)
        assert four.web.counts(name)["message_count"] == len(bodies) + WORKERS


def test_every_pair_of_workers_under_load_both_ways(four: Nsqd) -> None:
    topics = [f"t{number}" for number in range(8)]
    served_by = create(four, topics, "c")
    conns = [four.connect() for _ in range(32)]
    where = homes(four, conns)
    by_home = {
        home: [c for c, at in zip(conns, where, strict=True) if at == home] for home in where
    }
    # Each home has one consumer for a topic of each worker, and two producers for all topics.
    takers, producers, pairs = [], [], set()
    for home, own in sorted(by_home.items()):
        for owner in range(WORKERS):
            topic = [name for name in topics if served_by[name] == owner][home % 2]
            takers.append(Taker(own.pop().sub(topic, "c", rdy=50), topic))
            pairs.add((home, owner))
        producers += [Producer(own.pop(), f"p{home}{n}", topics) for n in range(2)]
    assert pairs == set(itertools.product(range(WORKERS), repeat=2))

    def load(producer: Producer) -> bool:
        return producer.step() and producer.answered < 2000

    reading = [Loop(taker.step) for taker in takers]
    writing = [Loop(lambda producer=producer: load(producer)) for producer in producers]
    for loop in writing:
        loop.join()
    sent = Counter[tuple[str, bytes]]()
    for producer in producers:
        assert producer.answered == len(producer.sent) == 2000
        sent += producer.acknowledged()
    eventually(lambda: sum(len(taker.taken) for taker in takers) >= sent.total(), 60)
    for loop in reading:
        loop.stop()
    assert Counter(itertools.chain.from_iterable(taker.bodies() for taker in takers)) == sent
    for topic in topics:
        four.web.await_counts(topic, "c", depth=0, in_flight_count=0)


def test_sixteen_topics_by_one_producer(four: Nsqd) -> None:
    """All answers are OK, and every topic has its messages in the order of publishing."""
    topics = [f"t{number}" for number in range(16)]
    create(four, topics, "c")
    producer = Producer(four.connect(), "p", topics, ahead=500)
    for _ in range(10):
        assert producer.step()
    for topic in topics:
        bodies = [body for name, body in producer.sent if name == topic]
        conn = four.connect().sub(topic, "c", rdy=2500)
        assert finish_all(conn, len(bodies)) == bodies


@pytest.mark.parametrize("position", [0, 1, 17, 300])
def test_nothing_is_executed_after_the_error_of_one_topic(starter: Starter, position: int) -> None:
    """The failing topic is on a different worker from the topics of the publishes around it."""
    four = starter.prepare(mem_queue_size=0)
    topics = [f"t{number}" for number in range(16)]
    blocked = [f"bad{number}" for number in range(WORKERS)]
    four.start()
    for name in blocked:
        # A file prevents creating the topic's directory.
        (four.data / f"{name}.topic").write_bytes(b"")
    served_by = create(four, [*topics, *blocked], "c")
    assert {served_by[name] for name in blocked} == set(range(WORKERS))
    before = 0
    for name, home in itertools.product(blocked, range(WORKERS)):
        conn = four.connect()
        plan = [topics[number % len(topics)] for number in range(position)]
        after = [topics[number % len(topics)] for number in range(home, home + 64)]
        conn.send(*(publish(topic, b"x") for topic in [*plan, name, *after]))
        frames = frames_until_end(conn)
        assert frames[:-1] == [(RESPONSE, b"OK")] * len(plan)
        assert frames[-1].kind == ERROR
        assert frames[-1].data.startswith(b"E_PUB_FAILED PUB failed "), frames[-1]
        before += len(plan)
        counts = {topic: four.web.counts(topic)["message_count"] for topic in topics}
        assert sum(counts.values()) == before


@pytest.mark.parametrize("rdy", [1, 7, 100, 2500])
def test_one_consumer_sees_each_producers_order(four: Nsqd, rdy: int) -> None:
    topics = [f"t{number}" for number in range(WORKERS)]
    create(four, topics, "c")
    producers = [Producer(four.connect(), f"p{n}", topics, ahead=50) for n in range(8)]
    takers = [Taker(four.connect().sub(topic, "c", rdy=rdy), topic) for topic in topics]

    def load(producer: Producer) -> bool:
        return producer.step() and producer.answered < 400

    reading = [Loop(taker.step) for taker in takers]
    for loop in [Loop(lambda producer=producer: load(producer)) for producer in producers]:
        loop.join()
    total = sum(producer.answered for producer in producers)
    assert total == 8 * 400
    eventually(lambda: sum(len(taker.taken) for taker in takers) >= total, 60)
    for loop in reading:
        loop.stop()
    for taker in takers:
        for producer in producers:
            own = producer.name.encode() + b" "
            got = [entry for entry in taker.bodies() if entry[1].startswith(own)]
            assert got == [entry for entry in producer.sent if entry[0] == taker.topic]


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_idle_workers_do_not_spin(starter: Starter, workers: int) -> None:
    """If every worker's topics have consumers, there are periods without any activity."""
    daemon = starter(workers=workers)
    topics = [f"t{number}" for number in range(2 * workers)]
    for conn, topic in [(daemon.connect(), topic) for topic in topics * 4]:
        conn.sub(topic, "c", rdy=10)
    for topic in topics:
        daemon.connect().pub(topic, b"x")
    pids = [daemon.process.pid, *daemon.workers()]
    eventually(lambda: ticks_in_half_a_second(pids) <= 5, 30)


def ticks_in_half_a_second(pids: list[int]) -> int:
    before = sum(map(ticks, pids))
    time.sleep(0.5)
    return sum(map(ticks, pids)) - before


def ticks(pid: int) -> int:
    """Return the user and system CPU time of a process, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
