"""Memory of unauthenticated connections, for every way in which a client can hold memory.

A row is the growth of the daemon for each of COUNT connections, after one connection has made the
daemon load the code that it needs. tests/daemon/test_idle_memory.py checks some of these cases.
"""

import contextlib
import functools
import json
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from loadtest.bench import procfs
from loadtest.bench.daemon import NotOffered
from loadtest.bench.speed import Result, Settings
from loadtest.daemons import Nsqadmin, Nsqd
from nsqcy import testing
from nsqcy.testing import certificates
from nsqcy.testing.wire_client import sized
from nsqcy.users.hashes import hash_token

COUNT = 100  # connections
LIMIT = 64 << 10  # maximum bytes for each connection

_QUIET = 0.05  # seconds between two measurements of the daemon
_SETTLE_LIMIT = 30.0
_SEND_LIMIT = 0.2  # maximum seconds to wait for a daemon that does not read

HEAD = b"GET /ping HTTP/1.1\r\nHost: h\r\n"
BIG = 900_000


class Way(NamedTuple):
    """Bytes that a client sends before it waits."""

    daemon: str
    name: str
    port: str
    sent: tuple[bytes, ...]
    tls: bool = False
    """Inside a TLS connection."""
    setup: str = ""
    """Options of the daemon: a key of SETUPS."""
    shakes: Callable[[socket.socket], object] | None = None
    """A handshake, before anything is sent."""


