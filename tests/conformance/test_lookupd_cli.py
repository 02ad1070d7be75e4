"""nsqlookupd's flags, files, signals and final errors, as users and third-party harnesses encounter
them."""

import itertools
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from support.nsqd_process import environment, free_port
from support.nsqlookupd_process import LookupConn, Lookupd
from support.service_manager import Manager

VERSION = re.compile(r"[a-z]+ v\d+\.\d+\.\d+(-[a-z]+)? \(built w/[a-z0-9.-]+\)")
ANNOUNCEMENT = re.compile(r"(TCP|HTTP): listening on \d+\.\d+\.\d+\.\d+:\d+$")


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*Lookupd.command(), *args],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )


@pytest.mark.real_start
@pytest.mark.case("H03", "H04", "TOOL-001")
def test_version() -> None:
    result = run("--version", "--config=/nonexistent")
    assert (result.returncode, result.stderr) == (0, "")
    assert VERSION.fullmatch(result.stdout.strip())
    assert result.stdout.startswith("nsqlookupd v1.3.0 ")


def test_help() -> None:
    result = run("-h")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.startswith("Usage of nsqlookupd:\n")
    flags = set(re.findall(r"^  -([a-z0-9-]+)", result.stderr, re.MULTILINE))
    assert flags >= {
        "version",
        "config",
        "log-level",
        "log-prefix",
        "verbose",
        "tcp-address",
        "http-address",
        "broadcast-address",
        "inactive-producer-timeout",
        "tombstone-lifetime",
    }


@pytest.mark.case("CFG-39")
@pytest.mark.parametrize("kind", ["tcp", "http"])
def test_unix_sockets_are_not_for_it(kind: str, tmp_path: Path) -> None:
    addresses = {"tcp": "127.0.0.1:0", "http": "127.0.0.1:0"} | {kind: f"{tmp_path}/x.sock"}
    result = run(*(f"--{name}-address={text}" for name, text in addresses.items()))
    assert result.returncode == 1
    reason = f"listen tcp: address {tmp_path}/x.sock: missing port in address"
    text = f"listen ({tmp_path}/x.sock) failed - {reason}"
    assert result.stderr.endswith(f"FATAL: failed to instantiate nsqlookupd - {text}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.case("CFG-40")
@pytest.mark.parametrize("flag", ["--inactive-producer-timeout=5", "--log-level=trace", "--bogus"])
def test_command_lines_that_cannot_be_read(flag: str) -> None:
    result = run(flag)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_values_that_are_refused() -> None:
    result = run("--max-input-bytes=1")
    assert result.returncode == 1
    text = "failed to instantiate nsqlookupd - --max-input-bytes must be >= 4194304"
    assert result.stderr.endswith(f"FATAL: {text}\n")


@pytest.mark.case("TOOL-009")
def test_an_address_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("--tcp-address=127.0.0.1:0", f"--http-address={address}")
    assert result.returncode == 1
    reason = f"listen ({address}) failed - listen tcp {address}: bind: address already in use"
    hint = "; stop the process that uses it, or change --http-address"
    assert result.stderr.endswith(f"FATAL: failed to instantiate nsqlookupd - {reason}{hint}\n")


def test_a_missing_file(tmp_path: Path) -> None:
    result = run(f"--config={tmp_path}/none")
    assert result.returncode == 1
    assert f"FATAL: failed to load config file {tmp_path}/none - " in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "tombstone_lifetime = 1\ninactive_producer_timeout = 100\n",
        "[nsqlookupd]\ntombstone_lifetime = 1ms\ninactive_producer_timeout = 100ms\n",
    ],
    ids=["toml", "ini"],
)
def test_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with Lookupd(args=(f"--config={path}",), tombstone_lifetime="1h") as lookupd:
        conn = lookupd.connect()
        conn.identify("A")
        conn.register("t")
        eventually(lambda: lookupd.nodes() == [])  # the file's value
        assert lookupd.web.post("/topic/tombstone", topic="t", node="A:11").status == 200

        def tombstones() -> list[bool]:
            conn.ping()
            nodes = lookupd.nodes()
            return nodes[0]["tombstones"] if nodes else []

        assert eventually(tombstones) == [True]  # the command line's value


@pytest.mark.case("H01", "H02")
def test_flag_forms() -> None:
    args = ("-inactive-producer-timeout=10m", "--verbose", "-tombstone-lifetime", "1s")
    with Lookupd(args=args) as lookupd:
        lookupd.connect().ping()
        lookupd.stop()
        assert "WARNING: --verbose is deprecated" in lookupd.log_text()


