"""TLS and compression, and harness requirements for certificates (H19 to H22)."""

import json
import os
import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import snappy

from conftest import Starter, keep, one_worker, three_workers
from loadtest.many_clients import Loop, publish
from nsqcy.testing.certificates import Files, Identity, make
from nsqcy.testing.encoded_connection import (
    IDENTIFIER,
    Snappy,
    client_context,
    connect,
    make_codec,
    start_codec,
    start_tls,
)
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import MESSAGE, Conn, Hangup, Message, sized, split_frames
from support.nsqd_process import Nsqd, run
from support.weak_certificates import WEAK_AUTHORITY, WEAK_CLIENT

OK = b"\0\0\0\x06\0\0\0\0OK"
SERVER = make("server")
AUTHORITY = make("authority", authority=True)
CLIENT = make("client", by=AUTHORITY)
STRANGER = make("stranger")
FAILED = "E_IDENTIFY_FAILED IDENTIFY failed "

WAYS = [
    pytest.param(tls, codec, id="+".join(filter(None, ["tls" if tls else "", codec])))
    for tls in (False, True)
    for codec in ("", "snappy", "deflate")
    if tls or codec
]
every_way = pytest.mark.parametrize(("tls", "codec"), WAYS)


@pytest.fixture(scope="module")
def secured_daemon(
    workers: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Nsqd]]:
    path = tmp_path_factory.mktemp("secured")
    yield from keep(workers, path, **SERVER.save(path).options)


@pytest.fixture
def secured(secured_daemon: Callable[[], Nsqd]) -> Iterator[Nsqd]:
    """Daemon with a certificate, shared by many tests: use unique names."""
    daemon = secured_daemon()
    yield daemon
    daemon.hang_up()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return SERVER.save(tmp_path)


def raw(conn: Conn, count: int) -> bytes:
    """Return the next bytes as they arrive, after the negotiation."""
    received = conn._input
    while len(received) < count:
        chunk = conn.socket.recv(65536)
        assert chunk, received
        received += chunk
    return received


def ends(conn: Conn) -> None:
    """Check that the connection ends without an answer."""
    conn.socket.settimeout(5)
    assert conn.socket.recv(1000) == b""


# -- all combinations


@pytest.mark.case("C091", "C092", "C093", "C103", "C107", "H19")
@every_way
def test_commands_work(tls: bool, codec: str, secured: Nsqd, topic: str) -> None:
    conn = connect(secured, tls=tls, codec=codec)
    bodies = [b"one", os.urandom(200_000), b"x" * 200_000, b"last"]
    conn.sub(topic, "c", rdy=10)
    for body in bodies:
        conn.command("PUB", topic, body=body)
    received, answers = [], 0
    while len(received) < len(bodies) or answers < len(bodies):
        frame = conn.frame()
        if frame.kind == MESSAGE:
            received.append(Message.parse(frame.data))
        else:
            assert frame.data == b"OK"
            answers += 1
    assert [message.body for message in received] == bodies
    for message in received:
        conn.fin(message)
    conn.cls()
    conn.expect_response(b"CLOSE_WAIT")
    secured.web.await_counts(topic, "c", depth=0, in_flight_count=0)


@pytest.mark.case("C091", "C104")
@every_way
def test_topics_of_every_worker(tls: bool, codec: str, secured: Nsqd, topic: str) -> None:
    """Most of the topics belong to a worker other than the connection's own."""
    bodies = [bytes([number]) * 3000 for number in range(200)]
    for name in (f"{topic}-{number}" for number in range(3)):
        conn = connect(secured, tls=tls, codec=codec)
        conn.sub(name, "c", rdy=50)
        connect(secured, tls=tls, codec=codec).mpub(name, bodies)
        assert [message.body for message in conn.take(200)] == bodies
        secured.web.await_counts(name, "c", depth=0, in_flight_count=0, message_count=200)


