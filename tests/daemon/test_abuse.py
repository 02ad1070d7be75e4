"""Clients that abuse the daemon. The daemon does not grow, it serves other clients, and each
connection ends as it should."""

import contextlib
import os
import re
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter
from loadtest.many_clients import publish, send_as_far_as_it_goes
from nsqcy.testing.certificates import make
from nsqcy.testing.encoded_connection import connect
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import RESPONSE, Conn, Hangup, batch, sized
from support.concurrent_cases import together
from support.many_clients import pss
from support.nsqd_process import Nsqd
from support.sanitizer import at_most

MAX_BYTES = 64 << 20
MAX_MSG_SIZE = 1 << 20
MAX_BODY_SIZE = 5 << 20


@contextlib.contextmanager
def growing_at_most(daemon: Nsqd, maximum: int) -> Iterator[None]:
    """Check that the daemon still serves clients after the block, and has grown by at most
    `maximum`."""
    for conn in [daemon.connect() for _ in range(8)]:
        conn.usable()
    before = pss(daemon)
    yield
    for conn in [daemon.connect() for _ in range(8)]:
        conn.usable()
    assert pss(daemon) - before <= at_most(maximum)


@pytest.fixture(params=[1, 4], ids=["w1", "w4"])
def victim(request: pytest.FixtureRequest, starter: Starter) -> Nsqd:
    return starter(workers=request.param)


def test_consumers_that_never_read(victim: Nsqd) -> None:
    channels = [f"c{number}" for number in range(16)]
    for topic in ("t0", "t1", "t2", "t3"):
        victim.web.create(topic, *channels)
        producer = victim.connect()
        for _ in range(20):
            producer.mpub(topic, [bytes(10_000)] * 50)
    with growing_at_most(victim, MAX_BYTES):
        stuck = [
            (f"t{number % 4}", channel, victim.connect(receive_buffer=4096, pong=False))
            for number, channel in enumerate(channels)
        ]
        for topic, channel, conn in stuck:
            conn.negotiate(heartbeat_interval=2000)
            conn.sub(topic, channel, rdy=2500)
        for topic, channel, _ in stuck:
            victim.web.await_counts(topic, channel, client_count=1)
            eventually(lambda at=(topic, channel): victim.web.counts(*at)["in_flight_count"])  # type: ignore[misc]
    # Each consumer is dropped once it has read nothing for a heartbeat interval.
    for topic, channel, _ in stuck:
        victim.web.await_counts(topic, channel, client_count=0)


@pytest.mark.parametrize("workers", [1, 3])
def test_consumers_that_are_reset_while_their_output_waits(
    starter: Starter, workers: int, tmp_path: Path
) -> None:
    """nsqd detects the end of the connection at once, even if it cannot write and need not
    read. As in NSQ, the messages wait for their timeouts."""
    victim = starter(workers=workers, **make("server").save(tmp_path).options)
    bodies = [os.urandom(10_000) for _ in range(500)]
    ways = [(tls, codec) for tls in (False, True) for codec in ("", "snappy", "deflate")]
    for number, (tls, codec) in enumerate(ways):
        victim.web.create(f"t{number}", "c")
        victim.connect().mpub(f"t{number}", bodies)
        conn = connect(
            victim, tls=tls, codec=codec, receive_buffer=4096, fields={"msg_timeout": 1000}
        )
        conn.sub(f"t{number}", "c", rdy=2500)
        eventually(lambda n=number: victim.web.counts(f"t{n}", "c")["in_flight_count"])  # type: ignore[misc]
        conn.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.close()
    for number in range(len(ways)):
        victim.web.await_counts(f"t{number}", "c", client_count=0)
        victim.web.await_counts(f"t{number}", "c", in_flight_count=0, depth=len(bodies))
        taken = victim.connect().sub(f"t{number}", "c", rdy=100).take(len(bodies))
        assert sorted(message.body for message in taken) == sorted(bodies)


