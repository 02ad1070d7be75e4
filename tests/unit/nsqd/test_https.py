"""HTTPS specifics; test_http_api.py repeats its tests over TLS."""

import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from nsqcy.testing import certificates
from support.memory_http_client import Connection, Server, request, trusting

OWN_PLAIN = b'{"message": "TLS_REQUIRED", "https_port": 4152}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates")
    certificates.make("server").save(path)
    return path


@pytest.fixture(scope="module")
def start(folder: Path) -> Iterator[Callable[..., Server]]:
    servers: dict[tuple[str, ...], Server] = {}

    def get(*args: str) -> Server:
        if args not in servers:
            servers[args] = Server("--tls", str(folder), *args)
        return servers[args]

    yield get
    for server in servers.values():
        server.stop()


def raw(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.address)), 30)


def everything(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


def complaint(server: Server, sock: socket.socket) -> str:
    """Return the log line about a failed handshake."""
    host, port = sock.getsockname()
    start = f"WARNING: http: TLS handshake error from {host}:{port}: "
    return server.wait_for_log(lambda line: line.startswith(start))[len(start) :].strip()


@pytest.mark.slow
def test_an_answer_larger_than_any_buffer(start: Callable[..., Server]) -> None:
    server = start()
    http = server.connect()
    for number in range(40):
        for _ in range(10):
            http.request("POST", f"/mpub?topic=big{number}", b"\n".join([b"x" * 990] * 5))
    for _ in range(10):  # pipelined, without reading any answer
        http.send(request("GET", "/stats?format=json&include_mem=0"))
    for _ in range(10):
        answer = http.answer()
        assert len(answer.body) > 40 * 50 * 990
        assert len(json.loads(answer.body)["topics"]) >= 40


def test_the_end_is_said(start: Callable[..., Server]) -> None:
    http = start().connect()
    assert http.request("GET", "/ping", Connection="close").headers["connection"] == "close"
    assert http.sock.recv(1) == b""  # no SSLEOFError, because of the close_notify


def test_the_peers_end_is_understood(start: Callable[..., Server]) -> None:
    http = start().connect().send(request("GET", "/ping"))
    assert isinstance(http.sock, ssl.SSLSocket)
    assert http.answer().status == 200
    http.sock.unwrap()  # waits for the answer to its close_notify


def test_plain_http_is_told_to_speak_tls(start: Callable[..., Server]) -> None:
    server = start()
    with raw(server) as sock:
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert everything(sock) == (
            b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
        )


def test_what_is_no_tls_is_closed_and_logged(start: Callable[..., Server]) -> None:
    server = start()
    for data in (b"  V2", b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 100):
        with raw(server) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            everything(sock)
            assert complaint(server, sock)
    with raw(server) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock) == b""
        assert complaint(server, sock) == "EOF"


def test_a_handshake_that_never_goes_on(start: Callable[..., Server]) -> None:
    server = start("--handshake-limit=0.2")
    with raw(server) as silent, raw(server) as slow:
        slow.sendall(b"\x16\x03\x01")
        assert everything(silent) == everything(slow) == b""
        for sock in (silent, slow):
            assert complaint(server, sock) == "tls: handshake timed out"
    assert server.connect().request("GET", "/ping").status == 200


@pytest.mark.parametrize(
    ("timeouts", "sent"),
    [
        ((0.1, 60, 60, 60), b""),
        ((60, 0.1, 60, 60), b"GET / HT"),
        ((60, 60, 0.1, 60), request("POST", "/pub?topic=t", b"xx")[:-1]),
    ],
    ids=["idle", "head", "body"],
)
def test_deadlines(folder: Path, timeouts: tuple[float, ...], sent: bytes) -> None:
    server = Server("--tls", str(folder), "--timeouts", *map(str, timeouts), "0.05")
    http = server.connect().send(sent) if sent else server.connect()
    # truncated: clients cannot confuse this with an orderly end
    with pytest.raises(ssl.SSLEOFError):
        http.rest()
    server.stop()


def test_a_record_that_comes_drop_by_drop_is_no_progress(folder: Path) -> None:
    server = Server("--tls", str(folder), "--timeouts", "0.3", "60", "60", "60", "0.05")
    with raw(server) as sock:
        tls = trusting().wrap_socket(sock, do_handshake_on_connect=True)
        below = socket.socket(fileno=tls.detach())
        below.setblocking(True)
        below.sendall(b"\x17\x03\x03\x40\x00")
        with pytest.raises(OSError):
            while True:
                below.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    while data := below.recv(65536):
                        assert data
                    raise ConnectionResetError
                below.sendall(b"x")
        below.close()
    server.stop()