@three_workers
@every_way
def test_a_long_pipeline(tls: bool, codec: str, secured: Nsqd, topic: str) -> None:
    """The pipeline exceeds both a session's limit of unanswered commands and the amount decoded per
    turn. The session stops reading, and later continues with the data that it has already received.
    """
    for name in (f"{topic}-{number}" for number in range(3)):
        consumer = secured.connect().sub(name, "c", rdy=2500)
        conn = connect(secured, tls=tls, codec=codec)
        bodies = [(b"%d " % number).ljust(1000, b".") for number in range(6000)]
        sending = Loop(lambda conn=conn, name=name, bodies=bodies: send_all(conn, name, bodies))
        received = []
        for _ in bodies:
            received.append(consumer.message())
            consumer.fin(received[-1])
        sending.join()
        for _ in bodies:
            conn.expect_ok()
        assert [message.body for message in received] == bodies


def send_all(conn: Conn, topic: str, bodies: list[bytes]) -> bool:
    conn.send(b"".join(publish(topic, body) for body in bodies))
    return False


@every_way
def test_stats_tell(tls: bool, codec: str, secured: Nsqd, topic: str) -> None:
    for name in (f"{topic}-{number}" for number in range(3)):
        conn = connect(secured, tls=tls, codec=codec).sub(name, "c")
        client = secured.web.client(name, "c")
        assert (client["snappy"], client["deflate"]) == (codec == "snappy", codec == "deflate")
        assert client["tls"] is tls
        conn.close()


