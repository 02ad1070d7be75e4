"""Requirements that third-party test suites and scripts place on the command, beyond the protocol.

The requirements are numbered H01 to H22.
"""

import contextlib
import http.client
import json
import re
import socket
import ssl
import time
from pathlib import Path

import pytest

from conftest import Starter
from nsqcy.testing.certificates import Files, Identity, make
from nsqcy.testing.encoded_connection import client_context, connect, start_tls
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, sized
from support.fake_auth_server import AuthServer
from support.nsqd_process import Nsqd, free_port, run
from support.weak_certificates import WEAK_AUTHORITY, WEAK_CLIENT

VERSION = re.compile(r"[a-z]+ v\d+\.\d+\.\d+(-[a-z]+)? \(built w/[a-z0-9.-]+\)")
SERVER = make("server")
STRANGER = make("stranger")
ANNOUNCEMENT = re.compile(r"(TCP|HTTP|HTTPS): listening on \d+\.\d+\.\d+\.\d+:\d+\s*$")


@pytest.mark.case("H01", "H02")
def test_flag_forms(nsqd: Starter) -> None:
    daemon = nsqd(
        args=(
            "-broadcast-address=127.0.0.1",
            "-lookupd-tcp-address=127.0.0.1:1",
            "-max-rdy-count",
            "17",
            "--msg-timeout",
            "1500ms",
            "--verbose",
            "--snappy",
            "--deflate",
        )
    )
    answer = daemon.connect().negotiate()
    assert (answer["max_rdy_count"], answer["msg_timeout"]) == (17, 1500)


@pytest.mark.case("H03", "H04")
def test_version_line() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert VERSION.search(result.stdout), result
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", result.stdout)
    assert found and tuple(map(int, found.groups())) >= (0, 3, 6)


@pytest.mark.case("H05", "H06", "H07")
def test_announcements(nsqd: Starter, tmp_path: Path) -> None:
    addresses = dict.fromkeys(["tcp_address", "http_address", "https_address"], "0.0.0.0:0")
    daemon = nsqd(**addresses, **SERVER.save(tmp_path).options)
    # Each address was read while the daemon was running.
    assert all([daemon.tcp_port, daemon.http_port, daemon.https_port])
    daemon.connect().usable()
    daemon.stop()
    lines = [line for line in daemon.log_text().splitlines() if "listening on" in line]
    assert len(lines) == 3
    assert all(ANNOUNCEMENT.search(line) for line in lines), lines


