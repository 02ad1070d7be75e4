"""Workers leave no cyclic garbage, because objects that survive a full collection are never
collected later."""

import contextlib
import http.client
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Starter, one_worker, three_workers
from loadtest.bench.scenarios.strangers import tls12_hello
from nsqcy.names import host_port
from nsqcy.nsqd.copies.wire import Greeting, encode
from nsqcy.testing.certificates import make
from nsqcy.testing.encoded_connection import client_context, connect
from support.nsqd_process import Nsqd, free_port

_COLLECTED = re.compile(r"generation \d collected: (\d+)")


def collected(daemon: Nsqd) -> int:
    """Return the objects that garbage collections have freed in the workers."""
    assert daemon.web.post("/debug/freememory").status == 200
    text = daemon.web.get("/debug/pprof/heap").body.decode()
    workers = re.split(r"(?m)^== ", text)[2:]
    return sum(int(each) for part in workers for each in _COLLECTED.findall(part))


def consume(daemon: Nsqd) -> None:
    daemon.web.pub("t", b"x")
    with daemon.connect() as conn:
        conn.negotiate(msg_timeout=60_000)
        conn.sub("t", "c")
        conn.rdy(1)
        conn.frame()


def fail(daemon: Nsqd) -> None:
    with daemon.connect() as conn:
        conn.send(b"NOTHING\n")
        conn.frame()


def compressed(daemon: Nsqd) -> None:
    for feature in ({"deflate": True}, {"snappy": True}):
        with daemon.connect() as conn:
            conn.negotiate(**feature)


def large(daemon: Nsqd) -> None:
    assert daemon.web.post("/mpub?topic=large", b"x\n" * 10_000).status == 200


def pages(daemon: Nsqd) -> None:
    for path in ("/stats", "/stats?format=json", "/metrics", "/ping", "/nothing", "/pub"):
        daemon.web.get(path)


def topics(daemon: Nsqd) -> None:
    daemon.web.create("gone", "c")
    daemon.web.do("delete", "gone", "c")
    daemon.web.do("delete", "gone")


def lost(daemon: Nsqd) -> None:
    """Consumers disconnect with messages in flight and after an error."""
    for command in (b"NOP\n", b"FIN 0123456789abcdef\n", b"PUB t\n\x7f\xff\xff\xff"):
        daemon.web.pub("t", b"x")
        with daemon.connect() as conn:
            conn.sub("t", "c", rdy=1)
            conn.message()
            conn.send(command)


def deferred(daemon: Nsqd) -> None:
    assert daemon.web.post("/pub", b"x", topic="deferred", defer="1").status == 200
    with daemon.connect() as conn:
        conn.sub("deferred", "c", rdy=1)
        conn.req(conn.message(), 1)
        conn.fin(conn.message())


def broken_requests(daemon: Nsqd) -> None:
    for request in (b"bad\r\n\r\n", b"POST /pub?topic=t HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"):
        with socket.create_connection(("127.0.0.1", daemon.http_port)) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1000)


def encrypted(daemon: Nsqd) -> None:
    for codec in ("", "snappy", "deflate"):
        with connect(daemon, tls=True, codec=codec) as conn:
            conn.sub("t", "c")


def encrypted_pages(daemon: Nsqd) -> None:
    address = "127.0.0.1", daemon.https_port
    link = http.client.HTTPSConnection(*address, context=client_context())
    for method, path in (("GET", "/stats"), ("GET", "/nothing"), ("POST", "/mpub?topic=t")):
        link.request(method, path, b"x\n" * 5000)
        link.getresponse().read()
    link.close()


def broken_handshakes(daemon: Nsqd) -> None:
    for data in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection(("127.0.0.1", daemon.https_port)) as sock:
            sock.sendall(data)
        with daemon.connect() as conn:
            conn.negotiate(tls_v1=True)
            conn.send(data)


USES = [consume, fail, compressed, large, pages, topics, lost, deferred, broken_requests]
USES += [encrypted, encrypted_pages, broken_handshakes]


def check(daemon: Nsqd, use: Callable[[], object]) -> None:
    use()  # also imports the required modules
    collected(daemon)  # also imports modules
    before = collected(daemon)
    for _ in range(20):
        use()
    assert collected(daemon) - before < 20


@three_workers
@pytest.mark.ours
@pytest.mark.parametrize("use", USES)
def test_clients_leave_no_cycles(
    nsqd: Starter, tmp_path: Path, use: Callable[[Nsqd], None]
) -> None:
    daemon = nsqd(https_address="127.0.0.1:0", **make("server").save(tmp_path).options)
    check(daemon, lambda: use(daemon))


@pytest.mark.ours
@one_worker
@pytest.mark.parametrize("tls", [False, True])
def test_copies_connections_leave_no_cycles(nsqd: Starter, tmp_path: Path, tls: bool) -> None:
    files = make("node").save(tmp_path)
    address = "127.0.0.1", free_port()
    options: dict[str, object] = {
        "etcd_endpoints": "http://127.0.0.1:1",
        "copies_address": host_port(*address),
    }
    if tls:
        options |= {
            "copies_tls_cert": files.certificate,
            "copies_tls_key": files.key,
            "copies_tls_root_ca_file": files.certificate,
        }
    daemon = nsqd(**options)
    context = client_context(files)

    def use() -> None:
        with socket.create_connection(address) as plain:
            sock = context.wrap_socket(plain) if tls else plain
            sock.sendall(encode(Greeting("another cluster", "n", "n", "g")))
            assert b"this nsqd belongs to cluster" in sock.recv(1000)
            sock.close()
        for data in (b"", b"\xff" * 100, tls12_hello()):
            with socket.create_connection(address) as sock, contextlib.suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(1)

    check(daemon, use)
