"""TLS and compressed connections: new certificates, decompression bombs, many clients, and clients
that do not read."""

import os
import signal
import socket
import ssl
import time
import zlib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from conftest import Starter, one_worker, three_workers
from nsqcy.testing.certificates import Files, make
from nsqcy.testing.encoded_connection import client_context, connect, start_tls
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, sized
from support.nsqd_process import Nsqd
from support.sanitizer import at_most

MB = 1 << 20


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make("server").save(tmp_path)


def name_of(daemon: Nsqd) -> str:
    """Return the common name of the certificate that a new connection receives."""
    conn = connect(daemon, tls=True)
    assert isinstance(conn.socket, ssl.SSLSocket)
    shown = conn.socket.getpeercert(binary_form=True)
    assert shown is not None
    subject = x509.load_der_x509_certificate(shown).subject
    conn.close()
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def replace(files: Files, name: str) -> None:
    fresh = make(name)
    files.certificate.write_text(fresh.certificate)
    files.key.write_text(fresh.key)


def names_of_all(daemon: Nsqd, workers: int) -> set[str]:
    return {name_of(daemon) for _ in range(3 * workers)}


@three_workers
def test_hangup_swaps_certificates(nsqd: Starter, workers: int, files: Files) -> None:
    daemon = nsqd(**files.options)
    old = connect(daemon, tls=True)
    assert names_of_all(daemon, workers) == {"server"}
    replace(files, "renewed")
    assert names_of_all(daemon, workers) == {"server"}
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: "TLS: reloaded the certificate files" in daemon.log_text())
    eventually(lambda: names_of_all(daemon, workers) == {"renewed"})
    old.usable()
    daemon.kill_worker(0)
    eventually(lambda: daemon.web.get("/ping").body == b"OK")
    assert names_of_all(daemon, workers) == {"renewed"}


def test_bad_new_files_change_nothing(nsqd: Starter, workers: int, files: Files) -> None:
    daemon = nsqd(**files.options)
    files.key.write_text(make("stranger").key)
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: "failed to build TLS config - " in daemon.log_text())
    assert "ERROR: SIGHUP: failed to instantiate" in daemon.log_text()
    assert names_of_all(daemon, workers) == {"server"}
    files.key.unlink()
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: "no such file or directory" in daemon.log_text())
    assert names_of_all(daemon, workers) == {"server"}


def bomb(size: int) -> bytes:
    """Return compressed commands that do nothing. Decompressed, they are a thousand times
    larger."""
    line = b"NOP ".ljust(1023, b"x") + b"\n"
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    pieces = [deflater.compress(line * 1024) for _ in range(size // MB)]
    return b"".join(pieces) + deflater.flush(zlib.Z_SYNC_FLUSH)


@one_worker
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_bombs(tls: bool, nsqd: Starter, files: Files) -> None:
    """Clients send 256 MB of commands in less than a megabyte. Other clients are served, and memory
    use stays low."""
    daemon = nsqd(**files.options)
    other = connect(daemon, tls=tls, codec="deflate")
    other.usable()
    conns = [connect(daemon, tls=tls, codec="deflate") for _ in range(4)]
    encoded = bomb(64 * MB)
    tail = zlib.compressobj(9, zlib.DEFLATED, -15)
    ending = tail.compress(b"PUB usable\n" + sized(b"x")) + tail.flush(zlib.Z_SYNC_FLUSH)
    before = daemon.memory()
    for conn in conns:
        conn.socket.inner.sendall(encoded + ending)  # type: ignore[attr-defined]
    maximum = 0
    for conn in conns:
        while True:
            maximum = max(maximum, daemon.memory())
            started = time.monotonic()
            other.usable()
            assert time.monotonic() - started < 2
            try:
                conn.frame(0.02)
                break
            except TimeoutError:
                continue
            except Exception as error:
                if type(error).__name__ != "Silence":
                    raise
    assert maximum - before < at_most(24 * MB)


def settled(daemon: Nsqd) -> int:
    """Return the number of messages sent to the consumer, once that number has stopped growing."""
    counts = [0]

    def stands() -> bool:
        counts.append(daemon.web.counts("t", "c")["in_flight_count"])
        return counts[-1] > 0 and counts[-5:] == counts[-1:] * 5

    eventually(stands)
    return counts[-1]


def test_a_consumer_that_does_not_read(nsqd: Starter, files: Files) -> None:
    """The amount encoded for the consumer is bounded, and it receives everything when it reads
    again."""
    daemon = nsqd(**files.options)
    bodies = [os.urandom(20_000) for _ in range(1000)]
    daemon.web.create("t", "c")
    stuck = connect(daemon, tls=True, codec="deflate", receive_buffer=4096)
    producer = connect(daemon, tls=True)
    for start in range(0, 1000, 50):
        producer.mpub("t", bodies[start : start + 50])
    before = daemon.memory()
    stuck.sub("t", "c", rdy=1000)
    assert settled(daemon) < 500
    assert daemon.memory() - before < at_most(8 * MB)
    assert sorted(message.body for message in stuck.take(1000)) == sorted(bodies)


def half_a_handshake(daemon: Nsqd) -> Conn:
    conn = daemon.connect()
    conn.negotiate(tls_v1=True)
    outgoing = ssl.MemoryBIO()
    tls = client_context().wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    conn.send(outgoing.read())
    return conn


def test_clients_killed_in_their_handshake(nsqd: Starter, files: Files) -> None:
    daemon = nsqd(**files.options)
    plain = daemon.connect().sub("t", "c")
    descriptors = open_files(daemon)
    for number in range(60):
        conn = half_a_handshake(daemon)
        if number % 2:
            linger = socket.SO_LINGER
            conn.socket.setsockopt(socket.SOL_SOCKET, linger, b"\1\0\0\0\0\0\0\0")
        conn.close()
    connect(daemon, tls=True).usable()
    plain.usable()
    eventually(lambda: open_files(daemon) <= descriptors + 1)
    assert "Error:" not in daemon.log_text()


def open_files(daemon: Nsqd) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in daemon.workers())


@three_workers
def test_many_at_once(nsqd: Starter, files: Files) -> None:
    daemon = nsqd(**files.options)
    conns = [half_a_handshake(daemon) for _ in range(200)]
    daemon.connect().usable()
    fresh = connect(daemon, tls=True)
    fresh.usable()
    for conn in conns:
        conn.socket.settimeout(10)
        assert conn.socket.recv(5)[:3] == b"\x16\x03\x03"


def test_a_stopping_daemon_says_goodbye(nsqd: Starter, files: Files) -> None:
    daemon = nsqd(**files.options)
    waiting = daemon.connect()
    waiting.negotiate(tls_v1=True)
    conn = daemon.connect()
    conn.negotiate(tls_v1=True)
    start_tls(conn)
    conn.expect_ok()
    daemon.stop()
    # nsqd announces the end of a TLS connection; a client would report any other end as an error.
    conn.eof()
    waiting.eof()
