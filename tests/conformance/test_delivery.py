"""Delivery, fan-out and timeouts."""

import select
import time

import pytest

from conftest import one_worker
from nsqcy.testing.wire_client import Conn, Message
from support.concurrent_cases import lasted, together
from support.nsqd_process import Nsqd

SLACK = 2.0


@pytest.mark.case("C260")
def test_every_channel_gets_a_copy(shared: Nsqd, topic: str) -> None:
    consumers = [shared.connect().sub(topic, name, rdy=1) for name in ("c1", "c2")]
    shared.connect().pub(topic, b"x")
    first, second = [conn.message() for conn in consumers]
    assert first == second and first.attempts == 1 and first.body == b"x"


@pytest.mark.case("C261")
def test_the_first_channel_gets_the_backlog(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"1", b"2", b"3")
    first = shared.connect().sub(topic, "c1", rdy=10)
    assert [message.body for message in first.messages(3)] == [b"1", b"2", b"3"]
    second = shared.connect().sub(topic, "c2", rdy=10)
    second.nothing()


@pytest.mark.case("C262")
def test_order_of_publishing(shared: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(100)]
    shared.connect().pub(topic, *bodies)
    conn = shared.connect().sub(topic, "c", rdy=100)
    assert [message.body for message in conn.messages(100)] == bodies


@pytest.mark.case("C263")
def test_fair_shares(shared: Nsqd, topic: str) -> None:
    consumers = [shared.connect().sub(topic, "c", rdy=100) for _ in range(3)]
    for conn in consumers:
        conn.barrier()
    shared.connect().pub(topic, *[b"x"] * 300)
    ids = {message.id for conn in consumers for message in conn.messages(100)}
    assert len(ids) == 300


def receiver(consumers: list[Conn]) -> tuple[int, Message]:
    """Return the next message and the consumer that receives it."""
    ready, _, _ = select.select([conn.socket for conn in consumers], [], [], 10.0)
    assert len(ready) == 1, ready
    number = [conn.socket for conn in consumers].index(ready[0])
    return number, consumers[number].message()


@pytest.mark.case("C264")
def test_idle_consumers_take_turns(shared: Nsqd, topic: str) -> None:
    consumers = [shared.connect().sub(topic, "c", rdy=1) for _ in range(3)]
    for conn in consumers:
        conn.barrier()
    producer = shared.connect()
    turns = []
    for _ in range(9):
        producer.pub(topic, b"x")
        number, message = receiver(consumers)
        consumers[number].fin(message)
        consumers[number].barrier()
        turns.append(number)
    assert set(turns) == {0, 1, 2}
    assert turns == turns[:3] * 3


@pytest.mark.case("C265", "C266", "C267", "C268", "C270")
def test_message_timeouts(shared: Nsqd, topic: str) -> None:
    web = shared.web

    def impatient(name: str) -> tuple[Conn, float]:
        conn = shared.connect()
        conn.identify(msg_timeout=1000)
        conn.sub(name, "c")
        start = conn.clock()
        conn.rdy(1)
        return conn, start

    def an_unfinished_message_comes_again() -> None:
        name = topic + "a"
        shared.connect().pub(name, b"x")
        conn, start = impatient(name)
        first = conn.message()
        again = conn.message()
        lasted(start, 1.0, SLACK)
        assert (first.attempts, again.attempts) == (1, 2)
        assert (again.id, again.timestamp) == (first.id, first.timestamp)
        web.await_counts(name, "c", timeout_count=1, requeue_count=0, in_flight_count=1)
        assert web.client(name, "c")["in_flight_count"] == 1

    def the_late_owner_owns_it_no_longer() -> None:
        name = topic + "b"
        shared.connect().pub(name, b"x")
        late, _ = impatient(name)
        message = late.message()
        late.rdy(0)
        other = shared.connect().sub(name, "c", rdy=1)
        again = other.message()
        assert (again.id, again.attempts) == (message.id, 2)
        late.fin(message)
        text = f"E_FIN_FAILED FIN {message.id.decode()} failed client does not own message"
        late.expect_error(text, fatal=False)
        other.fin(again)
        other.barrier()
        web.await_counts(name, "c", in_flight_count=0, depth=0)

    def a_leaving_consumer_keeps_its_messages_until_the_timeout() -> None:
        name = topic + "c"
        shared.connect().pub(name, b"x")
        gone, start = impatient(name)
        gone.message()
        gone.close()
        other = shared.connect().sub(name, "c", rdy=1)
        web.await_counts(name, "c", client_count=1, in_flight_count=1, depth=0)
        assert other.message().attempts == 2
        lasted(start, 1.0, SLACK)

    together(
        an_unfinished_message_comes_again,
        the_late_owner_owns_it_no_longer,
        a_leaving_consumer_keeps_its_messages_until_the_timeout,
    )


