"""Memory of connections that have not authenticated, for every way in which one can hold memory.

    python -m loadtest.idle [--only nsqd]

prints a table: each daemon and way, and the growth of the daemon for each of 100 connections.
tests/daemon/test_idle_memory.py checks some of the rows.
"""

import argparse
import contextlib
import json
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from loadtest.admin import Nsqadmin
from loadtest.bench import procfs
from loadtest.nsqd import Nsqd
from nsqcy import testing
from nsqcy.testing import certificates
from nsqcy.testing.wire_client import sized
from nsqcy.users.hashes import hash_token

COUNT = 100  # connections
LIMIT = 64 << 10  # bytes for each of them

_QUIET = 0.05  # seconds between two looks at the daemon
_SETTLE_LIMIT = 30.0
_SEND_LIMIT = 0.2  # seconds to wait for a daemon that does not read

HEAD = b"GET /ping HTTP/1.1\r\nHost: h\r\n"
BIG = 900_000


class Way(NamedTuple):
    """Bytes that a client sends before it waits. tls: inside a TLS connection."""

    daemon: str
    name: str
    port: str
    sent: tuple[bytes, ...]
    tls: bool = False


def _identify(**fields: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


def client_hello() -> bytes:
    """Return the first message of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def long_hello(announced: int, sent: int) -> bytes:
    """Return the beginning of a handshake whose first message has this length."""
    data = b"\1" + announced.to_bytes(3, "big") + b"\3\3" + bytes(32) + bytes(announced - 34)
    data = data[:sent]
    records = [data[at : at + 16384] for at in range(0, len(data), 16384)]
    return b"".join(b"\x16\3\1" + len(each).to_bytes(2, "big") + each for each in records)


UPGRADE = b"  V2" + _identify(feature_negotiation=True, tls_v1=True)
_TEXT = "x" * 1024
_MOST = {"client_id": _TEXT, "hostname": _TEXT, "user_agent": _TEXT, "topology_zone": _TEXT}
_HEADS: dict[str, bytes] = {
    "a request line": b"GET /ping?" + b"x" * BIG,
    "a path": b"GET /" + b"x/" * (BIG // 2),
    "a method": b"G" * BIG,
    "one header": HEAD + b"A: " + b"x" * BIG,
    "a header's name": HEAD + b"A" * BIG,
    "many headers": HEAD + b"a:b\r\n" * (BIG // 5),
    "many X-Nsq headers": HEAD + b"X-Nsq-a:b\r\n" * (BIG // 11),
    "one X-Nsq header": HEAD + b"X-Nsq-a: " + b"x" * BIG,
    "Authorization": HEAD + b"Authorization: " + b"x" * BIG,
    "many Authorization headers": HEAD + b"Authorization:b\r\n" * (BIG // 17),
    "many Host headers": b"GET /ping HTTP/1.1\r\n" + b"Host:b\r\n" * (BIG // 8),
    "many cookies": HEAD + b"Cookie:b=c\r\n" * (BIG // 12),
    "line ends before a head": b"\r\n" * (BIG // 2),
    "a body": b"POST /ping HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n" + b"x" * 800_000,
    "chunks": b"POST /ping HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1\r\nx\r\n" * 100_000,
    "a chunk's extension": b"POST /ping HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;"
    + b"x" * 4000,
    "trailers": b"POST /ping HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    + (b"a: " + b"x" * 4000 + b"\r\n") * 60,
    "requests whose answers are not read": (HEAD + b"\r\n") * 40_000,
}
_BODIES = {
    "nsqd": b"POST /pub?topic=t HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n",
    "nsqlookupd": b"POST /topic/create?topic=t HTTP/1.1\r\nHost: h\r\n"
    b"Content-Length: 200000\r\n\r\n",
    "nsqadmin": b"POST /login HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n",
}


def _http(daemon: str, port: str = "http", *, tls: bool = False) -> Iterator[Way]:
    for name, head in _HEADS.items():
        yield Way(daemon, f"{port.upper()}: {name}", port, (head,), tls)
    body = _BODIES[daemon] + b"x" * 190_000
    yield Way(daemon, f"{port.upper()}: a body of another route", port, (body,), tls)


def ways() -> Iterator[Way]:
    """Return all ways, by daemon."""
    yield from _nsqd()
    yield from _http("nsqd", "https", tls=True)
    yield Way("nsqd", "HTTPS: nothing", "https", (), tls=True)
    yield Way("nsqd", "HTTPS: only a ClientHello", "https", (client_hello(),))
    yield from _lookupd()
    yield from _http("nsqadmin")


def _nsqd() -> Iterator[Way]:
    first = b"  V2"
    known = _identify(**_MOST)
    lines: dict[str, tuple[bytes, ...]] = {
        "nothing": (),
        "a half-sent magic": (b"  V",),
        "the longest IDENTIFY": (first, known),
        "a half-sent line": (first, b"PUB " + b"x" * 100_000),
        "a half-sent IDENTIFY": (first, b"IDENTIFY\n" + sized(b" " * (64 << 10))[:-1]),
        "a half-sent AUTH": (first, known, b"AUTH\n" + sized(b" " * (16 << 10))[:-1]),
        "a half-sent PUB": (first, known, b"PUB t\n" + sized(b" " * BIG)[:-1]),
        "answers that are not read": (first, b"NOP\n" * 10 + b"RDY 1\n" * 100_000),
    }
    for name, sent in lines.items():
        yield Way("nsqd", f"TCP: {name}", "tcp", sent)
    for feature in ("tls_v1", "snappy", "deflate"):
        identify = _identify(feature_negotiation=True, **_MOST, **{feature: True})
        yield Way("nsqd", f"TCP: {feature}", "tcp", (first, identify))
    for name, hello in {
        "the longest ClientHello": long_hello(131_000, 130_900),
        "the beginning of the longest ClientHello": long_hello(131_000, 100),
        "half a record": long_hello(16_000, 15_000)[:-1],
    }.items():
        yield Way("nsqd", f"TCP: {name}", "tcp", (UPGRADE, hello))
        yield Way("nsqd", f"HTTPS: {name}", "https", (hello,))
    yield from _http("nsqd")


def _lookupd() -> Iterator[Way]:
    first = b"  V1"
    fields = {"hostname": _TEXT, "broadcast_address": _TEXT, "version": _TEXT}
    known = _identify(**fields, tcp_port=1, http_port=2)
    for name, sent in {
        "nothing": (),
        "the longest IDENTIFY": (first, known),
        "a half-sent line": (first, b"REGISTER " + b"x" * 250_000),
        "a half-sent IDENTIFY": (first, b"IDENTIFY\n" + sized(b" " * (64 << 10))[:-1]),
        "answers that are not read": (first, b"PING\n" * 100_000),
    }.items():
        yield Way("nsqlookupd", f"TCP: {name}", "tcp", sent)
    yield from _http("nsqlookupd")


@contextlib.contextmanager
def started(daemon: str) -> Iterator[testing.Daemon]:
    """Start a daemon that has a users file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        users = folder / "users.ini"
        users.write_text(_users())
        users.chmod(0o600)
        options: dict[str, object] = {"auth_file": users}
        if daemon == "nsqd":
            options |= certificates.make("server").save(folder).options
            make: type[testing.Daemon] = Nsqd
        elif daemon == "nsqlookupd":
            make = testing.Nsqlookupd
        else:
            make = Nsqadmin
            options["nsqd_http_address"] = "127.0.0.1:9"
        one = make(**options)  # type: ignore[arg-type]
        try:
            one.start()
            yield one
        finally:
            one.close()


def _users() -> str:
    return f"[user ops]\nadmin = *\nrole = operate\ntoken = {hash_token('ops')}\n"


def measure(daemon: testing.Daemon, way: Way, patience: float = 0) -> float:
    """Return by how many bytes the daemon grows for each of COUNT connections. On a busy machine,
    wait up to `patience` seconds until it has read, and freed, what is above the limit."""
    deadline = time.monotonic() + patience
    before = _settled(daemon)
    held = [each for _ in range(COUNT) if (each := _begin(daemon, way)) is not None]
    grown = _settled(daemon) - before
    while grown > LIMIT * COUNT and time.monotonic() < deadline:
        grown = _settled(daemon) - before
    for each in held:
        each.close()
    return grown / COUNT


def _begin(daemon: testing.Daemon, way: Way) -> socket.socket | None:
    address = getattr(daemon, f"{way.port}_address")
    sock = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    sock.settimeout(10.0)
    with contextlib.suppress(OSError):
        if way.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(sock)
        sock.settimeout(_SEND_LIMIT)
        for data in way.sent:
            sock.sendall(data)
            if data.startswith(UPGRADE):
                sock.recv(1)
    return sock


def _settled(daemon: testing.Daemon) -> int:
    """Return the daemon's memory once it uses no more CPU time."""
    deadline = time.monotonic() + _SETTLE_LIMIT
    pids = procfs.family(daemon.process.pid)
    used = -1.0
    while time.monotonic() < deadline:
        before, used = used, sum(map(procfs.cpu_seconds, pids))
        if used - before < _QUIET / 10:
            break
        time.sleep(_QUIET)
    return procfs.memory(pids)["Pss"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.idle", description=__doc__)
    parser.add_argument("--only", choices=["nsqd", "nsqlookupd", "nsqadmin"])
    parser.add_argument("--way", default="", help="ways whose name contains this")
    given = parser.parse_args()
    print("| daemon | the client sends | KiB for each connection |")
    print("| --- | --- | ---: |")
    large = 0
    for way in ways():
        if given.only not in (None, way.daemon) or given.way not in way.name:
            continue
        with started(way.daemon) as daemon:
            each = measure(daemon, way)
        large += each > LIMIT
        mark = " **above**" if each > LIMIT else ""
        print(f"| {way.daemon} | {way.name} | {each / 1024:.0f}{mark} |", flush=True)
    print(f"\n{large} above {LIMIT >> 10} KiB")
    return int(large > 0)


if __name__ == "__main__":
    sys.exit(main())
