"""Notifications to a service manager, and which of its sockets are used."""

import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsqcy.errors import StartError
from nsqcy.process import systemd
from nsqcy.process.systemd import Notifier
from support.service_manager import Manager


class Lines(list[str]):
    """Log that records its lines."""

    def info(self, text: str, /, **fields: object) -> None:
        self.append(text)

    warn = error = info


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify")
    found = Manager(path if request.param == "path" else f"@{path}")
    yield found
    found.close()


def test_what_it_hears(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    assert notifier.heard
    notifier.status("starting\nREADY=1")
    notifier.prolong()
    notifier.ready("serving")
    notifier.alive()
    notifier.status("serving")  # nothing new
    notifier.reloading()
    notifier.ready("serving again")
    notifier.stopping("saving")
    heard = manager.hear_all()
    moment = heard[4].pop("MONOTONIC_USEC")
    assert 0 <= int(moment) <= time.monotonic_ns() // 1000
    assert heard == [
        {"STATUS": "starting"},
        {"EXTEND_TIMEOUT_USEC": "30000000"},
        {"READY": "1", "STATUS": "serving"},
        {"WATCHDOG": "1"},
        {"RELOADING": "1"},
        {"READY": "1", "STATUS": "serving again"},
        {"STOPPING": "1", "STATUS": "saving"},
    ]


def test_what_gets_on_is_told_now_and_then(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = Notifier(manager.address)
    for second in range(12):
        monkeypatch.setattr(systemd, "time", SimpleNamespace(monotonic=lambda now=second: now))
        notifier.still_starting("importing")
    more_time = {"EXTEND_TIMEOUT_USEC": "30000000"}
    assert manager.hear_all() == [{"STATUS": "importing"}, more_time, more_time, more_time]


def test_the_environment_is_for_us_alone(manager: Manager) -> None:
    environ = {**manager.environ(watchdog=2.5), "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = systemd.notifier(environ, Lines())
    assert environ == {"HOME": "/"}
    assert (notifier.heard, notifier.watchdog) == (True, 2.5)


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({"WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 1),
        ({"WATCHDOG_USEC": ""}, 0),
    ],
)
def test_nobody_watches(manager: Manager, changes: dict[str, str], warnings: int) -> None:
    lines = Lines()
    notifier = systemd.notifier(manager.environ(watchdog=2.5) | changes, lines)
    assert (notifier.heard, notifier.watchdog, len(lines)) == (True, 0.0, warnings)


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative", "/no/such/socket", "@nobody"])
def test_nobody_to_tell(address: str) -> None:
    lines = Lines()
    notifier = systemd.notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}, lines)
    notifier.ready("serving")
    assert (notifier.heard, notifier.watchdog) == (False, 0.0)
    assert len(lines) == bool(address)
    assert all(address in line for line in lines)


def test_a_manager_that_goes_away_is_complained_of_once(manager: Manager) -> None:
    lines = Lines()
    notifier = systemd.notifier(manager.environ(watchdog=1), lines)
    manager._sock.close()
    notifier.alive()
    notifier.alive()
    assert (notifier.heard, notifier.watchdog, len(lines)) == (False, 0.0, 1)
    manager._sock = socket.socket()


@pytest.mark.slow
def test_a_manager_that_does_not_read_holds_nobody_up(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "SEND_LIMIT", 0.001)
    notifier = Notifier(manager.address)
    for _ in range(1000):  # more than the manager's queue holds
        notifier.alive()
    assert notifier.heard
    assert 0 < len(manager.hear_all()) < 1000
    notifier.ready("serving")
    assert manager.hear() == {"READY": "1", "STATUS": "serving"}


# -- sockets

FIRST = 700


@pytest.fixture
def hand_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Turn sockets into descriptors FIRST, FIRST + 1 and so on; return the environment that
    announces them."""
    monkeypatch.setattr(systemd, "FIRST_FD", FIRST)
    used = []

    def handed(*sockets: socket.socket, names: str = "", pid: int = 0) -> dict[str, str]:
        for place, sock in enumerate(sockets, FIRST):
            used.append(os.dup2(sock.fileno(), place))
            sock.close()
        found = {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": str(len(sockets))}
        return found | ({"LISTEN_FDNAMES": names} if names else {})

    yield handed
    for fd in used:
        try:
            os.close(fd)
        except OSError:
            pass


def listening(family: int = socket.AF_INET) -> socket.socket:
    sock = socket.socket(family)
    sock.bind(("127.0.0.1", 0) if family == socket.AF_INET else "")
    sock.listen()
    return sock


def test_sockets_come_with_their_names(hand_over) -> None:
    environ = hand_over(listening(), listening(socket.AF_UNIX), names="http:tcp")
    found = systemd.inherited(environ)
    assert environ == {}
    assert [each.name for each in found] == ["http", "tcp"]
    assert [each.sock.family for each in found] == [socket.AF_INET, socket.AF_UNIX]
    assert [each.sock.fileno() for each in found] == [FIRST, FIRST + 1]
    assert not any(os.get_inheritable(each.sock.fileno()) for each in found)
    assert not any(each.sock.getblocking() for each in found)
    for each in found:
        each.sock.close()


def test_names_may_be_missing(hand_over) -> None:
    found = systemd.inherited(hand_over(listening(), listening(), names="tcp"))
    assert [each.name for each in found] == ["tcp", ""]
    for each in found:
        each.sock.close()


def test_sockets_of_another_process_are_not_ours(hand_over) -> None:
    environ = hand_over(listening(), pid=1)
    assert systemd.inherited(environ) == []
    assert environ == {}
    assert systemd.inherited({}) == []


@pytest.mark.parametrize(
    ("sock", "reason"),
    [
        (
            lambda: socket.socket(type=socket.SOCK_DGRAM),
            "is of type SOCK_DGRAM (allowed: listening",
        ),
        (lambda: socket.socket(), "is not listening (set Accept=no) (allowed: listening"),
        (lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW), "is of family 16 (allowed"),
        (lambda: io.FileIO(os.devnull), "is not a socket (Socket operation on non-socket)"),
    ],
)
def test_what_is_no_listening_stream_socket_is_refused(hand_over, sock, reason: str) -> None:
    with pytest.raises(StartError) as caught:
        systemd.inherited(hand_over(listening(), sock(), names="tcp:http"))
    text = (
        f"failed to receive sockets - descriptor {FIRST + 1} (http) from the service manager "
        f"{reason}"
    )
    assert str(caught.value).startswith(text)


def test_a_descriptor_that_is_not_there(hand_over) -> None:
    environ = hand_over(listening()) | {"LISTEN_FDS": "2"}
    with pytest.raises(StartError, match=f"descriptor {FIRST + 1} from .* is not open"):
        systemd.inherited(environ)


def test_a_count_that_is_no_number(hand_over) -> None:
    with pytest.raises(StartError, match="LISTEN_FDS=two is not a number"):
        systemd.inherited(hand_over(listening()) | {"LISTEN_FDS": "two"})


# -- open files

TELL = """
import resource, sys
from nsqcy.logging import logger as log
from nsqcy.process import openfiles
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
openfiles.raise_limit().tell(log.Log())
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "lines"),
    [
        (
            100,
            200,
            [
                "INFO: open files: limit raised from 100 to 200",
                "WARNING: open files: the limit of 200",
            ],
        ),
        (200, 200, ["INFO: open files: limit is 200", "WARNING: open files: the limit of 200"]),
        (100, 20_000, ["INFO: open files: limit raised from 100 to 20000"]),
    ],
)
def test_the_limit_of_open_files(soft: int, hard: int, lines: list[str]) -> None:
    command = [sys.executable, "-c", TELL, str(soft), str(hard)]
    root = Path(systemd.__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout == f"{hard} {hard}\n"
    written = done.stderr.splitlines()
    assert len(written) == len(lines)
    assert all(text in line for text, line in zip(lines, written, strict=True)), written
