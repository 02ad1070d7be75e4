"""What other people's test suites and scripts demand of the command, beyond the protocol."""

import re
import socket
import time
from pathlib import Path

import pytest
from conftest import Starter
from daemon import Nsqd, free_port, run
from talk import Conn, sized
from web import eventually

VERSION = re.compile(r"[a-z]+ v\d+\.\d+\.\d+(-[a-z]+)? \(built w/[a-z0-9.-]+\)")
ANNOUNCEMENT = re.compile(r"(TCP|HTTP|HTTPS): listening on \d+\.\d+\.\d+\.\d+:\d+\s*$")


@pytest.mark.case("H01", "H02")
def test_flag_forms(nsqd: Starter) -> None:
    daemon = nsqd(
        args=(
            "-broadcast-address=127.0.0.1",
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
    assert VERSION.search(result.stdout), result
    found = re.search(r"v(\d+)\.(\d+)\.(\d+)", result.stdout)
    assert found and tuple(map(int, found.groups())) >= (0, 3, 6)


@pytest.mark.case("H05", "H06", "H07")
def test_announcements(nsqd: Starter) -> None:
    daemon = nsqd(tcp_address="0.0.0.0:0", http_address="0.0.0.0:0")
    assert daemon.tcp_port and daemon.http_port
    daemon.connect().usable()
    daemon.stop()
    lines = [line for line in daemon.log_text().splitlines() if "listening on" in line]
    assert len(lines) == 2
    assert all(ANNOUNCEMENT.search(line) for line in lines), lines


@pytest.mark.case("H06")
def test_stderr_ends_with_the_daemon(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.stop()
    assert not daemon._reader.is_alive(), "something still holds stderr open"


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
