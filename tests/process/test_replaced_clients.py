"""Clients of nsqd while its workers are replaced in place: nothing is closed, lost or repeated."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, Hangup
from support.replaced_workers import ReplacingNsqd


@pytest.fixture(params=[1, 2], ids=["w1", "w2"])
def nsqd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplacingNsqd]:
    data = tmp_path / "data"
    data.mkdir()
    daemon = ReplacingNsqd(data, workers=request.param).start()
    yield daemon
    daemon.destroy()


def replace(nsqd: ReplacingNsqd) -> None:
    lines = nsqd.replace()
    assert lines and all(line.endswith(": replaced") for line in lines), nsqd.log_text()


def test_sessions_continue(nsqd: ReplacingNsqd) -> None:
    producers = [nsqd.connect() for _ in range(4)]
    consumers = [nsqd.connect() for _ in range(4)]
    for each in consumers:
        each.negotiate(client_id="c", msg_timeout=60_000)
        each.sub("t", "c", 2)
    bodies = [b"%d" % number for number in range(20)]
    producers[0].mpub("t", bodies)
    held = [(each, each.messages(2)) for each in consumers]
    producers[1].send(b"PUB t\n\0\0\0\5hal")
    consumers[0].send(b"FIN " + held[0][1][0].id[:7])
    before = nsqd.workers()
    replace(nsqd)
    assert not set(before) & set(nsqd.workers())
    producers[1].send(b"f!")
    producers[1].expect_ok()
    consumers[0].send(held[0][1][0].id[7:] + b"\n")
    seen = Counter(message.body for _, messages in held for message in messages)
    left = [(each, message) for each, messages in held for message in messages]
    for each, message in left[1:]:
        each.touch(message)
        each.fin(message)
    while sum(seen.values()) < 21:
        for each in consumers:
            for message in each.drain(0.05):
                assert message.attempts == 1
                seen[message.body] += 1
    assert seen == Counter([*bodies, b"half!"])
    stats = eventually(lambda: _finished(nsqd, 21))
    assert stats["in_flight_count"] == stats["depth"] == stats["requeue_count"] == 0
    assert stats["timeout_count"] == 0
    assert stats["message_count"] == 21


def _finished(nsqd: ReplacingNsqd, count: int) -> dict:
    page = nsqd.web.get("/stats?format=json&topic=t").json()
    channel = page["topics"][0]["channels"][0]
    done = sum(client["finish_count"] for client in channel["clients"])
    return channel if done == count else {}


def test_a_session_without_a_magic_and_unread_output_continue(nsqd: ReplacingNsqd) -> None:
    silent = nsqd.connect(magic=b"  ")
    slow = nsqd.connect(receive_buffer=4096)
    slow.sub("big", "c", 100)
    with nsqd.connect() as producer:
        for number in range(20):
            producer.pub("big", bytes([number]) * 500_000)
    replace(nsqd)
    silent.send(b"V2")
    silent.pub("big", b"last")
    bodies = []
    for _ in range(21):
        message = slow.message()
        bodies.append(message.body)
        slow.fin(message)
    assert sorted(bodies) == sorted([bytes([n]) * 500_000 for n in range(20)] + [b"last"])


def test_publishes_under_load(nsqd: ReplacingNsqd) -> None:
    ended = threading.Event()
    published: list[list[bytes]] = [[] for _ in range(4)]
    received: list[bytes] = []
    errors: list[BaseException] = []

    def publish(number: int) -> None:
        with Conn(nsqd.address) as conn:
            while not ended.is_set():
                body = b"%d-%d" % (number, len(published[number]))
                conn.pub(f"t{number % 2}", body)
                published[number].append(body)

    def consume(topic: str) -> None:
        with Conn(nsqd.address) as conn:
            conn.negotiate(client_id="c", msg_timeout=60_000)
            conn.sub(topic, "c", 50)
            while not (ended.is_set() and len(received) >= sum(map(len, published))):
                for message in conn.drain(0.3):
                    received.append(message.body)

    def guarded(run, *args) -> None:  # type: ignore[no-untyped-def]
        try:
            run(*args)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(publish, n)) for n in range(4)]
    threads += [threading.Thread(target=guarded, args=(consume, f"t{n}")) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            before = [len(each) for each in published]
            replace(nsqd)
            eventually(lambda b=before: errors or all(map(_longer, published, b)))
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert not errors
    assert Counter(received) == Counter(body for each in published for body in each)


def _longer(bodies: list[bytes], count: int) -> bool:
    return len(bodies) > count


def test_ephemeral_topics_and_channels_continue(nsqd: ReplacingNsqd) -> None:
    producer, in_topic, in_channel = (nsqd.connect() for _ in range(3))
    in_topic.negotiate(client_id="c", msg_timeout=60_000)
    in_topic.sub("e#ephemeral", "c#ephemeral", 2)
    in_channel.negotiate(client_id="c", msg_timeout=60_000)
    in_channel.sub("t", "c#ephemeral", 2)
    bodies = [b"%d" % number for number in range(10)]
    for name in ("e#ephemeral", "t"):
        producer.mpub(name, bodies)
        producer.dpub(name, 60_000, b"later")
    held = {consumer: consumer.messages(2) for consumer in (in_topic, in_channel)}
    in_topic.send(b"REQ " + held[in_topic][0].id + b" 0\n")
    replace(nsqd)
    assert _channel(nsqd, "e#ephemeral")["message_count"] == 11
    for consumer, messages in held.items():
        requeued = messages[0] if consumer is in_topic else None
        seen = []
        for message in messages:
            if message is not requeued:
                consumer.fin(message)
                seen.append(message.body)
        while len(seen) < len(bodies):
            message = consumer.message()
            assert message.attempts == (2 if requeued and message.id == requeued.id else 1)
            consumer.fin(message)
            seen.append(message.body)
        assert sorted(seen) == bodies
    for name in ("e#ephemeral", "t"):
        left = eventually(lambda name=name: _only_deferred(_channel(nsqd, name)))
        assert left["timeout_count"] == 0
    in_topic.close()
    in_channel.close()
    eventually(lambda: _channel(nsqd, "e#ephemeral") is None and _channel(nsqd, "t") is None)


def _channel(nsqd: ReplacingNsqd, topic: str) -> dict | None:
    page = nsqd.web.get(f"/stats?format=json&topic={quote(topic)}").json()
    channels = [each for found in page["topics"] or () for each in found["channels"] or ()]
    return channels[0] if channels else None


def _only_deferred(channel: dict | None) -> dict | None:
    assert channel is not None
    idle = channel["in_flight_count"] == channel["depth"] == 0
    return channel if idle and channel["deferred_count"] == 1 else None


def test_http_connections_continue(nsqd: ReplacingNsqd) -> None:
    idle, begun = (socket.create_connection(("127.0.0.1", nsqd.http_port)) for _ in range(2))
    request = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"
    idle.sendall(request + b"warm")
    assert b" 200 OK\r\n" in _answer(idle)
    begun.sendall(request + b"bo")
    replace(nsqd)
    begun.sendall(b"dy")
    idle.sendall(request + b"next")
    for each in (begun, idle):
        assert b" 200 OK\r\n" in _answer(each)
        each.close()
    consumer = nsqd.connect()
    consumer.sub("t", "c", 3)
    assert sorted(each.body for each in consumer.messages(3)) == [b"body", b"next", b"warm"]


def _answer(sock: socket.socket) -> bytes:
    sock.settimeout(20)
    data = b""
    while not data.endswith(b"OK"):
        more = sock.recv(4096)
        assert more, data
        data += more
    return data


def test_ten_replacements_leave_nothing_behind(nsqd: ReplacingNsqd) -> None:
    consumer = nsqd.connect()
    consumer.sub("t", "c", 1)
    counts = []
    for number in range(10 // nsqd.options["workers"]):
        replace(nsqd)
        with nsqd.connect() as producer:
            producer.pub("t", b"%d" % number)
        message = consumer.message()
        assert message.body == b"%d" % number
        consumer.fin(message)
        eventually(lambda: len(nsqd.workers()) == nsqd.options["workers"])
        counts.append(_descriptors(nsqd))
    assert eventually(lambda: _descriptors(nsqd) <= max(counts[:3]))


def _descriptors(nsqd: ReplacingNsqd) -> int:
    return sum(psutil.Process(pid).num_fds() for pid in [nsqd.process.pid, *nsqd.workers()])


@pytest.mark.parametrize(
    "step, continues",
    [
        ("waiting", True),
        ("receiving", True),
        ("received", True),
        ("resting", False),
        ("sent", False),
        ("committing", False),
        ("handed over", True),
        ("taken over", False),
    ],
)
def test_a_death_at_a_step_loses_nothing(tmp_path: Path, step: str, continues: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    nsqd = ReplacingNsqd(data, workers=1).start()
    try:
        consumer = nsqd.connect()
        consumer.sub("t", "c", 1)
        bodies = {b"%d" % number for number in range(10)}
        nsqd.connect().mpub("t", sorted(bodies))
        first = consumer.message()
        nsqd.kill_at(step)
        nsqd.replace()
        assert not nsqd.step_file.exists()
        if continues:
            consumer.fin(first)
            bodies.remove(first.body)
        else:
            with pytest.raises(Hangup):
                consumer.message()
            eventually(lambda: "up again" in nsqd.log_text())
            consumer = nsqd.connect()
            consumer.sub("t", "c", 1)
        found = []
        for _ in range(len(bodies)):
            message = consumer.message()
            found.append(message.body)
            consumer.fin(message)
        assert set(found) == bodies and len(found) == len(bodies)
    finally:
        nsqd.destroy()
