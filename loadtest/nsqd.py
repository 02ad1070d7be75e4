"""An nsqd for load tests: the product's own launcher, with raw connections to nsqd.

Independent of load and figures.
"""

from typing import Any

import psutil

from loadtest.bench import procfs
from nsqcy import testing
from nsqcy.testing.http_requests import Web
from nsqcy.testing.wire_client import Address, Conn


class Nsqd(testing.Nsqd):
    """An nsqd that keeps its data in `data_path`, or in a temporary directory."""

    @property
    def tcp_port(self) -> int:
        return int(self.tcp_address.rpartition(":")[2])

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.tcp_port

    @property
    def web(self) -> Web:
        return Web.at(self.http_address)

    def connect(self, **options: Any) -> Conn:
        return Conn(self.address, **options)

    def crash(self) -> None:
        """Kill only the master, and start again once its workers have exited too."""
        workers = [psutil.Process(pid) for pid in self.workers]
        self.process.kill()
        psutil.wait_procs(workers)
        self.kill()
        self.start()

    @property
    def workers(self) -> list[int]:
        """Return the process ids of the workers, in start order unless one was restarted."""
        return sorted(procfs.family(self.process.pid)[1:])

    def pss(self) -> int:
        """Return the memory of all processes, in bytes, with shared memory counted once."""
        return procfs.memory(procfs.family(self.process.pid))["Pss"]