def test_a_client_that_never_reads_its_answers(victim: Nsqd) -> None:
    """nsqd stops reading from the client, so its answers do not pile up."""
    with growing_at_most(victim, MAX_BYTES):
        conn = victim.connect(receive_buffer=4096)
        commands = (b"PUB void#ephemeral\n" + sized(b"x")) * 2_000_000
        assert send_as_far_as_it_goes(conn, commands) < len(commands)


def test_a_publisher_of_one_byte_at_a_time(victim: Nsqd) -> None:
    body = bytes(range(256)) * 40
    victim.web.create("t", "c")
    with growing_at_most(victim, MAX_BYTES):
        slow = [victim.connect() for _ in range(8)]
        for byte in publish("t", body) + b"MPUB t\n" + batch([body[:100]] * 3):
            for conn in slow:
                conn.send(bytes([byte]))
        for conn in slow:
            conn.expect_ok()
            conn.expect_ok()
    got = victim.connect().sub("t", "c", rdy=100).take(8 * 4)
    assert sorted(message.body for message in got) == sorted([body, *[body[:100]] * 3] * 8)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"PUB t\n", b"E_BAD_MESSAGE PUB "),
        (b"DPUB t 100\n", b"E_BAD_MESSAGE DPUB "),
        (b"MPUB t\n", b"E_BAD_BODY MPUB "),
        (b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY "),
        (b"AUTH\n", b"E_BAD_BODY AUTH "),
    ],
)
def test_a_length_of_four_gigabytes(four: Nsqd, command: bytes, error: bytes) -> None:
    with growing_at_most(four, MAX_BYTES):
        for length in (0xFFFFFFFF, 0x80000000, 0x7FFFFFFF):
            for conn in [four.connect() for _ in range(20)]:
                conn.send(command, struct.pack(">I", length), bytes(1000))
                conn.expect_error(error, prefix=True, reset=True)
    assert four.web.topic("t") is None


def test_a_body_over_the_limit(victim: Nsqd) -> None:
    with growing_at_most(victim, MAX_BYTES):
        for _ in range(20):
            conn = victim.connect()
            with contextlib.suppress(OSError):  # nsqd may have closed the connection by then
                conn.send(publish("t", bytes(MAX_MSG_SIZE + 1)))
            text = f"E_BAD_MESSAGE PUB message too big {MAX_MSG_SIZE + 1} > {MAX_MSG_SIZE}"
            conn.expect_error(text, reset=True)
            conn = victim.connect()
            with contextlib.suppress(OSError):
                conn.send(b"MPUB t\n", batch([bytes(MAX_MSG_SIZE)] * 6))
            conn.expect_error(b"E_BAD_BODY MPUB body too big ", prefix=True, reset=True)
    assert victim.web.topic("t") is None


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip(f"this test needs 6000 open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def sockets(daemon: Nsqd) -> int:
    """Return the workers' number of open sockets."""
    return sum(
        target.startswith("socket:")
        for pid in daemon.workers()
        for target in links(Path(f"/proc/{pid}/fd"))
    )


def links(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            yield str(path.readlink())


def silent(victim: Nsqd, count: int) -> list[Conn]:
    before = sockets(victim)
    conns = [victim.connect(magic=b"") for _ in range(count)]
    eventually(lambda: sockets(victim) >= before + count, 30)
    return conns


@pytest.mark.usefixtures("many_files")
def test_five_thousand_connections_that_send_nothing(victim: Nsqd) -> None:
    with growing_at_most(victim, MAX_BYTES):
        silent(victim, 5000)


def limit_files(pid: int, room: int) -> None:
    """Let a process open `room` more files."""
    used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1 + room, hard))


