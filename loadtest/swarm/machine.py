"""Resources of the nsqds on this machine, second by second. Independent of locust."""

import ipaddress
import time
from dataclasses import dataclass

from loadtest.bench import procfs
from nsqcy.client.options import Address


@dataclass(frozen=True)
class Sample:
    """Values are None if they are unknown because nsqd runs on a different machine."""

    second: int
    users: int
    memory: int | None  # bytes, for all nsqds together
    cpu: float | None  # busy cores since the previous sample


class Machine:
    """The nsqds at these addresses whose processes run on this machine."""

    def __init__(self, addresses: list[str]) -> None:
        self._ports = [each.port for each in map(Address.parse, addresses) if is_here(each.host)]
        self._find()

    def _find(self) -> None:
        """Look up the processes; called again when one has ended."""
        masters = filter(None, map(procfs.listener, self._ports))
        self._pids = [pid for master in masters for pid in procfs.family(master)]
        self._cpu: tuple[float, float] | None = None

    def sample(self, users: int) -> Sample:
        memory = cpu = None
        if self._pids:
            try:
                memory = procfs.memory(self._pids)["Pss"]
                cpu = self._cores()
            except OSError:
                self._find()
        return Sample(int(time.time()), users, memory, cpu)

    def _cores(self) -> float | None:
        before, now = self._cpu, time.monotonic()
        self._cpu = now, sum(map(procfs.cpu_seconds, self._pids))
        return (self._cpu[1] - before[1]) / (now - before[0]) if before else None


def is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
