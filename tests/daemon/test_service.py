"""nsqd under a service manager: readiness, the watchdog, and sockets passed at startup."""

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.wire_client import Conn
from support import nsq_diskqueue
from support.nsqd_process import FOREIGN, Nsqd, environment, free_port
from support.service_manager import Manager

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(bool(FOREIGN), reason="NSQ does not support service managers"),
]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(str(tmp_path / "notify"))
    yield found
    found.close()


def listening(address: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((address, 0), backlog=100)


def port(sock: socket.socket) -> int:
    number: int = sock.getsockname()[1]
    return number


def test_ready_means_that_it_serves(nsqd: Starter, manager: Manager, workers: int) -> None:
    tcp, http = free_port(), free_port()
    daemon = nsqd.prepare(
        environ=manager.environ(watchdog=10),
        tcp_address=f"127.0.0.1:{tcp}",
        http_address=f"127.0.0.1:{http}",
    )
    daemon.launch()
    ready = manager.until("READY")[-1]
    assert Web(http).get("/ping").body == b"OK"
    with Conn(("127.0.0.1", tcp)) as conn:
        conn.usable()
    where = f"TCP 127.0.0.1:{tcp}, HTTP 127.0.0.1:{http}"
    assert ready["STATUS"] == f"serving {where} with {workers} workers"
    assert "WATCHDOG" in manager.hear()
    daemon.await_ready()
    daemon.stop()
    assert manager.hear_all()[0] == {"STOPPING": "1", "STATUS": "saving"}


def test_an_import_is_given_time(nsqd: Starter, manager: Manager) -> None:
    daemon = nsqd.prepare(environ=manager.environ())
    nsq_diskqueue.write_queue(daemon.data, "t", nsq_diskqueue.messages(1, 10))
    daemon.start()
    heard = manager.until("READY")
    assert heard[:2] == [{"STATUS": "importing"}, {"EXTEND_TIMEOUT_USEC": "30000000"}]
    assert daemon.web.counts("t")["depth"] == 10


def test_a_stopped_worker_stops_the_watchdog(nsqd: Starter, manager: Manager) -> None:
    daemon = nsqd(environ=manager.environ(watchdog=0.1))
    manager.until("WATCHDOG")
    pid = daemon.workers()[-1]
    os.kill(pid, signal.SIGSTOP)
    manager.until("STATUS", "no heartbeat: worker")
    assert manager.hear_all(10 * 0.05) == []
    os.kill(pid, signal.SIGCONT)
    manager.until("WATCHDOG")
    daemon.connect().usable()


def test_probes_of_an_nsqd_whose_workers_are_stopped(nsqd: Starter) -> None:
    daemon = nsqd()
    workers = daemon.workers()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:

        def status(path: str) -> int:
            """Return 0 while the request is still passed to a stopped worker."""
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{daemon.http_port}{path}", timeout=1)
            except urllib.error.HTTPError as error:
                with error:
                    assert error.read().splitlines()[0] == b"worker 0 does not answer"
                return error.code
            except OSError:
                return 0
            raise AssertionError("a stopped worker answered")

        eventually(lambda: status("/live") == 503, timeout=30)
        assert status("/ready") == 503
        words = ["--quiet", "--timeout=1s", f"--nsqd-http-address=127.0.0.1:{daemon.http_port}"]
        done = subprocess.run(
            [sys.executable, "-m", "nsqcy", "doctor", "--host=false", "--sample=0", *words],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 1
        assert "hangs: worker 0 does not answer" in done.stdout
        assert "docs/runbooks/worker-restarted.md" in done.stdout
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: daemon.web.get("/live").status == 200)


def test_sockets_by_name(nsqd: Starter) -> None:
    http, tcp = listening(), listening()
    daemon = nsqd(sockets=[http, tcp], socket_names="http:tcp")
    assert (daemon.tcp_port, daemon.http_port) == (port(tcp), port(http))
    daemon.connect().usable()
    daemon.stop()
    text = daemon.log_text()
    assert f"HTTP: closing 127.0.0.1:{port(http)}" in text


def test_sockets_by_address_and_what_is_missing_is_bound(nsqd: Starter) -> None:
    http = listening()
    daemon = nsqd(
        sockets=[http], socket_names="nsqd.socket", http_address=f"127.0.0.1:{port(http)}"
    )
    assert daemon.http_port == port(http)
    assert daemon.tcp_port not in (0, port(http))
    daemon.connect().usable()


def test_clients_wait_while_it_restarts(nsqd: Starter, topic: str) -> None:
    """Socket activation ensures that no client is refused during a restart."""
    tcp, http = listening(), listening()
    daemon = nsqd(sockets=[tcp, http])
    daemon.connect().pub(topic, b"before")
    daemon.stop()
    waiting = Conn(("127.0.0.1", port(tcp)), timeout=20.0)  # no nsqd is running now
    daemon.start()
    waiting.sub(topic, "c", rdy=1)
    assert waiting.message().body == b"before"
    waiting.close()


def test_a_unix_socket_that_is_handed_over_keeps_its_file(nsqd: Starter, tmp_path: Path) -> None:
    path = tmp_path / "tcp.sock"
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        unix.listen()
        daemon = nsqd(sockets=[unix], tcp_address=str(path))
        assert daemon.addresses["TCP"] == str(path)
        with Conn(str(path)) as conn:
            conn.usable()
        daemon.stop()
    assert path.is_socket()


def refusal(daemon: Nsqd) -> str:
    daemon.launch()
    assert daemon.wait() == 1
    return daemon.tail(1).rstrip()


@one_worker
def test_what_is_handed_over_wrongly_is_named(nsqd: Starter) -> None:
    def prepare(*sockets: socket.socket, names: str = "") -> Nsqd:
        return nsqd.prepare(sockets=list(sockets), socket_names=names)

    with socket.socket(type=socket.SOCK_DGRAM) as datagram:
        text = refusal(prepare(datagram, names="tcp"))
    assert "FATAL: failed to receive sockets - descriptor 3 (tcp) from the service manager" in text
    assert "is of type SOCK_DGRAM (allowed: listening stream sockets" in text
    text = refusal(prepare(listening(), listening(), listening()))
    assert "unexpected 127.0.0.1:" in text
    assert "allowed: one socket for each of tcp, http" in text


@one_worker
def test_the_limit_of_open_files_is_raised_and_logged(nsqd: Starter) -> None:
    daemon = nsqd()
    eventually(lambda: "INFO: open files: limit " in daemon.log_text())
    limits = Path(f"/proc/{daemon.workers()[0]}/limits").read_text()
    soft, hard = next(
        line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")
    )
    assert soft == hard