def test_more_connections_than_descriptors(victim: Nsqd) -> None:
    """nsqd pauses instead of retrying accept in a loop, and serves the connected clients."""
    client = victim.connect()
    client.usable()
    assert victim.process is not None
    pids = [victim.process.pid, *victim.workers()]
    for pid in pids:
        limit_files(pid, 10)
    begun = time.monotonic()
    flood = [socket.create_connection(victim.address) for _ in range(200)]
    eventually(lambda: "Too many open files" in victim.log_text())
    for _ in range(1000):
        client.pub("t", b"x")
    for pid in pids:
        limit_files(pid, 1000)
    for sock in flood:
        sock.close()
    eventually(lambda: victim.web.get("/ping").status == 200)
    page = victim.web.get("/metrics").body.decode()
    pauses = float(re.findall(r"^nsqd_accept_pauses_total (\S+)", page, re.MULTILINE)[0])
    # The shortest pause is 0.1 s.
    assert 1 <= pauses <= 10 * (time.monotonic() - begun) + 1
    assert victim.log_text().count("accept:") == 1


@pytest.mark.soak
@pytest.mark.usefixtures("many_files")
def test_connections_that_send_nothing_are_closed(victim: Nsqd) -> None:
    with growing_at_most(victim, MAX_BYTES):
        for conn in silent(victim, 5000):
            conn.eof(timeout=120)


@pytest.mark.parametrize(("workers", "budget"), [(1, 256 << 20), (4, 64 << 20)])
def test_two_hundred_half_sent_bodies(starter: Starter, workers: int, budget: int) -> None:
    victim = starter(workers=workers, max_input_bytes=budget)
    bodies = [bytes(100_000)] * 49
    command = b"MPUB t\n" + batch(bodies)
    assert 0.9 * MAX_BODY_SIZE < len(command) < MAX_BODY_SIZE
    sent = [0] * 200
    with growing_at_most(victim, budget * workers):
        half = [victim.connect() for _ in sent]
        for _ in range(5):
            for number, conn in enumerate(half):
                rest = command[sent[number] : -1]
                # A connection that stalled for too long is dropped.
                with contextlib.suppress(OSError):
                    sent[number] += send_as_far_as_it_goes(conn, rest, quiet=0.001)
        assert sum(sent) > budget * workers
    # When most clients disconnect, there is room again for the others and for new ones.
    for conn in half[10:]:
        conn.close()
    published = 0
    for conn, count in zip(half[:10], sent, strict=False):
        with contextlib.suppress(OSError):
            conn.send(command[count:])
        try:
            frame = conn.frame(timeout=60)
        except Hangup:  # the client was dropped, and its final error was lost
            continue
        assert frame == (RESPONSE, b"OK") or frame.data.startswith(b"E_BAD_"), frame
        published += frame.kind == RESPONSE
    for _ in range(10):
        victim.connect().mpub("t", bodies)
    assert victim.web.counts("t")["message_count"] == (published + 10) * len(bodies)


def test_whoever_stalls_on_others_memory_is_dropped(starter: Starter) -> None:
    """A complete body is received even if half-sent bodies fill the input."""
    victim = starter(workers=1, max_input_bytes=MAX_BODY_SIZE)
    bodies = [bytes(100_000)] * 52
    command = b"MPUB t\n" + batch(bodies)
    half = [victim.connect() for _ in range(3)]
    for conn in half:
        conn.send(command[:-1])
    victim.connect(timeout=50).mpub("t", bodies)
    told, _, _ = select.select([conn.socket for conn in half], [], [], 30)
    dropped = next(conn for conn in half if conn.socket in told)
    dropped.expect_error(b"E_BAD_", prefix=True, reset=True)


def test_a_body_as_large_as_all_the_input_allowed(starter: Starter) -> None:
    victim = starter(workers=1, max_input_bytes=MAX_BODY_SIZE)
    bodies = [bytes(100_000)] * 52
    together(*(lambda: victim.connect(timeout=30).mpub("t", bodies) for _ in range(8)))
    assert victim.web.counts("t")["message_count"] == 8 * len(bodies)