@one_worker
@pytest.mark.case("HTTP-070")
@pytest.mark.parametrize(
    ("version", "shown", "suite"),
    [
        (ssl.TLSVersion.TLSv1_2, "TLS1.2", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
        (ssl.TLSVersion.TLSv1_3, "TLS1.3", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_stats_tell_of_tls(
    version: ssl.TLSVersion, shown: str, suite: str, secured: Nsqd, topic: str
) -> None:
    for name in (f"{topic}-{number}" for number in range(3)):
        conn = connect(secured, tls=client_context(version=version)).sub(name, "c")
        client = secured.web.client(name, "c")
        assert (client["tls_version"], client["tls_cipher_suite"]) == (shown, suite)
        assert client["tls_negotiated_protocol_is_mutual"] is True
        assert client["tls_negotiated_protocol"] == ""
        conn.close()


@one_worker
@pytest.mark.case("HTTP-070")
def test_stats_tell_of_tls_1_3(secured: Nsqd, topic: str) -> None:
    conn = connect(secured, tls=client_context(version=ssl.TLSVersion.TLSv1_3)).sub(topic, "c")
    assert isinstance(conn.socket, ssl.SSLSocket)
    agreed = conn.socket.cipher()
    assert agreed is not None
    client = secured.web.client(topic, "c")
    assert client["tls"] is client["tls_negotiated_protocol_is_mutual"] is True
    assert client["tls_version"] == "TLS1.3"
    assert client["tls_cipher_suite"] == agreed[0]


@one_worker
@pytest.mark.parametrize(("tls", "codec"), [(True, "deflate"), (False, "snappy")])
def test_heartbeats(tls: bool, codec: str, secured: Nsqd) -> None:
    wanted = {"heartbeat_interval": 1000}
    conn = connect(secured, tls=tls, codec=codec, fields=wanted, pong=False)
    for _ in range(3):
        conn.expect_response(b"_heartbeat_")
        conn.nop()
    conn.usable()


@one_worker
@every_way
def test_an_error_is_the_last_word(tls: bool, codec: str, secured: Nsqd) -> None:
    conn = connect(secured, tls=tls, codec=codec)
    conn.command("FOO")
    conn.expect_error("E_INVALID invalid command FOO")


@one_worker
@every_way
def test_upgrades_are_logged(tls: bool, codec: str, secured: Nsqd) -> None:
    conn = connect(secured, tls=tls, codec=codec)
    host, port = conn.socket.getsockname()
    name = {"snappy": "snappy", "deflate": "deflate (level 6)"}
    for what in filter(None, ["TLS" if tls else "", name.get(codec)]):
        line = f"INFO: PROTOCOL(V2): [{host}:{port}] upgrading connection to {what}\n"
        eventually(lambda line=line: line in secured.log_text())


@one_worker
@pytest.mark.case("F4")
@every_way
def test_a_second_identify_leaves_the_transport_alone(tls: bool, codec: str, secured: Nsqd) -> None:
    conn = connect(secured, tls=tls, codec=codec)
    wanted = {"tls_v1": True, "snappy": True, "output_buffer_size": 100, "msg_timeout": 5000}
    answer = conn.negotiate(**wanted)
    assert (answer["output_buffer_size"], answer["msg_timeout"]) == (100, 5000)
    assert (answer["tls_v1"], answer["snappy"], answer["deflate"]) == (False, False, False)
    conn.usable()


@one_worker
def test_what_was_sent_behind_identify_is_lost(secured: Nsqd) -> None:
    conn = secured.connect()
    body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
    conn.send(b"IDENTIFY\n", sized(body), b"FOO\nFOO\n")
    conn.expect_json()
    start_tls(conn)
    conn.expect_ok()
    conn.usable()


@one_worker
@every_way
def test_so_it_is_behind_the_end_of_one_that_was_cut(
    tls: bool, codec: str, secured: Nsqd, topic: str
) -> None:
    """An attacker between the two ends cannot insert plain commands before the encrypted ones."""
    conn = secured.connect()
    fields = {"feature_negotiation": True, "tls_v1": tls} | ({codec: True} if codec else {})
    command = b"IDENTIFY\n" + sized(json.dumps(fields).encode())
    publish = b"PUB " + topic.encode() + b"\n" + sized(b"one")
    conn.send(publish, command[:-5])
    conn.expect_ok()
    conn.send(command[-5:], b"FOO\n" * 1000)
    conn.expect_json()
    if tls:
        start_tls(conn)
        conn.expect_ok()
    if codec:
        start_codec(conn, codec)
        conn.expect_ok()
    conn.usable()


@one_worker
@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_an_answer_ends_its_block(codec: str, secured: Nsqd, topic: str) -> None:
    """NSQ flushes after each answer, and JavaNSQClient drops the frames after the first one of a
    block. An OK must therefore not share a block with the message after it."""
    secured.web.create(topic, "c")
    secured.web.pub(topic, b"one")
    conn = secured.connect()
    conn.negotiate(**{codec: True})
    client = make_codec(codec)
    publish = f"PUB {topic}\n".encode() + sized(b"two")
    conn.send(client.encode(f"SUB {topic} c\nRDY 2\n".encode() + publish + publish))
    received, wanted = conn._input, 4 * len(OK) + 2 * 37
    while len(b"".join(made := make_codec(codec).blocks(received))) < wanted:
        chunk = conn.socket.recv(65536)
        assert chunk, made
        received += chunk
    assert made.count(OK) == 4
    assert b"OK" not in b"".join(block for block in made if block != OK)


# -- TLS


@one_worker
@pytest.mark.case("C092", "C093")
@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_a_command_behind_the_handshake(codec: str, secured: Nsqd, topic: str) -> None:
    """JavaNSQClient sends its first command together with the end of the handshake."""
    conn = secured.connect()
    conn.negotiate(tls_v1=True, **{codec: True})
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing)
    shake_hands(conn, tls, incoming, outgoing)
    tls.write(make_codec(codec).encode(f"PUB {topic}\n".encode() + sized(b"one")))
    conn.send(outgoing.read())
    received = b""
    while make_codec(codec).blocks(received[len(OK) :]) != [OK, OK]:
        try:
            received += tls.read(65536)
        except ssl.SSLWantReadError:
            chunk = conn.socket.recv(65536)
            assert chunk, received
            incoming.write(chunk)
    assert received.startswith(OK)
    secured.web.await_counts(topic, message_count=1)


def shake_hands(
    conn: Conn, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    """Perform a TLS handshake, without sending its last bytes."""
    while True:
        try:
            return tls.do_handshake()
        except ssl.SSLWantReadError:
            conn.send(outgoing.read())
            incoming.write(conn.socket.recv(65536))


@one_worker
@pytest.mark.case("C092", "C093")
@pytest.mark.parametrize("codec", ["", "snappy", "deflate"])
def test_one_ok_for_each_upgrade(codec: str, secured: Nsqd) -> None:
    conn = secured.connect()
    conn.negotiate(tls_v1=True, **({codec: True} if codec else {}))
    secure = start_tls(conn)
    received = b""
    while len(received) < len(OK):
        received += secure.recv(65536)
    assert received[: len(OK)] == OK
    received = received[len(OK) :]
    if not codec:
        secure.settimeout(0.3)
        with pytest.raises(TimeoutError):
            secure.recv(100)
        return
    while len(received) < 14:
        received += secure.recv(65536)
    if codec == "snappy":
        assert snappy.StreamDecompressor().decompress(received) == OK
    else:
        assert zlib.decompressobj(-15).decompress(received) == OK


@one_worker
@pytest.mark.case("C094")
@pytest.mark.parametrize("noise", [b"SUB topic channel\n", b"\x16\x03\x01\x00\x05?????", b"\0" * 9])
def test_noise_instead_of_a_handshake(noise: bytes, secured: Nsqd) -> None:
    conn = secured.connect()
    conn.negotiate(tls_v1=True)
    conn.send(noise)
    if noise.startswith(b"\x16"):
        # A TLS alert may precede nsqd's error.
        data = b""
        while chunk := conn.socket.recv(1000):
            data += chunk
        assert FAILED.encode() in data
    else:
        conn.expect_error(FAILED, prefix=True)


@one_worker
@pytest.mark.case("C095")
def test_silence_instead_of_a_handshake(secured: Nsqd) -> None:
    conn = secured.connect()
    started = time.monotonic()
    conn.negotiate(tls_v1=True, heartbeat_interval=1000)
    conn.expect_error(FAILED, prefix=True)
    assert time.monotonic() - started >= 4.9


@one_worker
def test_a_slow_handshake_is_given_up(secured: Nsqd) -> None:
    """The connection is closed even if a little data keeps arriving."""
    conn = secured.connect()
    conn.negotiate(tls_v1=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    started = time.monotonic()
    for byte in hello:
        conn.send(bytes([byte]))
        conn.socket.settimeout(0.1)
        try:
            chunk = conn.socket.recv(1000)
        except TimeoutError:
            continue
        assert FAILED.encode() in chunk
        break
    assert 4.9 <= time.monotonic() - started < 15


@one_worker
def test_a_client_that_dies_in_its_handshake(secured: Nsqd, topic: str) -> None:
    for reset in (False, True):
        conn = secured.connect()
        conn.negotiate(tls_v1=True)
        conn.send(b"\x16\x03\x01\x02\x00\x01")
        if reset:
            conn.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        conn.close()
    connect(secured, tls=True).sub(topic, "c")
    assert "Traceback" not in secured.log_text()


@one_worker
@pytest.mark.case("C091")
def test_an_unannounced_end_is_an_end(secured: Nsqd, topic: str) -> None:
    conn = connect(secured, tls=True).sub(topic, "c")
    conn.socket.shutdown(socket.SHUT_RDWR)
    conn.close()
    eventually(lambda: secured.web.channel(topic, "c")["clients"] == [])


@one_worker
def test_a_closed_tls_connection_is_one(secured: Nsqd, topic: str) -> None:
    conn = connect(secured, tls=True).sub(topic, "c")
    plain = conn.socket.unwrap()  # type: ignore[attr-defined]
    eventually(lambda: secured.web.channel(topic, "c")["clients"] == [])
    plain.close()


@one_worker
def test_damaged_records_end_the_connection(secured: Nsqd, topic: str) -> None:
    conn = secured.connect()
    conn.negotiate(tls_v1=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(incoming, outgoing)
    shake_hands(conn, tls, incoming, outgoing)
    conn.send(outgoing.read())
    tls.write(f"SUB {topic} c\n".encode())
    record = bytearray(outgoing.read())
    record[-1] ^= 1
    conn.send(bytes(record))
    conn.socket.settimeout(5)
    with pytest.raises((Hangup, OSError)):
        while True:
            incoming.write(conn.socket.recv(65536) or b"")
            if not conn.socket.recv(65536):
                raise Hangup(False, b"")
    assert secured.web.topic(topic) is None


@one_worker
@pytest.mark.case("C096")
@pytest.mark.parametrize("required", ["tcp-https", "true"])
def test_nothing_without_tls(required: str, nsqd: Starter, files: Files) -> None:
    daemon = nsqd(tls_required=required, announced=True, http_address="", **files.options)
    for line in ("SUB a b", "NOP", "AUTH", "FOO", "PUB t", "RDY 1"):
        conn = daemon.connect()
        conn.command(line)
        token = line.partition(" ")[0]
        conn.expect_error(f"E_INVALID cannot {token} in current state (TLS required)")


@one_worker
@pytest.mark.case("C096", "C097", "C098")
def test_tls_required(nsqd: Starter, files: Files) -> None:
    daemon = nsqd(tls_required="tcp-https", **files.options)
    assert daemon.web.get("/ping").status == 200
    conn = daemon.connect()
    assert conn.identify() is None
    conn.nop()
    conn.expect_error("E_INVALID cannot NOP in current state (TLS required)")
    connect(daemon, tls=True).usable()
    consumer = connect(daemon, tls=True, codec="snappy").sub("usable", "c", rdy=1)
    assert consumer.message().body == b"x"


@one_worker
@pytest.mark.case("C099", "H22")
def test_any_certificate_will_do(nsqd: Starter, files: Files, tmp_path: Path) -> None:
    daemon = nsqd(tls_client_auth_policy="require", http_address="", **files.options)
    admitted(daemon, STRANGER.save(tmp_path))
    admitted(daemon, make("late", expired=True).save(tmp_path))
    rejected(daemon, None)


@one_worker
@pytest.mark.case("C100")
def test_certificates_are_verified(nsqd: Starter, files: Files, tmp_path: Path) -> None:
    daemon = nsqd(
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=AUTHORITY.save(tmp_path).certificate,
        http_address="",
        **files.options,
    )
    admitted(daemon, CLIENT.save(tmp_path))
    rejected(daemon, STRANGER.save(tmp_path))
    rejected(daemon, None)


def admitted(daemon: Nsqd, shown: Files | None) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        connect(daemon, tls=client_context(shown, version)).usable()


def rejected(daemon: Nsqd, shown: Files | None) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        conn = daemon.connect()
        conn.negotiate(tls_v1=True)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            # A TLS 1.3 client completes the handshake before the server has seen its certificate.
            secure = start_tls(conn, client_context(shown, version))
            secure.recv(100)
        eventually(lambda: FAILED in daemon.log_text())


@one_worker
@pytest.mark.case("C101")
def test_a_policy_requires_tls(nsqd: Starter, files: Files) -> None:
    daemon = nsqd(tls_client_auth_policy="require", http_address="", **files.options)
    conn = daemon.connect()
    conn.nop()
    conn.expect_error("E_INVALID cannot NOP in current state (TLS required)")


@pytest.mark.case("F11")
@pytest.mark.ours
def test_an_unknown_policy_ends_the_start(files: Files) -> None:
    options = files.options | {"tls_client_auth_policy": "requre-verify"}
    done = run(*(f"--{name.replace('_', '-')}={value}" for name, value in options.items()))
    assert done.returncode == 1
    assert "--tls-client-auth-policy must be require, require-verify or empty" in done.stderr


@pytest.mark.case("C102")
def test_no_certificate_to_require_tls_with() -> None:
    done = run("--tls-required", "--tcp-address=127.0.0.1:0", "--http-address=")
    assert done.returncode == 1
    assert "cannot require TLS client connections without TLS key and cert" in done.stderr


@pytest.mark.case("CFG-35")
@pytest.mark.parametrize("which", ["tls_cert", "tls_key", "tls_root_ca_file"])
@pytest.mark.parametrize("content", [None, "no PEM"])
def test_files_that_will_not_do(which: str, content: str | None, files: Files) -> None:
    path = files.key.with_name("bad.pem")
    if content is not None:
        path.write_text(content)
    options = files.options | {which: path}
    options |= {f"{kind}_address": "127.0.0.1:0" for kind in ("tcp", "http", "https")}
    done = run(*(f"--{name.replace('_', '-')}={value}" for name, value in options.items()))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "FATAL: failed to instantiate nsqd - failed to build TLS config - " in last
    assert content is not None or f"open {path}: no such file or directory" in last


@one_worker
@pytest.mark.case("H20")
@pytest.mark.parametrize(
    "server", [make("late", expired=True), WEAK_AUTHORITY], ids=["late", "weak"]
)
def test_old_certificates_serve(server: Identity, nsqd: Starter, tmp_path: Path) -> None:
    daemon = nsqd(**server.save(tmp_path).options)
    context = client_context(version=ssl.TLSVersion.TLSv1_2, level=0)
    connect(daemon, tls=context).usable()
    warned = "WARNING: TLS: OpenSSL's security level is 0" in daemon.log_text()
    assert warned is (server is WEAK_AUTHORITY)


@one_worker
@pytest.mark.case("H21")
def test_a_weak_authority_verifies(nsqd: Starter, files: Files, tmp_path: Path) -> None:
    daemon = nsqd(
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=WEAK_AUTHORITY.save(tmp_path).certificate,
        http_address="",
        **files.options,
    )
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = client_context(WEAK_CLIENT.save(tmp_path), version, level=0)
        connect(daemon, tls=context).usable()
    rejected(daemon, STRANGER.save(tmp_path))


@one_worker
@pytest.mark.parametrize(
    ("minimum", "admitted"), [(None, False), ("", False), ("tls1.0", True), ("tls1.2", False)]
)
def test_old_versions(minimum: str | None, admitted: bool, nsqd: Starter, files: Files) -> None:
    daemon = nsqd(tls_min_version=minimum, **files.options)
    conn = daemon.connect()
    conn.negotiate(tls_v1=True)
    with pytest.warns(DeprecationWarning):
        old = client_context(version=ssl.TLSVersion.TLSv1_1, level=0)
    if admitted:
        start_tls(conn, old)
        conn.expect_ok()
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            start_tls(conn, old)
    connect(daemon, tls=client_context(version=ssl.TLSVersion.TLSv1_3)).usable()


# -- snappy


@one_worker
@pytest.mark.case("C103")
def test_snappy_begins_with_its_identifier(secured: Nsqd) -> None:
    conn = secured.connect()
    assert conn.negotiate(snappy=True)["snappy"] is True
    received = raw(conn, 28)
    assert received.startswith(IDENTIFIER + b"\x01")
    assert snappy.StreamDecompressor().decompress(received) == OK


@one_worker
@pytest.mark.case("C105")
def test_a_second_identifier(secured: Nsqd) -> None:
    conn = connect(secured, codec="snappy")
    encoded = Snappy().encode(b"NOP\n")
    assert encoded.startswith(IDENTIFIER)
    conn.socket.inner.sendall(encoded + IDENTIFIER + encoded)  # type: ignore[attr-defined]
    conn.usable()


@one_worker
@pytest.mark.case("C106", "C109")
@pytest.mark.parametrize(
    ("codec", "broken"),
    [
        ("snappy", b"NOP\n"),
        ("snappy", Snappy().encode(b"NOP\n")[:-1] + b"?"),
        ("snappy", IDENTIFIER + b"\x7f\1\0\0?"),
        ("deflate", b"\xff\xff\xff\xff"),
    ],
)
def test_broken_input_ends_the_connection_in_silence(
    codec: str, broken: bytes, secured: Nsqd
) -> None:
    conn = connect(secured, codec=codec)
    conn.usable()
    conn.socket.inner.sendall(broken)  # type: ignore[attr-defined]
    ends(conn)


def test_answers_before_broken_input_are_given(secured: Nsqd, topic: str) -> None:
    conn = connect(secured, codec="snappy")
    publish = Snappy().encode(f"PUB {topic}\n".encode() + sized(b"x"))
    conn.socket.inner.sendall(publish + b"\x7f" * 20)  # type: ignore[attr-defined]
    conn.expect_ok()
    conn.eof()


@one_worker
@pytest.mark.case("C104")
def test_a_large_body_in_snappy(secured: Nsqd, topic: str) -> None:
    body = os.urandom(100_000) + b"x" * 100_000
    conn = connect(secured, codec="snappy").sub(topic, "c", rdy=1)
    conn.command("PUB", topic, body=body)
    kinds = {}
    for _ in range(2):
        frame = conn.frame()
        kinds[frame.kind] = frame.data
    assert Message.parse(kinds[MESSAGE]).body == body


# -- deflate


@one_worker
@pytest.mark.case("C107")
def test_deflate_is_raw(secured: Nsqd) -> None:
    conn = secured.connect()
    answer = conn.negotiate(deflate=True, deflate_level=3)
    assert (answer["deflate"], answer["deflate_level"]) == (True, 3)
    inflater = zlib.decompressobj(-15)
    decoded = inflater.decompress(raw(conn, 10))
    while len(decoded) < len(OK):
        decoded += inflater.decompress(conn.socket.recv(1000))
    assert decoded == OK
    eventually(lambda: "deflate (level 3)" in secured.log_text())


@one_worker
@pytest.mark.case("C072")
@pytest.mark.parametrize(("level", "agreed"), [(-1, 6), (0, 6), (3, 3), (9, 6), (100, 6)])
def test_deflate_levels(level: int, agreed: int, secured: Nsqd) -> None:
    conn = secured.connect()
    assert conn.negotiate(deflate=True, deflate_level=level)["deflate_level"] == agreed
    start_codec(conn, "deflate")
    conn.expect_ok()
    conn.usable()


@one_worker
@pytest.mark.case("C108")
def test_an_unknown_command_in_deflate(secured: Nsqd) -> None:
    conn = connect(secured, codec="deflate")
    conn.send(b"FOO\n")
    conn.expect_error("E_INVALID invalid command FOO")


@one_worker
@pytest.mark.case("C074", "H19")
def test_not_both_codecs(secured: Nsqd) -> None:
    conn = secured.connect()
    body = {"feature_negotiation": True, "snappy": True, "deflate": True}
    conn.command("IDENTIFY", body=json.dumps(body).encode())
    conn.expect_error("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")


@one_worker
@pytest.mark.case("C075")
@pytest.mark.parametrize("off", ["snappy", "deflate"])
def test_one_codec_is_switched_off(off: str, nsqd: Starter) -> None:
    daemon = nsqd(**{off: "false"})
    conn = daemon.connect()
    answer = conn.negotiate(snappy=True, deflate=True)
    left = "deflate" if off == "snappy" else "snappy"
    assert (answer[off], answer[left]) == (False, True)
    start_codec(conn, left)
    conn.expect_ok()
    conn.usable()


@one_worker
def test_without_upgrades_commands_may_follow_at_once(secured: Nsqd) -> None:
    conn = secured.connect()
    body = json.dumps({"feature_negotiation": True}).encode()
    conn.send(b"IDENTIFY\n", sized(body), b"NOP\n", b"PUB usable\n", sized(b"x"))
    conn.expect_json()
    conn.expect_ok()
    assert split_frames(conn._input) == ([], b"")
