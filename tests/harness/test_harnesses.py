"""Requirements that third-party test suites and scripts place on the command, beyond the protocol.

The requirements are numbered H01 to H22. Requirements that are also protocol cases are tested in
tests/conformance.
"""

import contextlib
import re
import socket
from pathlib import Path

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Conn, sized
from support.nsqd_process import Nsqd, free_port

SERVER = make("server")
ANNOUNCEMENT = re.compile(r"(TCP|HTTP|HTTPS): listening on \d+\.\d+\.\d+\.\d+:\d+\s*$")


@one_worker
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


@one_worker
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


@one_worker
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


@one_worker
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


@one_worker
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