@pytest.mark.case("C269")
@one_worker
def test_attempts_wrap(shared: Nsqd, topic: str) -> None:
    shared.connect().pub(topic, b"x")
    conn = shared.connect()
    conn.identify(heartbeat_interval=60_000)  # a heartbeat would be an unexpected frame
    conn.sub(topic, "c", rdy=1)
    message = conn.message()
    requeue = b"REQ " + message.id + b" 0\n"
    size = 8 + 26 + 1
    conn.socket.settimeout(30)
    for attempts in range(2, 65539):
        conn.socket.sendall(requeue)
        frame = conn.socket.recv(4096)
        while len(frame) < size:
            frame += conn.socket.recv(4096)
        assert len(frame) == size and Message.parse(frame[8:]).attempts == attempts % 65536


@pytest.mark.case("C271", "C272", "C273", "C274", "C275", "C276")
def test_how_soon_a_message_leaves(shared: Nsqd, topic: str) -> None:
    def consumer(name: str, rdy: int, **fields: int) -> Conn:
        conn = shared.connect(pong=False)
        conn.identify(**fields)
        conn.sub(name, "c", rdy=rdy)
        conn.barrier()
        return conn

    def by_the_buffer_timeout() -> None:
        conn = consumer(topic + "a", 10, output_buffer_timeout=1000)
        start = time.monotonic()
        shared.connect().pub(topic + "a", b"x")
        conn.message()
        assert time.monotonic() - start < 1.05 + SLACK

    def before_an_answer() -> None:
        conn = consumer(topic + "b", 10, output_buffer_timeout=5000)
        start = time.monotonic()
        shared.connect().pub(topic + "b", b"x")
        shared.web.await_counts(topic + "b", "c", in_flight_count=1)
        conn.fin(b"0123456789abcdef")
        conn.message()
        text = "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
        conn.expect_error(text, fatal=False)
        assert time.monotonic() - start < SLACK

    def before_a_fatal_error() -> None:
        conn = consumer(topic + "c", 10, output_buffer_timeout=5000)
        start = time.monotonic()
        shared.connect().pub(topic + "c", b"x")
        shared.web.await_counts(topic + "c", "c", in_flight_count=1)
        conn.command("BAD")
        conn.message()
        conn.expect_error("E_INVALID invalid command BAD")
        assert time.monotonic() - start < SLACK

    def at_once_without_a_buffer() -> None:
        conn = consumer(topic + "d", 10, output_buffer_size=-1)
        start = time.monotonic()
        shared.connect().pub(topic + "d", b"x")
        conn.message()
        assert time.monotonic() - start < SLACK

    def no_later_than_the_next_heartbeat() -> None:
        conn = consumer(topic + "e", 10, output_buffer_timeout=-1, heartbeat_interval=2000)
        shared.connect().pub(topic + "e", b"x")
        conn.message()

    def at_once_when_no_more_may_follow() -> None:
        conn = consumer(topic + "f", 1, output_buffer_timeout=30000)
        start = time.monotonic()
        shared.connect().pub(topic + "f", b"x")
        conn.message()
        assert time.monotonic() - start < SLACK

    together(
        by_the_buffer_timeout,
        before_an_answer,
        before_a_fatal_error,
        at_once_without_a_buffer,
        no_later_than_the_next_heartbeat,
        at_once_when_no_more_may_follow,
    )


@pytest.mark.case("C277", "C278")
@pytest.mark.parametrize(
    ("rate", "minimum", "maximum"), [(42, 0.38, 0.48), (99, 0.98, 1.0)], ids=["42", "99"]
)
def test_sampling(shared: Nsqd, topic: str, rate: int, minimum: float, maximum: float) -> None:
    producer = shared.connect()
    producer.mpub(topic, [b"x"] * 5000)
    conn = shared.connect()
    conn.identify(sample_rate=rate)
    conn.sub(topic, "c", rdy=2500)
    taken = len(list(conn.drain()))
    assert minimum <= taken / 5000 <= maximum
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0)


@pytest.mark.case("C279")
def test_a_deleted_topic_comes_back_with_the_next_publish(shared: Nsqd, topic: str) -> None:
    producer = shared.connect()
    producer.pub(topic, b"1", b"2")
    shared.web.do("delete", topic)
    producer.pub(topic, b"3")
    shared.web.await_counts(topic, message_count=1, depth=1)