def _identify(**fields: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


def client_hello(newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """Return the first message of a TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = newest
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def tls12_hello() -> bytes:
    return client_hello(ssl.TLSVersion.TLSv1_2)


def half_certificates(announced: int, sent: int) -> bytes:
    """Return the beginning of a client's certificates, as sent by TLS 1.2."""
    data = b"\x0b" + announced.to_bytes(3, "big") + (announced - 3).to_bytes(3, "big")
    return _records((data + bytes(announced))[:sent], version=3)


def shake(sock: socket.socket, count: int, kept_back: int = 0) -> None:
    """Do a TLS 1.3 handshake with several certificates, but withhold some of the last bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as name:
        files = _client().save(Path(name))
        files.certificate.write_text(_client().certificate * count)
        context.load_cert_chain(files.certificate, files.key)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(sent.read())
            received.write(sock.recv(65536))
        else:
            data = sent.read()
            sock.sendall(data[: len(data) - kept_back])
            return


@functools.cache
def _client() -> certificates.Identity:
    return certificates.make("client")


def long_hello(announced: int, sent: int) -> bytes:
    """Return the beginning of a handshake whose first message has this length."""
    data = b"\1" + announced.to_bytes(3, "big") + b"\3\3" + bytes(32) + bytes(announced - 34)
    return _records(data[:sent])


def _records(data: bytes, version: int = 1) -> bytes:
    records = [data[at : at + 16384] for at in range(0, len(data), 16384)]
    return b"".join(b"\x16\3%c" % version + len(each).to_bytes(2, "big") + each for each in records)


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
    """Return all ways to hold memory, by daemon."""
    yield from _nsqd()
    yield from _http("nsqd", "https", tls=True)
    yield Way("nsqd", "HTTPS: nothing", "https", (), tls=True)
    yield Way("nsqd", "HTTPS: only a ClientHello", "https", (client_hello(),))
    yield from _certificates()
    yield from _copies()
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


def _certificates() -> Iterator[Way]:
    """Handshakes that stall when the client sends its certificates."""
    for policy in ("require", "require-verify"):
        for name, data in {
            "half of the certificates": half_certificates(15_500, 15_000),
            "the beginning of the longest certificates": half_certificates(100_000, 100),
            "the beginning of endless certificates": half_certificates(16_000_000, 100),
        }.items():
            hello = tls12_hello()
            yield Way("nsqd", f"HTTPS: {policy}, {name}", "https", (hello, data), setup=policy)
            sent = (UPGRADE, hello, data)
            yield Way("nsqd", f"TCP: {policy}, {name}", "tcp", sent, setup=policy)
        for name, shakes in {
            "5 certificates": functools.partial(shake, count=5),
            "15 certificates": functools.partial(shake, count=15),
            "15 certificates without their end": functools.partial(shake, count=15, kept_back=1),
        }.items():
            yield Way("nsqd", f"HTTPS: {policy}, {name}", "https", (), setup=policy, shakes=shakes)


def _copies() -> Iterator[Way]:
    """The port for copies, before the greeting is complete."""
    greeting = (4096).to_bytes(4, "big") + b"\1{" + b" " * 4000
    for name, data in {"nothing": b"", "a half-sent greeting": greeting}.items():
        yield Way("nsqd", f"copies: {name}", "copies", (data,), setup="copies")
    for name, data in {
        "nothing": b"",
        "half a record": long_hello(16_000, 15_000)[:-1],
        "the longest ClientHello": long_hello(131_000, 130_900),
        "half of the certificates": tls12_hello() + half_certificates(90_000, 80_000),
    }.items():
        yield Way("nsqd", f"copies with TLS: {name}", "copies", (data,), setup="copies-tls")


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


class _Nsqd(Nsqd):
    def _defaults(self) -> dict[str, testing.Option]:
        return super()._defaults() | {"copies_address": self._free_address()}

    @property
    def copies_address(self) -> str:
        return str(self._options["copies_address"])


SETUPS: dict[str, Callable[[certificates.Files], dict[str, object]]] = {
    "": lambda files: {},
    "require": lambda files: {"tls_client_auth_policy": "require"},
    "require-verify": lambda files: {
        "tls_client_auth_policy": "require-verify",
        "tls_root_ca_file": files.certificate,
    },
    "copies": lambda files: _COPIES,
    "copies-tls": lambda files: (
        _COPIES
        | {
            "copies_tls_cert": files.certificate,
            "copies_tls_key": files.key,
            "copies_tls_root_ca_file": files.certificate,
        }
    ),
}
_COPIES: dict[str, object] = {
    "etcd_endpoints": "http://127.0.0.1:1",  # no nsqd may connect before etcd responds; clients may
    "workers": 1,
}


@contextlib.contextmanager
def started(daemon: str, setup: str = "") -> Iterator[testing.Daemon]:
    """Start a daemon that has a users file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        users = folder / "users.ini"
        users.write_text(_users())
        users.chmod(0o600)
        options: dict[str, object] = {"auth_file": users}
        if daemon == "nsqd":
            files = certificates.make("server").save(folder)
            options |= files.options | SETUPS[setup](files)
            make: type[testing.Daemon] = _Nsqd
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


def strangers(settings: Settings) -> Iterator[Result]:
    if settings.target is not None:
        raise NotOffered("it needs daemons with a users file")
    for way in list(ways())[: settings.some(10_000)]:
        with started(way.daemon, way.setup) as daemon:
            began = time.monotonic()
            grown = measure(daemon, way)
            result = Result(f"{way.daemon} {way.name}", COUNT, time.monotonic() - began, 0.0, 0.0)
        result.figures["bytes"] = grown
        result.note = f"{grown / 1024:.0f} KiB for each connection{' ABOVE' * (grown > LIMIT)}"
        yield result


def measure(daemon: testing.Daemon, way: Way, patience: float = 0) -> float:
    """Return the daemon's growth in bytes for each of COUNT connections. On a busy machine, wait up
    to `patience` seconds until the daemon has read the input, and freed the part above the
    limit."""
    if first := _begin(daemon, way):
        first.close()
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
    address = str(getattr(daemon, f"{way.port}_address"))
    sock = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    sock.settimeout(10.0)
    with contextlib.suppress(OSError):
        if way.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(sock)
        if way.shakes is not None:
            way.shakes(sock)
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
