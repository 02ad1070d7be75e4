"""One nsqd under test: started as a user starts it, observed from outside, always cleaned up.

`NSQD_BINARY` sets a different command to test (for example a Go nsqd); it gets no `--workers`.
"""

import contextlib
import http.client
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

import nsqcy
from nsqcy.testing.http_requests import Web
from nsqcy.testing.ports import Ports
from nsqcy.testing.wire_client import Address, Conn
from support.logged_process import Logged
from support.service_manager import activated

FOREIGN = os.environ.get("NSQD_BINARY", "")
START_BUDGET = 30.0

held_ports = [Ports()]  # each test adds its own ports while it runs


def command() -> list[str]:
    return shlex.split(FOREIGN) or [sys.executable, "-m", "nsqcy.nsqd.main"]


def environment() -> dict[str, str]:
    """Return an environment in which the daemon imports the same package as the tests."""
    home = str(Path(nsqcy.__file__).parents[1])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path}


def flags(options: dict[str, Any]) -> list[str]:
    """Convert options to flags: `mem_queue_size=0` becomes `--mem-queue-size=0`; a list repeats the
    flag, None omits it."""
    result = []
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        result += [f"--{name.replace('_', '-')}={one}" for one in values if one is not None]
    return result


def run(*args: str, timeout: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Run the command to completion, in an empty directory: for options that print something or are
    refused."""
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen(
            [*command(), *args],
            cwd=home,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, err = process.communicate()
            raise AssertionError(f"{args} did not exit; its log:\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def free_port() -> int:
    """Return a port that stays free until the running test ends."""
    return held_ports[-1].take()


def is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # for example, a zombie
        return process.name().startswith("nsqd-worker-")
    return False


class Nsqd(Logged):
    """A daemon with a data path. Options are flags with underscores; `args` come before them.

    `sockets` are passed as by a service manager, under these names if there are any. `within` comes
    before the command: `ip netns exec NAME`, for example. `host` is the address that it listens on.
    """

    def __init__(
        self,
        data: Path,
        *,
        workers: int | None = None,
        args: tuple[str, ...] = (),
        within: tuple[str, ...] = (),
        host: str = "127.0.0.1",
        cwd: Path | None = None,
        announced: bool = True,
        environ: dict[str, str] | None = None,
        sockets: list[socket.socket] | None = None,
        socket_names: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        self.data = data
        self.args = args
        self.within = within
        self.host = host
        self.cwd = cwd
        self.announced = announced
        self.environ = environ or {}
        self.sockets = sockets or []
        self.socket_names = socket_names
        self.options: dict[str, Any] = {
            "tcp_address": f"{host}:0",
            "http_address": f"{host}:0",
            "https_address": f"{host}:0",
            "data_path": data,
            "workers": None if FOREIGN else workers,
        } | options
        self.tcp_port = 0
        self.http_port = 0
        self.https_port = 0
        self._family: list[psutil.Process] = []
        self._conns: list[Conn] = []

    # lifecycle

    def start(self, *, is_healthy: bool = True) -> "Nsqd":
        self.launch()
        try:
            self.await_ready(is_healthy=is_healthy)
        except BaseException:
            self.destroy()
            raise
        return self

    def launch(self) -> None:
        """Start the process and return immediately."""
        words = [*self.within, *command(), *self.args, *flags(self.options)]
        self._spawn(
            activated(words, self.sockets, self.socket_names),
            cwd=self.cwd or self.data,
            env=environment() | self.environ,
            pass_fds=[each.fileno() for each in self.sockets],
        )

    def await_ready(self, *, is_healthy: bool = True) -> None:
        """Wait for the listening lines, then for `/ping` to answer OK if nsqd is healthy."""
        deadline = time.monotonic() + START_BUDGET
        wanted = {"TCP"} | ({"HTTP"} if self.options["http_address"] else set())
        if self.options.get("tls_cert") and self.options["https_address"]:
            wanted.add("HTTPS")
        while self.announced and not wanted <= self.addresses.keys():
            self.still_starting(deadline)
        if not self.announced:
            self.addresses = {
                "TCP": self.options["tcp_address"],
                "HTTP": self.options["http_address"],
            }
        self.tcp_port = self._port("TCP")
        self.http_port = self._port("HTTP")
        self.https_port = self._port("HTTPS")
        while self.http_port and is_healthy and not self._pings():
            self.still_starting(deadline)
        self._remember_family()

    def _port(self, name: str) -> int:
        host, _, port = self.addresses.get(name, "").rpartition(":")
        return int(port) if host and port.isdigit() else 0

    def _pings(self) -> bool:
        try:
            answer = Web(self.http_port, self.host, timeout=5.0).get("/ping")
        except (OSError, http.client.HTTPException):
            return False
        return (answer.status, answer.body) == (200, b"OK") or b"TLS_REQUIRED" in answer.body

    def stop(self, timeout: float = 40.0) -> None:
        self._remember_family()
        super().stop(timeout)

    def kill(self) -> None:
        """Send SIGKILL to the master only."""
        self._remember_family()
        self.process.kill()
        self.process.wait()

    def restart(self, *, killed: bool = False, **changes: Any) -> "Nsqd":
        """Stop the daemon if it is still running (`killed`: with SIGKILL), and start it again with
        the same data."""
        self.hang_up()
        if self.alive():
            if killed:
                self.kill()
            else:
                self.stop()
        self.options |= changes
        return self.start()

    def destroy(self) -> None:
        """Kill every process of this daemon, in any state."""
        self.hang_up()
        if self._process is None:
            return
        self._remember_family()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self.join_log(5)

    # processes

    def workers(self) -> list[int]:
        """Return the process ids of the workers, oldest first."""
        found = [process for process in self._children() if is_worker(process)]
        return [p.pid for p in sorted(found, key=lambda p: (p.create_time(), p.pid))]

    def home_of(self, conn: Conn) -> int | None:
        """Return the process that serves a connection; None while it is being passed on."""
        return self.home_of_port(conn.socket.getsockname()[1])

    def home_of_port(self, port: int) -> int | None:
        """Return the process that serves the connection from this client port; see home_of()."""
        for pid in self.workers():
            for each in psutil.Process(pid).net_connections(kind="tcp"):
                if each.raddr and each.raddr.port == port:
                    return pid
        return None

    def topics_of_workers(self) -> dict[int, int]:
        """Return the number of topics per worker, by process id."""
        page = self.web.get("/debug/pprof/heap").body.decode()
        found = re.findall(r"^== worker \d+, pid (\d+)$.*?^topics: (\d+)$", page, re.M | re.S)
        return {int(pid): int(count) for pid, count in found}

    def kill_worker(self, index: int) -> int:
        pid = self.workers()[index]
        os.kill(pid, signal.SIGKILL)
        return pid

    def memory(self) -> int:
        """Return the resident bytes of all its processes."""
        processes = [psutil.Process(self.process.pid), *self._children()]
        return sum(process.memory_info().rss for process in processes)

    def _children(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def _remember_family(self) -> None:
        """Add the children of the daemon. The kernel lists them: psutil would read a file of every
        process on the machine."""
        known = {process.pid for process in self._family}
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            pids = {int(pid) for pid in listed.read_text().split()}
            self._family += [psutil.Process(pid) for pid in sorted(pids - known)]

    # clients

    @property
    def address(self) -> Address:
        return (self.host, self.tcp_port) if self.tcp_port else self.addresses["TCP"]

    def connect(self, **options: Any) -> Conn:
        """Return a connection that `hang_up` closes."""
        conn = Conn(self.address, **options)
        self._conns.append(conn)
        return conn

    @property
    def web(self) -> Web:
        return Web(self.http_port, self.host)

    def secure_web(self, context: ssl.SSLContext) -> Web:
        return Web(self.https_port, self.host, context=context)

    def hang_up(self) -> None:
        while self._conns:
            self._conns.pop().close()
