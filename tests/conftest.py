"""Fixtures of the black-box tests: daemons with one and with three workers, and unused names."""

import gc
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.assertion import rewrite
from hypothesis import settings

from nsqcy.testing.ports import Ports
from nsqcy.testing.wire_client import Conn, Frame, Hangup
from support import fork_server
from support.fake_auth_server import AuthServer
from support.nsqd_process import FOREIGN, Nsqd, environment, held_ports
from support.runs import runs
from support.sanitizer import SANITIZED

TESTS = Path(__file__).parent
WORKERS = [pytest.param(1, id="w1"), pytest.param(3, id="w3")]
# For tests in which the owner of a topic does not matter: tests of options, or of commands that a
# connection refuses.
one_worker = pytest.mark.parametrize("workers", WORKERS[:1], indirect=True, scope="session")
# For tests of clients, which cannot see the number of workers. Most data passes through two
# workers.
three_workers = pytest.mark.parametrize("workers", WORKERS[1:], indirect=True, scope="session")
TUNED: dict[str, Any] = {
    "max_body_size": 1000,
    "max_channel_consumers": 1,
    "max_deflate_level": 4,
    "max_heartbeat_interval": "5m",
    "max_msg_size": 2000,
    "max_msg_timeout": "3s",
    "max_rdy_count": 50,
    "max_req_timeout": "3s",
    "msg_timeout": "2s",
    "node_id": 5,
    "topology_region": "r",
    "topology_zone": "z",
}

MEMORY_DISK = "/dev/shm"
FREE = 4 << 30  # bytes, many times what the tests use at once

numbers = itertools.count(1)

# A deadline would depend on the load of the machine.
settings.register_profile("nsqcy", deadline=None, max_examples=runs(40))
settings.load_profile("nsqcy")

# A shell makes its background jobs ignore SIGINT, and programs inherit this from the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def has_memory_disk() -> bool:
    """Return whether there is a file system in memory that has room and permits programs."""
    try:
        found = os.statvfs(MEMORY_DISK)
    except OSError:
        return False
    free = min(found.f_bavail * found.f_frsize, available_memory())
    return free >= FREE and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)


def available_memory() -> int:
    """Return the bytes of memory that can be used without swapping."""
    available: int = psutil.virtual_memory().available
    return available


def use_memory_disk() -> None:
    """Put temporary files in memory: the tests write thousands of small files, and daemons wait for
    the disk when they start and exit. TMPDIR=/tmp leaves them on the disk, as the marker
    `real_disk` does for the directory of a test."""
    if "TMPDIR" not in os.environ and has_memory_disk():  # worker processes inherit it
        os.environ["NSQCY_REAL_DISK"] = tempfile.gettempdir()
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY_DISK


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "early: runs first, waits long beside the others")
    config.addinivalue_line("markers", "real_disk: `tmp_path` is on a disk, not in memory")
    config.addinivalue_line("markers", "random: has random input; `make soak` runs it longer")
    config.addinivalue_line("markers", "ours: differs from NSQ on purpose; docs/COMPATIBILITY.md")
    config.addinivalue_line("markers", "real_start: executes all programs, and forks none")
    use_memory_disk()
    if not SANITIZED:
        fork_server.install(environment())


def pytest_unconfigure() -> None:
    fork_server.uninstall()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Rewrite the assertions of this process's share of the test files. The results are cached, so
    each process reads those of the other processes instead of rewriting every file."""
    given = getattr(session.config, "workerinput", None)  # set by pytest-xdist
    are_all = any(Path(each).absolute() == TESTS for each in session.config.args)
    if given is None or not are_all or sys.dont_write_bytecode:
        return
    state = session.config.stash[rewrite.assertstate_key]
    number = int(given["workerid"].removeprefix("gw"))
    for path in sorted(TESTS.rglob("*.py"))[number :: given["workercount"]]:
        cached = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if not cached.exists() and rewrite.try_makedirs(cached.parent):
            source, code = rewrite._rewrite_test(path, session.config)
            rewrite._write_pyc(state, code, source, cached)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Disable garbage collection until the tests are collected, and exclude imported modules and
    collected tests from it. Otherwise, each collection visits a million objects, which takes longer
    than many tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests. Tests marked `early` come first: at the end, other processes would have no
    tests left while they wait. Then come the Spark tests: they stay in one process, so they share
    a JVM, whose startup and first query take as long as a test."""

    def place(item: pytest.Item) -> int:
        marks = ("early", "spark")
        return next((at for at, mark in enumerate(marks) if item.get_closest_marker(mark)), 2)

    items.sort(key=place)
    if FOREIGN:
        reason = "nsqcy's own behaviour; the daemon under test is another"
        for item in items:
            if item.get_closest_marker("ours"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    if item.get_closest_marker("real_start"):
        with fork_server.real_starts():
            return (yield)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Nsqd):
                report.sections.append(("nsqd log", value.tail()))
            elif isinstance(value, Starter):
                for daemon in value.daemons:
                    report.sections.append((f"nsqd log of {daemon.data}", daemon.tail()))
    return report