@pytest.mark.case("TOOL-006", "TOOL-007")
def test_words_behind_the_flags_are_ignored() -> None:
    ports = ("-http-address", "127.0.0.1:0", "-tcp-address=127.0.0.1:0", "-verbose")
    unset = dict.fromkeys(("tcp_address", "http_address", "broadcast_address"))
    with Lookupd(args=(*ports, "extra", "--log-level=bogus"), **unset) as lookupd:
        lookupd.connect().ping()
        lookupd.stop()


@pytest.mark.case("H05", "H06", "H07")
def test_announcements() -> None:
    with Lookupd(tcp_address="0.0.0.0:0", http_address="") as lookupd:
        assert lookupd.connect().command("PING") == b"OK"
        assert lookupd.web.get("/ping").body == b"OK"
        lookupd.stop()
        lines = [line for line in lookupd.log_text().splitlines() if "listening on" in line]
        assert len(lines) == 2
        assert all(ANNOUNCEMENT.search(line) for line in lines), lines
        assert lookupd.log_text().splitlines()[0].endswith(run("--version").stdout.strip())


@pytest.mark.case("H10")
def test_a_peer_that_connects_early_waits_instead_of_being_refused() -> None:
    port = free_port()
    lookupd = Lookupd(tcp_address=f"127.0.0.1:{port}")
    lookupd.launch()

    def connected() -> LookupConn | None:
        try:
            return LookupConn(port, timeout=20.0)
        except ConnectionRefusedError:
            return None

    try:
        conn = eventually(connected, timeout=20.0)
        conn.ping()
        conn.close()
        lookupd.await_ready()
    finally:
        lookupd.destroy()


@pytest.mark.case("CFG-41", "H15", "TOOL-008")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_end_it(signum: signal.Signals) -> None:
    with Lookupd() as lookupd:
        lookupd.connect().identify("A")
        lookupd.process.send_signal(signum)
        assert lookupd.wait() == 0
        lines = [line.split(" ", 3)[3] for line in lookupd.log_text().splitlines()]
        assert f"INFO: TCP: closing {lookupd.tcp_address}" in lines
        assert f"INFO: HTTP: closing {lookupd.http_address}" in lines


def test_a_hangup_reads_the_log_level_again(tmp_path: Path) -> None:
    path = tmp_path / "lookupd.ini"
    path.write_text("[nsqlookupd]\nlog_level = info\n")
    with Lookupd(args=(f"--config={path}",)) as lookupd:
        lookupd.connect().identify("A")
        path.write_text("[nsqlookupd]\nlog_level = nonsense\n")
        os.kill(lookupd.process.pid, signal.SIGHUP)
        eventually(lambda: "ERROR: SIGHUP: failed to load config" in lookupd.log_text())
        lookupd.web.get("/topics")
        eventually(lambda: "200 GET /topics" in lookupd.log_text())
        path.write_text("[nsqlookupd]\nlog_level = error\n")
        os.kill(lookupd.process.pid, signal.SIGHUP)

        number = itertools.count()

        def is_quiet() -> bool:
            """Return whether the log contains a line logged after the request, but none about the
            request."""
            target = f"/nodes?{next(number)}"  # the log omits repeated requests
            errors = lookupd.log_text().count("'BAD!'")
            assert lookupd.web.get(target).status == 200
            lookupd.connect(magic=b"BAD!").answer()
            eventually(lambda: lookupd.log_text().count("'BAD!'") > errors)
            return f"200 GET {target} " not in lookupd.log_text()

        eventually(is_quiet)
        lookupd.stop()


def test_a_look_inside_does_not_end_it() -> None:
    with Lookupd() as lookupd:
        lookupd.process.send_signal(signal.SIGQUIT)
        eventually(lambda: "(most recent call first)" in lookupd.log_text())
        lookupd.connect().ping()
        lookupd.stop()


def test_a_restart_on_the_same_ports() -> None:
    with Lookupd() as lookupd:
        lookupd.connect().identify("A")
        address = lookupd.tcp_address
        lookupd.kill()
        lookupd.hang_up()
        lookupd.start()
        assert lookupd.tcp_address == address
        assert lookupd.nodes() == []


@pytest.mark.ours
def test_a_service_manager_hears_of_it(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    manager = Manager(str(short_path / "notify"))
    for name, value in manager.environ(watchdog=0.1).items():
        monkeypatch.setenv(name, value)
    with Lookupd() as lookupd:
        where = f"serving TCP {lookupd.tcp_address}, HTTP {lookupd.http_address}"
        assert manager.hear() == {"READY": "1", "STATUS": where}
        assert [manager.hear(), manager.hear()] == [{"WATCHDOG": "1"}] * 2
        lookupd.stop()
        assert manager.until("STOPPING")[-1] == {"STOPPING": "1", "STATUS": "closing"}
        assert manager.hear_all() == []
    manager.close()
