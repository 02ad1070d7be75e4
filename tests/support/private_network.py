"""A private network of network namespaces, in which pairs of hosts can be separated.

Needs root and iproute2. Clients and servers of the test itself use the addresses of the bridge.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

import pytest

NETWORKS = 256
FIRST_HOST = 11  # last number of the first namespace's address
UNKNOWN_MAC = "02:00:00:00:00:01"  # belongs to no host, so the packets are lost

Route = tuple[str, str]
"""A sending host, and the address that it sends to."""


def ip(*words: str) -> str:
    """Run the command `ip`. Raises AssertionError if it fails."""
    found = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert found.returncode == 0, f"ip {' '.join(words)}: {found.stderr.strip()}"
    return found.stdout


def reason_not_available() -> str:
    """Return the reason why this process cannot create namespaces; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    name = f"nsqcy-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
    except AssertionError as error:
        return f"network namespaces cannot be created: {error}"
    ip("netns", "del", name)
    return ""


class Network:
    """Hosts, each in its own network namespace, and a bridge between them and the test.

    The number of the network determines its subnet and the names of its namespaces and links. A
    lock reserves the number. The next user of a number removes everything that a killed process
    left behind.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = {name: FIRST_HOST + index for index, name in enumerate(hosts)}
        self._lock, self.number = _reserve()
        self._separated: dict[Route, bool] = {}
        """Separated routes, and whether their packets are lost silently."""

    def __enter__(self) -> Self:
        try:
            self._remove()
            self._create()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()
        self._lock.close()

    def bridge_address(self, index: int = 0) -> str:
        """Return one of the two addresses of the bridge."""
        return self._address(1 + index)

    def address(self, host: str) -> str:
        return self._address(self.hosts[host])

    def inside(self, host: str) -> tuple[str, ...]:
        """Return the prefix of a command that runs on a host."""
        return ("ip", "netns", "exec", self._namespace(self.hosts[host]))

    # -- faults

    def separate(self, host: str, address: str, *, silently: bool) -> None:
        """Drop everything that a host sends to an address.

        silently: the packets are lost on their way. Otherwise, the host has no route, and
            connection attempts fail immediately.
        """
        route = (host, address)
        if route in self._separated:
            return
        if silently:
            self._on(host, "neigh", "replace", address, "lladdr", UNKNOWN_MAC, *self._link())
        else:
            self._on(host, "route", "add", "blackhole", f"{address}/32")
        self._separated[route] = silently

    def heal(self) -> None:
        """End every separation."""
        while self._separated:
            (host, address), silently = self._separated.popitem()
            if silently:
                self._on(host, "neigh", "del", address, *self._link())
            else:
                self._on(host, "route", "del", "blackhole", f"{address}/32")

    # -- inside

    def _create(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        for index in range(2):
            ip("address", "add", f"{self.bridge_address(index)}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        for host, number in self.hosts.items():
            namespace, outer, inner = self._namespace(number), self._port(number), "eth0"
            ip("netns", "add", namespace)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", namespace)
            ip("link", "set", outer, "master", self._bridge, "up")
            self._on(host, "address", "add", f"{self._address(number)}/24", "dev", inner)
            self._on(host, "link", "set", inner, "up")
            self._on(host, "link", "set", "lo", "up")

    def _remove(self) -> None:
        """Remove namespaces with all their processes, and links."""
        for link in [each["ifname"] for each in json.loads(ip("-j", "link"))]:
            if link == self._bridge or link.startswith(f"{self._bridge}p"):
                ip("link", "del", link)
        existing = {line.split()[0] for line in ip("netns", "list").splitlines() if line}
        for namespace in existing:
            if namespace.startswith(f"{self._bridge}-"):
                for pid in ip("netns", "pids", namespace).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                ip("netns", "del", namespace)

    def _on(self, host: str, *words: str) -> None:
        ip("-n", self._namespace(self.hosts[host]), *words)

    def _link(self) -> tuple[str, ...]:
        return ("dev", "eth0")

    @property
    def _bridge(self) -> str:
        return f"nsqcy{self.number}"

    def _namespace(self, number: int) -> str:
        return f"{self._bridge}-{number}"

    def _port(self, number: int) -> str:
        return f"{self._bridge}p{number}"

    def _address(self, number: int) -> str:
        return f"10.213.{self.number}.{number}"


def _reserve() -> tuple[IO[bytes], int]:
    """Return the lock of a free network number, and the number."""
    folder = Path(tempfile.gettempdir()) / "nsqcy-networks"
    folder.mkdir(exist_ok=True)
    for number in range(NETWORKS):
        lock = (folder / str(number)).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return lock, number
    raise AssertionError(f"all {NETWORKS} private networks are in use")


_reason = reason_not_available()
needs_namespaces = pytest.mark.skipif(bool(_reason), reason=_reason)
