"""The nsqd under test: a private one in its own directory, or one that is already running."""

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadtest.bench import procfs
from nsqcy import testing
from nsqcy.testing.http_requests import Web

ANSWER_BUDGET = 30.0
STOP_BUDGET = 300.0

Address = tuple[str, int]


class NotOffered(RuntimeError):
    """The target lacks a feature that a scenario requires."""


def parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", int(port)


class Daemon:
    """An nsqd, identified by its addresses and processes."""

    def __init__(
        self, tcp: Address, http: Address | None, pid: int, data: str = "", workers: int = 0
    ) -> None:
        self.tcp = tcp
        self.http = http
        self.data = data
        self.workers = workers  # 0: unknown
        self.pids = procfs.family(pid) if pid else []

    def cpu_seconds(self) -> float:
        return sum(self.cpu_of_each())

    def cpu_of_each(self) -> list[float]:
        """Return the CPU seconds of each process of the daemon."""
        return [procfs.cpu_seconds(pid) for pid in self.pids]

    def memory(self) -> dict[str, int]:
        return procfs.memory(self.pids)

    def disk(self) -> int:
        """Return the total size of the files in the data path, in bytes."""
        files = [path for path in Path(self.data).rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files)

    @property
    def web(self) -> Web:
        if self.http is None:
            raise RuntimeError("the target has no HTTP address: set --target-http")
        host, port = self.http
        return Web(port, host, ANSWER_BUDGET)

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of copied logs of all workers."""
        workers = self.web.get("/copies").json()["workers"]
        return [group for worker in workers for group in worker["groups"]]

    def sessions(self) -> int:
        """Return the number of nodes that every worker knows, including its own; 0 if a worker is
        not ready for copies."""
        workers = self.web.get("/copies").json()["workers"]
        return min((len(each["sessions"]) if each["ready"] else 0 for each in workers), default=0)


class Cluster(Daemon):
    """Daemons that do the same work together. Clients use the first of them."""

    def __init__(self, members: Sequence[Daemon]) -> None:
        first = members[0]
        super().__init__(first.tcp, first.http, 0, first.data, first.workers)
        self.members = list(members)
        self.pids = [pid for each in members for pid in each.pids]

    def cpu_of_each(self) -> list[float]:
        """Return the CPU seconds of each member."""
        return [each.cpu_seconds() for each in self.members]

    def memory(self) -> dict[str, int]:
        of_each = [each.memory() for each in self.members]
        return {name: sum(each[name] for each in of_each) for name in of_each[0]}


class Private(Daemon):
    """An nsqd that was just started."""

    def __init__(self, nsqd: testing.Nsqd, workers: int = 1) -> None:
        tcp, http = parse_address(nsqd.tcp_address), parse_address(nsqd.http_address)
        super().__init__(tcp, http, nsqd.process.pid, nsqd.data_path, workers)
        self._nsqd = nsqd

    def restart(self, how: int) -> tuple[float, float]:
        """Kill nsqd, or stop it with SIGTERM, and start it again; return the seconds of both."""
        began = time.monotonic()
        if how != signal.SIGKILL:  # Nsqd.stop() would not wait as long
            self._nsqd.process.send_signal(how)
            self._nsqd.process.wait(STOP_BUDGET)
        self._nsqd.kill()
        stopped = time.monotonic()
        self._nsqd.start()
        self.pids = procfs.family(self._nsqd.process.pid)
        return stopped - began, time.monotonic() - stopped


def running(target: str, http: str | None, pid: int) -> Daemon:
    """An nsqd that was already running."""
    tcp = parse_address(target)
    return Daemon(tcp, parse_address(http) if http else None, pid or procfs.listener(tcp[1]))


@contextlib.contextmanager
def private(workers: int, **options: Any) -> Iterator[Private]:
    """An nsqd from this tree on free ports; options are flags, written with underscores."""
    with contextlib.closing(testing.nsqd(workers=workers, **options)) as nsqd:
        nsqd.start()
        try:
            yield Private(nsqd, workers)
        finally:
            # The data path is temporary, so nsqd need not save its messages.
            if nsqd.alive:  # otherwise, a restart has failed
                procfs.end(procfs.family(nsqd.process.pid))
