"""An nsqd and an nsqadmin for load tests: the product's own launcher, with raw connections.

Independent of load and figures.
"""

from typing import Any

import psutil

from loadtest.bench import procfs
from nsqcy import testing
from nsqcy.nsqadmin.options import NSQADMIN
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


class Nsqadmin(testing.Daemon):
    """An nsqadmin, without a history unless `history_interval` is set."""

    table = NSQADMIN
    module = "nsqcy.nsqadmin.main"

    def _defaults(self) -> dict[str, testing.Option]:
        return {"http_address": "127.0.0.1:0", "history_interval": "0s"}

    @property
    def web(self) -> Web:
        return Web.at(self.http_address)