@pytest.mark.case("H06")
def test_stderr_ends_with_the_daemon(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.stop()
    assert daemon.log_is_closed(), "a process still has stderr open"


@pytest.mark.case("H08")
def test_https_opens_by_itself_with_a_certificate(nsqd: Starter, tmp_path: Path) -> None:
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # another process may already use the port
            taken.bind(("0.0.0.0", 4152))
            taken.listen()
        assert "HTTPS" not in nsqd(https_address=None).log_text()
        daemon = nsqd.prepare(https_address=None, **SERVER.save(tmp_path).options)
        daemon.launch()
        assert daemon.wait(20) == 1
        assert "listen (0.0.0.0:4152) failed" in daemon.log_text()


@pytest.mark.case("H09")
def test_ping(shared: Nsqd) -> None:
    answer = shared.web.get("/ping")
    assert (answer.status, answer.body) == (200, b"OK")


@pytest.mark.case("H10")
def test_a_peer_that_connects_early_waits_instead_of_being_refused(nsqd: Starter) -> None:
    port = free_port()
    daemon = nsqd.prepare(
        announced=False,
        tcp_address=f"127.0.0.1:{port}",
        http_address=f"127.0.0.1:{free_port()}",
    )
    daemon.launch()

    def connected() -> Conn | None:
        try:
            return Conn(("127.0.0.1", port), timeout=20.0)
        except ConnectionRefusedError:
            return None

    with eventually(connected, timeout=20.0) as conn:
        conn.usable()
    daemon.await_ready()


@pytest.mark.case("H12")
def test_stats_show_a_message_once_its_publish_is_answered(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    conn = shared.connect()
    for number in range(1, 21):
        web.pub(topic, b"x")
        assert web.counts(topic, "c")["depth"] == 2 * number - 1
        conn.pub(topic, b"x")
        assert web.counts(topic, "c")["depth"] == 2 * number
        web.pub(topic, b"x", defer=100000)
        assert web.counts(topic, "c")["deferred_count"] == 2 * number - 1
        conn.dpub(topic, 100000, b"x")
        assert web.counts(topic, "c")["deferred_count"] == 2 * number


@pytest.mark.case("H13")
def test_tcp_client_at_the_http_port(shared: Nsqd) -> None:
    with socket.create_connection(("127.0.0.1", shared.http_port), timeout=10) as link:
        link.sendall(b"  V2IDENTIFY\n\0\0\0\x02{}")
        assert link.recv(100).startswith(b"HTTP")


@pytest.mark.case("H14")
def test_current_directory_and_left_over_files(nsqd: Starter, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    daemon = nsqd(cwd=home, data_path=None, mem_queue_size=0)
    for number in range(3):
        name = f"t{number}"
        daemon.connect().sub(name, "c").pub(name, b"x")
        eventually(lambda name=name: f'"{name}"' in (home / "nsqd.dat").read_text())
        daemon.restart(killed=True)
    assert {"t0", "t1", "t2"} <= set(daemon.web.topics())
    daemon.connect().usable()


@pytest.mark.case("H15")
def test_terminate_is_a_clean_exit(nsqd: Starter, topic: str) -> None:
    daemon = nsqd()
    conn = daemon.connect().sub(topic, "c", rdy=10)
    daemon.connect().pub(topic, b"x")
    conn.message()
    start = time.monotonic()
    daemon.stop()
    assert time.monotonic() - start < 10.0


@pytest.mark.case("H16", "H17", "H18")
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (
            b"IDENTIFY\n" + sized(b'{"heartbeat_interval": 100}'),
            "E_BAD_BODY IDENTIFY heartbeat interval (100) is invalid",
        ),
        (b"CLS\n", "E_INVALID cannot CLS in current state"),
        (b"DPUB t -1000\n\0\0\0\x01x", "E_INVALID DPUB could not parse timeout -1000"),
    ],
)
def test_error_texts(shared: Nsqd, sent: bytes, text: str) -> None:
    conn = shared.connect()
    conn.send(sent)
    conn.expect_error(text, reset=True)


@pytest.mark.case("H19")
@pytest.mark.parametrize("tls", [False, True])
def test_both_codecs_are_an_error(tls: bool, nsqd: Starter, tmp_path: Path) -> None:
    conn = nsqd(**SERVER.save(tmp_path).options).connect()
    wanted = {"feature_negotiation": True, "tls_v1": tls, "snappy": True, "deflate": True}
    conn.command("IDENTIFY", body=json.dumps(wanted).encode())
    conn.expect_error("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")


def served(daemon: Nsqd, shown: Files | None = None) -> None:
    """Check that a client with this certificate connects with TLS 1.2 and 1.3, at security level
    0."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = client_context(shown, version, level=0)
        connect(daemon, tls=context).usable()
        assert daemon.secure_web(context).get("/ping").body == b"OK"


def refused(daemon: Nsqd, shown: Files | None = None) -> None:
    context = client_context(shown, ssl.TLSVersion.TLSv1_2)
    conn = daemon.connect()
    conn.negotiate(tls_v1=True)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        start_tls(conn, context)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
        daemon.secure_web(context).get("/ping")


@pytest.mark.case("H20")
@pytest.mark.parametrize(
    "server", [make("late", expired=True), WEAK_CLIENT], ids=["expired", "SHA-1"]
)
def test_old_certificates_serve(server: Identity, nsqd: Starter, tmp_path: Path) -> None:
    served(nsqd(**server.save(tmp_path).options))


@pytest.mark.case("H21")
def test_a_chain_that_ends_in_a_weak_authority(nsqd: Starter, tmp_path: Path) -> None:
    daemon = nsqd(
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=WEAK_AUTHORITY.save(tmp_path).certificate,
        **SERVER.save(tmp_path).options,
    )
    served(daemon, WEAK_CLIENT.save(tmp_path))
    refused(daemon, STRANGER.save(tmp_path))
    refused(daemon)


@pytest.mark.case("H22")
def test_a_certificate_is_demanded_but_not_verified(
    nsqd: Starter, auth_server: AuthServer, topic: str, tmp_path: Path
) -> None:
    daemon = nsqd(
        tls_client_auth_policy="require",
        auth_http_address=auth_server.address,
        **SERVER.save(tmp_path).options,
    )
    refused(daemon)
    shown = STRANGER.save(tmp_path)
    assert daemon.secure_web(client_context(shown)).get("/ping").body == b"OK"
    conn = connect(daemon, tls=client_context(shown))
    conn.command("AUTH", body=topic.encode())
    assert conn.expect_json()["permission_count"] == 1
    conn.usable()
    assert "common_name=stranger&" in auth_server.asked(topic)[0].path