def placed(workers: int) -> dict[str, Any]:
    """Return the options of a daemon with `workers` workers. Connections do not migrate, so most of
    them use a topic of another worker. Separate tests cover connection migration."""
    return {"workers": workers, "move_sessions": False if workers > 1 else None}


@pytest.fixture(autouse=True)
def ports_of_the_test() -> Iterator[None]:
    """Release the ports of `free_port()` when the test ends."""
    with Ports() as ports:
        held_ports.append(ports)
        yield
        held_ports.remove(ports)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The test's temporary directory, of tests marked `real_disk` on a disk."""
    if not request.node.get_closest_marker("real_disk"):
        yield tmp_path
        return
    disk = os.environ.get("NSQCY_REAL_DISK")
    with tempfile.TemporaryDirectory(dir=disk, ignore_cleanup_errors=True) as path:
        yield Path(path)


class Starter:
    """Factory of daemons for one test: `nsqd(mem_queue_size=0)`."""

    def __init__(self, workers: int, path: Path) -> None:
        self.workers = workers
        self.path = path
        self.daemons: list[Nsqd] = []

    def prepare(self, data: Path | None = None, **options: Any) -> Nsqd:
        """Return a daemon that is not started yet, with an empty data path to be filled."""
        if data is None:
            data = self.path / f"data{len(self.daemons)}"
            data.mkdir()
        daemon = Nsqd(data, **(placed(self.workers) | options))
        self.daemons.append(daemon)
        return daemon

    def __call__(self, data: Path | None = None, **options: Any) -> Nsqd:
        return self.prepare(data, **options).start()


@pytest.fixture(scope="session", params=WORKERS[:1] if FOREIGN else WORKERS)
def workers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.fixture
def nsqd(workers: int, tmp_path: Path) -> Iterator[Starter]:
    """Factory of daemons, each with its own options."""
    starter = Starter(workers, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


def keep(workers: int, path: Path, **options: Any) -> Iterator[Callable[[], Nsqd]]:
    """A daemon for many tests, started on first use and restarted if one of the tests stopped
    it."""
    daemon = Nsqd(path, **(placed(workers) | options))

    def running() -> Nsqd:
        return daemon if daemon.alive() else daemon.start()

    yield running
    daemon.destroy()


@pytest.fixture(scope="session")
def shared_daemon(
    workers: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Nsqd]]:
    yield from keep(workers, tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def plain_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Nsqd]]:
    yield from keep(1, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def tuned_daemon(
    workers: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Nsqd]]:
    yield from keep(workers, tmp_path_factory.mktemp("tuned"), **TUNED)


@pytest.fixture(scope="session")
def auth_server() -> Iterator[AuthServer]:
    """Auth server whose answer depends on the secret: use unique secrets."""
    server = AuthServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def guarded_daemon(
    workers: int, auth_server: AuthServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Nsqd]]:
    yield from keep(
        workers,
        tmp_path_factory.mktemp("guarded"),
        auth_http_address=auth_server.address,
        log_level="debug",
    )


class Idler:
    """Connection that sends nothing after the magic. `events` contains the received frames with
    their times."""

    def __init__(self, daemon: Nsqd) -> None:
        self.events: list[tuple[float, Frame]] = []
        self.ended = 0.0
        self._start = time.monotonic()
        self._conn = Conn(daemon.address, pong=False, timeout=100.0)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while True:
                frame = self._conn.frame()
                self.events.append((time.monotonic() - self._start, frame))
        except Hangup:
            self.ended = time.monotonic() - self._start
        except OSError:
            pass  # the fixture closed the connection before the minute was over

    def wait(self) -> None:
        self._thread.join(100.0)

    def close(self) -> None:
        self._conn.close()


@pytest.fixture
def idler(shared_daemon: Callable[[], Nsqd]) -> Iterator[Idler]:
    idler = Idler(shared_daemon())
    yield idler
    idler.close()


@pytest.fixture
def shared(shared_daemon: Callable[[], Nsqd]) -> Iterator[Nsqd]:
    """Daemon with default options that many tests share: use unique names."""
    daemon = shared_daemon()
    yield daemon
    daemon.hang_up()


@pytest.fixture
def plain(plain_daemon: Callable[[], Nsqd]) -> Iterator[Nsqd]:
    """Daemon with one worker, for tests of client programs: use unique names."""
    daemon = plain_daemon()
    yield daemon
    daemon.hang_up()


@pytest.fixture
def tuned(tuned_daemon: Callable[[], Nsqd]) -> Iterator[Nsqd]:
    """Daemon with small limits (TUNED) that several tests share."""
    daemon = tuned_daemon()
    yield daemon
    daemon.hang_up()


@pytest.fixture
def guarded(guarded_daemon: Callable[[], Nsqd]) -> Iterator[Nsqd]:
    """Daemon whose clients need an authorization from `auth_server`."""
    daemon = guarded_daemon()
    yield daemon
    daemon.hang_up()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path is short enough for a unix socket."""
    path = tempfile.mkdtemp(prefix="nsq", dir="/tmp")
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture
def nobody() -> Iterator[str]:
    """Address without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def topic() -> str:
    """Topic name that no other test uses."""
    return f"topic{next(numbers)}"
