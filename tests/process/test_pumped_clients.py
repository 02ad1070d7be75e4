"""Clients with TLS or deflate, and HTTPS, while workers are replaced in place: the old processes
stay as pumps, and nothing is closed, lost or repeated."""

import contextlib
import os
import signal
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nsqcy.testing import encoded_connection as encoded
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, Hangup, Silence
from support.replaced_workers import ReplacingNsqd

KINDS = [(True, ""), (False, "deflate"), (True, "deflate"), (True, "snappy")]


def start(tmp_path: Path, **options: Any) -> ReplacingNsqd:
    data = tmp_path / "data"
    data.mkdir()
    files = make("nsqd").save(tmp_path)
    tls = {"tls_cert": files.certificate, "tls_key": files.key}
    return ReplacingNsqd(data, **tls, **options).start()


@pytest.fixture(params=[1, 2], ids=["w1", "w2"])
def nsqd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplacingNsqd]:
    daemon = start(tmp_path, workers=request.param)
    yield daemon
    daemon.destroy()


def replace(nsqd: ReplacingNsqd) -> None:
    lines = nsqd.replace()
    assert lines and all(line.endswith(": replaced") for line in lines), nsqd.log_text()


def pumps(nsqd: ReplacingNsqd) -> list[int]:
    """Return the process ids of the pumps. Replaced workers that still exit are waited for."""

    def named() -> list[int]:
        found = []
        for each in psutil.Process(nsqd.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.name().startswith("nsqd-pump-"):
                    found.append(each.pid)
        return found

    eventually(lambda: len(named()) == nsqd.web.get("/upgrade").json()["pumps"])
    return named()


def shown(nsqd: ReplacingNsqd, topic: str) -> list[list[Any]]:
    """Return what /stats shows of the consumers' connections."""
    page = nsqd.web.get(f"/stats?format=json&topic={topic}").json()
    names = ("remote_address", "client_id", "connect_ts", "deflate", "snappy", "tls")
    names += ("tls_version", "tls_cipher_suite", "tls_negotiated_protocol_is_mutual")
    clients = page["topics"][0]["channels"][0]["clients"]
    return sorted([each[name] for name in names] for each in clients)


def connect(nsqd: ReplacingNsqd, kind: tuple[bool, str], **options: Any) -> Conn:
    tls, codec = kind
    return encoded.connect(nsqd, tls=tls, codec=codec, **options)


def test_sessions_continue(nsqd: ReplacingNsqd) -> None:
    producers = [connect(nsqd, kind) for kind in KINDS]
    consumers = [
        connect(nsqd, kind, fields={"client_id": "c", "msg_timeout": 60_000}) for kind in KINDS
    ]
    for each in consumers:
        each.sub("t", "c", 2)
    before = shown(nsqd, "t")
    expected: Counter[bytes] = Counter()
    seen: Counter[bytes] = Counter()
    number = 0
    for _ in range(3):
        bodies = [b"%d" % n for n in range(number, number + 20)]
        number += 20
        expected.update([*bodies, b"half-%d" % number])
        producers[0].mpub("t", bodies)
        held = [(each, each.messages(2)) for each in consumers]
        producers[1].send(b"PUB t\n\0\0\0\7half")
        consumers[0].send(b"FIN " + held[0][1][0].id[:7])
        replace(nsqd)
        assert shown(nsqd, "t") == before
        producers[1].send(b"-%d" % number)
        producers[1].expect_ok()
        consumers[0].send(held[0][1][0].id[7:] + b"\n")
        for each, messages in held:
            for message in messages:
                seen[message.body] += 1
                if message is not held[0][1][0]:
                    each.touch(message)
                    each.fin(message)
        while seen != expected:
            for each in consumers:
                for message in each.drain(0.05):
                    assert message.attempts == 1
                    seen[message.body] += 1
            assert not seen - expected
    stats = eventually(lambda: finished(nsqd, number + 3))
    assert stats["in_flight_count"] == stats["depth"] == stats["requeue_count"] == 0
    assert len(pumps(nsqd)) <= nsqd.options["workers"]
    for each in producers + consumers:
        each.close()
    eventually(lambda: not pumps(nsqd))


def clients(nsqd: ReplacingNsqd) -> list[Any]:
    page = nsqd.web.get("/stats?format=json&topic=t").json()
    found: list[Any] = page["topics"][0]["channels"][0]["clients"]
    return found


def finished(nsqd: ReplacingNsqd, count: int) -> dict[str, Any]:
    page = nsqd.web.get("/stats?format=json&topic=t").json()
    channel: dict[str, Any] = page["topics"][0]["channels"][0]
    done = sum(client["finish_count"] for client in channel["clients"])
    return channel if done == count else {}


def test_large_bodies_for_a_slow_reader(nsqd: ReplacingNsqd) -> None:
    """The pump reads no more from the session than the client takes."""
    consumers = [connect(nsqd, kind, receive_buffer=4096) for kind in KINDS]
    producers = [connect(nsqd, kind) for kind in KINDS]
    for number, each in enumerate(consumers):
        each.sub(f"t{number}", "c", 100)
    replace(nsqd)
    used = [psutil.Process(pid).memory_info().rss for pid in pumps(nsqd)]
    bodies = [os.urandom(1_000_000) for _ in range(12)]
    for number, each in enumerate(producers):
        each.pub(f"t{number}", *bodies)
    replace(nsqd)
    eventually(lambda: _is_idle(pumps(nsqd)))
    for before, pid in zip(used, pumps(nsqd), strict=True):
        assert psutil.Process(pid).memory_info().rss < before + 6_000_000
    for body in bodies:
        for each in consumers:
            assert each.take(1)[0].body == body
    for each in producers + consumers:
        each.close()
    eventually(lambda: not pumps(nsqd))


def _is_idle(pids: list[int]) -> bool:
    before = [psutil.Process(pid).cpu_times() for pid in pids]
    time.sleep(0.3)
    return before == [psutil.Process(pid).cpu_times() for pid in pids]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[ReplacingNsqd]:
    daemon = start(tmp_path, workers=1)
    yield daemon
    daemon.destroy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_abrupt", [False, True])
def test_a_client_leaves(one: ReplacingNsqd, kind: tuple[bool, str], is_abrupt: bool) -> None:
    """Its last commands are executed, and its message times out."""
    consumer = connect(one, kind, fields={"msg_timeout": 8000}).sub("t", "c", 2)
    other = connect(one, kind)
    other.mpub("t", [b"1", b"2"])
    first, second = consumer.messages(2)
    consumer.rdy(1)
    replace(one)
    consumer.fin(first)
    other.command("PUB", "t", body=b"3")
    if is_abrupt:
        linger = struct.pack("ii", 1, 0)
        other.expect_ok()
        eventually(lambda: finished(one, 1))
        for each in (consumer, other):
            each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    for each in (consumer, other):
        each.close()
    eventually(lambda: not pumps(one))
    eventually(lambda: not clients(one))
    last = one.connect(timeout=30).sub("t", "c", 10)
    found = {each.body: each.attempts for each in last.messages(2)}
    assert found == {b"3": 1, second.body: 2}


def test_a_session_that_ends_says_so(one: ReplacingNsqd) -> None:
    conns = [connect(one, kind) for kind in KINDS]
    replace(one)
    for each in conns:
        each.command("WRONG")
        each.expect_error("E_INVALID invalid command WRONG")
    eventually(lambda: not pumps(one))


@pytest.mark.parametrize("kind", KINDS)
def test_nsqd_stops(one: ReplacingNsqd, kind: tuple[bool, str]) -> None:
    producer, consumer = connect(one, kind), connect(one, kind).sub("t", "c", 1)
    replace(one)
    producer.pub("t", b"1")
    assert consumer.message().body == b"1"
    assert len(pumps(one)) == 1
    one.stop()
    for each in (producer, consumer):
        with pytest.raises(Hangup):
            each.frame()


def test_nsqd_is_killed(one: ReplacingNsqd) -> None:
    conn = connect(one, (True, "deflate"))
    replace(one)
    [pid] = pumps(one)
    one.process.kill()
    with pytest.raises((Hangup, ConnectionError, ssl.SSLError)):
        conn.frame()
    eventually(lambda: not psutil.pid_exists(pid))


def test_a_pump_is_killed(nsqd: ReplacingNsqd) -> None:
    """Its connections end, and nothing else."""
    workers = nsqd.options["workers"]
    fields = {"msg_timeout": 10_000}
    consumers = [connect(nsqd, kind, fields=fields).sub("t", "c", 1) for kind in KINDS]
    plain = [nsqd.connect().sub("u", "c", 1) for _ in range(4)]
    producer = nsqd.connect()
    producer.mpub("t", [b"%d" % n for n in range(4)])
    for each in consumers:
        each.message()
    replace(nsqd)
    pids = nsqd.workers()
    for pid in pumps(nsqd):
        os.kill(pid, signal.SIGKILL)
    for each in consumers:
        with pytest.raises((Hangup, ConnectionError, ssl.SSLError)):
            each.frame()
    last = nsqd.connect(timeout=30).sub("t", "c", 10)
    assert sorted(each.body for each in last.messages(4)) == [b"0", b"1", b"2", b"3"]
    producer.mpub("u", [b"%d" % n for n in range(4)])
    assert sorted(each.message().body for each in plain) == [b"0", b"1", b"2", b"3"]
    assert nsqd.workers() == pids and len(pids) == workers
    eventually(lambda: not pumps(nsqd))


def test_a_worker_dies_while_it_is_pumped(one: ReplacingNsqd) -> None:
    consumer = connect(one, (True, "")).sub("t", "c", 1)
    one.connect().pub("t", b"1")
    consumer.message()
    replace(one)
    one.kill_worker(0)
    with pytest.raises(Hangup):
        consumer.frame()
    eventually(lambda: "up again" in one.log_text())
    assert one.connect().sub("t", "c", 1).message().body == b"1"
    eventually(lambda: not pumps(one))


@pytest.mark.parametrize("step", ["taken over", "handed over"])
def test_a_death_at_a_step(one: ReplacingNsqd, step: str) -> None:
    """Its connections end, and a worker serves on."""
    conn = connect(one, (True, ""))
    conn.pub("t", b"1")
    one.kill_at(step)
    one.replace()
    with pytest.raises((Hangup, ConnectionError, ssl.SSLError)):
        conn.frame()
    eventually(lambda: one.web.get("/ready").status == 200, 30)
    consumer = one.connect(timeout=30).sub("t", "c", 1)
    assert consumer.message().body == b"1"
    eventually(lambda: not pumps(one))


def test_what_a_pump_keeps(one: ReplacingNsqd) -> None:
    """Only its sockets, the pipe from the master, and the standard descriptors."""
    connect(one, (True, ""))
    replace(one)
    [pid] = pumps(one)
    found = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    kinds = Counter(each.partition(":")[0] for each in found[3:] if ":" in each)
    assert kinds["socket"] <= 2 and not any("memfd" in each for each in found), found
    assert "memfd:" not in Path(f"/proc/{pid}/maps").read_text()
    assert str(one.data) not in "".join(found)
    assert one.web.get("/upgrade").json()["pumps"] == 1


class TestHttps:
    def test_connections_continue(self, one: ReplacingNsqd) -> None:
        idle, begun = (_https(one) for _ in range(2))
        request = b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"
        assert _ask(idle, request + b"warm") == b"OK"
        begun.sendall(request + b"bo")
        for number in range(3):
            raw = socket.create_connection(("127.0.0.1", one.https_port))
            replace(one)
            assert len(pumps(one)) == 1
            assert _ask(idle, request + b"%4d" % number) == b"OK"
            late = encoded.client_context().wrap_socket(raw)
            assert _ask(late, b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n") == b"OK"
            late.close()
        assert _ask(begun, b"dy") == b"OK"
        assert _ask(idle, b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n") == b"OK"
        assert idle.recv(1) == b""
        begun.close()
        consumer = one.connect().sub("t", "c", 10)
        bodies = sorted(each.body for each in consumer.messages(5))
        assert bodies == [b"   0", b"   1", b"   2", b"body", b"warm"]
        eventually(lambda: not pumps(one))

    def test_a_large_answer_for_a_slow_reader(self, one: ReplacingNsqd) -> None:
        for number in range(300):
            one.web.create(f"topic-{number:050}", "channel")
        sock = _https(one)
        assert _ask(sock, b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n") == b"OK"
        replace(one)
        sock.sendall(b"GET /stats?format=json HTTP/1.1\r\nHost: h\r\n\r\n" * 20)
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        replace(one)
        data = b""
        while more := sock.recv(65536):
            data += more
        assert data.count(b"HTTP/1.1 200 OK") == 21 and data.endswith(b"OK")


def _https(nsqd: ReplacingNsqd) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", nsqd.https_port), timeout=20)
    return encoded.client_context().wrap_socket(sock, suppress_ragged_eofs=False)


def _ask(sock: ssl.SSLSocket, request: bytes) -> bytes:
    """Send the rest of a request; return the body of its answer, which is short."""
    sock.settimeout(20)
    sock.sendall(request)
    data = b""
    while not data.endswith(b"OK"):
        more = sock.recv(65536)
        assert more, data
        data += more
    assert b" 200 OK\r\n" in data
    return data.rpartition(b"\r\n\r\n")[2]


class TestDrain:
    @pytest.fixture
    def drained(self, tmp_path: Path) -> Iterator[ReplacingNsqd]:
        daemon = start(tmp_path, workers=1, upgrade_drain="1s")
        yield daemon
        daemon.destroy()

    def test_connections_end(self, drained: ReplacingNsqd) -> None:
        conns = [connect(drained, kind) for kind in KINDS]
        plain = drained.connect()
        https = _https(drained)
        friendly = connect(drained, (True, ""), fields={"goodbye": True})
        replace(drained)
        for each in conns:
            with pytest.raises(Hangup):
                each.frame(20)
        assert friendly.frame().data == b"_goodbye_"
        friendly.close()
        assert https.recv(1) == b""
        eventually(lambda: not pumps(drained))
        plain.pub("t", b"1")

    def test_messages_in_flight_are_awaited(self, drained: ReplacingNsqd) -> None:
        consumer = connect(drained, (True, "")).sub("t", "c", 1)
        drained.connect().mpub("t", [b"1", b"2"])
        message = consumer.message()
        replace(drained)
        with pytest.raises(Silence):
            consumer.frame(4)
        consumer.fin(message)
        with pytest.raises(Hangup):
            consumer.frame(20)
        last = drained.connect().sub("t", "c", 1)
        assert last.message().body == b"2"