@pytest.mark.slow
def test_rubbish_after_the_handshake(start: Callable[..., Server]) -> None:
    server = start()
    random = Random(1)
    for number in range(50):
        http = server.connect()
        assert isinstance(http.sock, ssl.SSLSocket)
        below = socket.socket(fileno=http.sock.detach())
        below.settimeout(10)
        kind = b"" if number % 2 else b"\x17\x03\x03\x00\x20"
        with contextlib.suppress(ConnectionError):
            below.sendall(kind + random.randbytes(200))
            everything(below)
        below.close()
    assert server.connect().request("GET", "/ping").status == 200
    assert not [line for line in server.log if "panic" in line or "Traceback" in line]


def test_a_handshake_in_single_bytes(start: Callable[..., Server]) -> None:
    with raw(start()) as sock:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting().wrap_bio(incoming, outgoing)

        def step(act: Callable[[], object]) -> None:
            while True:
                try:
                    act()
                except ssl.SSLWantReadError:
                    pass
                else:
                    break
                finally:
                    for byte in outgoing.read():
                        sock.sendall(bytes([byte]))
                incoming.write(sock.recv(65536))

        step(tls.do_handshake)
        tls.write(request("GET", "/ping"))
        for byte in outgoing.read():
            sock.sendall(bytes([byte]))
        answer: list[bytes] = []
        step(lambda: answer.append(tls.read(65536)))
        assert answer[0].startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_client_that_reads_an_answer_slowly(start: Callable[..., Server]) -> None:
    server = start("--send-buffer=4096")
    http = Connection(server.address, receive_buffer=4096, tls=trusting())
    for _ in range(40):
        http.request("POST", "/pub?topic=big", b"x" * 1000)
    http.send(request("GET", "/stats?format=json&topic=big", Connection="close"))
    assert http.answer().status == 200
    assert http.rest() == b""


def test_there_is_no_http_2(start: Callable[..., Server]) -> None:
    context = trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    http = Connection(start().address, tls=context)
    assert isinstance(http.sock, ssl.SSLSocket)
    assert http.sock.selected_alpn_protocol() is None
    assert http.request("GET", "/ping").status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_is_demanded(
    start: Callable[..., Server], version: ssl.TLSVersion, tmp_path: Path
) -> None:
    server = start("--policy=require")
    context = trusting()
    context.minimum_version = context.maximum_version = version
    with raw(server) as sock, pytest.raises((ssl.SSLError, ConnectionError)) as refused:
        tls = context.wrap_socket(sock)
        tls.sendall(request("GET", "/ping"))
        assert tls.recv(1000) == b""
        raise ssl.SSLError("closed without a word")
    assert "alert" in str(refused.value).lower() or "closed" in str(refused.value)
    files = certificates.make("stranger").save(tmp_path)
    context.load_cert_chain(files.certificate, files.key)
    assert Connection(server.address, tls=context).request("GET", "/ping").status == 200


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the openssl program")
def test_a_change_of_keys(start: Callable[..., Server]) -> None:
    """The client requests the key change between two HTTP requests."""
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{start().address}", "-crlf", "-tls1_3"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as client:
        assert client.stdin is not None and client.stdout is not None

        def until(end: bytes) -> None:
            while end not in (line := client.stdout.readline()):
                assert line, end

        until(b"Verify return code")
        for change in (b"K\n", b"K\n", b""):
            client.stdin.write(b"GET /ping HTTP/1.1\nHost: x\n\n")
            client.stdin.flush()
            until(b"HTTP/1.1 200 OK")
            until(b"Content-Length: 2")
            client.stdin.write(change)
            client.stdin.flush()
            if change:
                until(b"KEYUPDATE")
        client.kill()


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the openssl program")
def test_nothing_is_negotiated_again(start: Callable[..., Server]) -> None:
    """The server refuses immediately, instead of letting the client wait."""
    server = start()
    words = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.address}", "-tls1_2"]
    client = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with client:
        assert client.stdin is not None and client.stdout is not None
        while b"Verify return code" not in (line := client.stdout.readline()):
            assert line
        client.stdin.write(b"R\n")
        client.stdin.flush()
        assert b"no renegotiation" in client.stdout.read()
    assert server.connect().request("GET", "/ping").status == 200


def test_where_tls_is_required(start: Callable[..., Server]) -> None:
    assert start("--tls-only").connect().request("GET", "/ping").status == 200


@pytest.mark.case("HTTP-081")
def test_plain_http_where_tls_is_required() -> None:
    server = Server("--tls-only")
    http = server.connect()
    for method, target, body in (
        ("GET", "/ping", b""),
        ("GET", "/nope", b""),
        ("OPTIONS", "*", b""),
        ("BREW", "/pub/", b""),
        ("POST", "/pub?topic=t", b"x" * 100),
        ("PUT", "/config/log_level", b"debug"),
    ):
        answer = http.request(method, target, body)
        assert (answer.status, answer.body) == (403, OWN_PLAIN), target
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    answer = http.request("HEAD", "/ping")
    assert (answer.status, answer.body) == (403, b"")
    server.stop()
    assert not [line for line in server.log if re.search(r" 403 ", line)]
