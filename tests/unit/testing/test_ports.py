"""Ports that stay free until a daemon binds them."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nsqcy.testing import nsqd, ports
from nsqcy.testing.ports import Ports
from support.nsqd_process import environment, free_port


def ephemeral() -> range:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return range(low, high + 1)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All ports that can be reserved."""
    with Ports() as found:
        numbers = [found.take() for _ in range(3)]
    monkeypatch.setattr(ports, "_candidates", lambda: list(numbers))
    return sorted(numbers)


@pytest.mark.slow
def test_no_port_is_one_that_the_kernel_gives_to_connections() -> None:
    with Ports() as mine:
        assert not {mine.take() for _ in range(20)} & set(ephemeral())


@pytest.mark.parametrize(
    ("text", "outside", "inside"),
    [
        ("32768\t60999\n", [10000, 32767, 61000, 65535], [32768, 60999, 9999]),
        ("1024 65535\n", [10000, 65535], [9999]),  # no other ports are left
        ("9000 65535\n", [10000, 65535], [9999]),
        ("1024 20000\n", [20001, 65535], [10000, 20000]),
    ],
)
def test_which_ports_there_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    outside: list[int],
    inside: list[int],
) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    found = set(ports._candidates())
    assert found >= set(outside) and not found & set(inside)


def test_a_port_belongs_to_one_holder(three: list[int]) -> None:
    with Ports() as mine, Ports() as other:
        assert sorted([mine.take(), other.take(), mine.take()]) == three
        with pytest.raises(OSError, match="no free port"):
            other.take()
        mine.close()
        assert other.take() in three


def test_another_process_does_not_get_it(three: list[int]) -> None:
    program = (
        "from nsqcy.testing import ports\n"
        f"ports._candidates = lambda: {three}\n"
        "print(ports.Ports().take())"
    )
    with Ports() as mine:
        held = {mine.take(), mine.take()}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert {int(done.stdout)} == set(three) - held


def test_a_port_that_is_in_use_is_skipped(three: list[int]) -> None:
    with socket.create_server(("127.0.0.1", three[0])), Ports() as mine:
        assert {mine.take(), mine.take()} == set(three[1:])


def test_a_lock_file_of_another_user_is_skipped(
    three: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the file cannot be opened, another user may have reserved the port."""
    monkeypatch.setattr(ports, "_folder", lambda: str(tmp_path))
    (tmp_path / str(three[0])).mkdir()
    with Ports() as mine:
        assert {mine.take(), mine.take()} == set(three[1:])


@pytest.mark.slow
def test_a_private_daemon_holds_its_ports_until_it_is_closed() -> None:
    daemon = nsqd()
    try:
        addresses = daemon.tcp_address, daemon.http_address
        numbers = [int(each.rpartition(":")[2]) for each in addresses]
        assert not set(numbers) & set(ephemeral())
        daemon.start()
        daemon.restart()
        daemon.stop()
        assert addresses == (daemon.tcp_address, daemon.http_address)
        assert [ports._lock(number) for number in numbers] == [None, None]
    finally:
        daemon.close()
    for number in numbers:
        lock = ports._lock(number)
        assert lock is not None
        lock.close()


def test_ports_of_tests_are_not_ephemeral() -> None:
    assert free_port() not in ephemeral()
