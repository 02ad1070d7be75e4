"""Simulated hosts of a cluster: nsqds, and the nsqlookupds that they register with."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from nsqcy.testing.http_requests import Web, eventually
from support.nsqd_process import free_port
from support.simulated_host import BareHost, Host

TCP, HTTP = ":4160", ":4161"  # ports of nsqlookupd


class LookupHost(Host):
    """One nsqlookupd."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1)
        self.tcp_address, self.http_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.ports |= {
            port: int(address.partition(":")[2])
            for port, address in ((TCP, self.tcp_address), (HTTP, self.http_address))
        }
        self.flags(
            "nsqlookupd",
            f"--tcp-address={self.tcp_address}",
            f"--http-address={self.http_address}",
            "--broadcast-address=127.0.0.1",
        )
        self.lookup = Web(self.ports[HTTP])

    def nodes(self) -> set[int]:
        """Return the TCP ports of the nsqds that this nsqlookupd lists."""
        return {each["tcp_port"] for each in self.lookup.get("/nodes").json()["producers"]}


class Cluster:
    """Two nsqlookupds, called lookup-1 and lookup-2 in runbooks, and nsqds. All of them run in this
    context."""

    def __init__(self, path: Path, nsqds: int, workers: int, *flags: str) -> None:
        self._path = path
        self._workers = workers
        self._flags = flags
        self.lookups = [LookupHost(path / f"lookup{number}") for number in (1, 2)]
        self.names = {
            f"lookup-{number}.example.com{port}": address
            for number, each in enumerate(self.lookups, 1)
            for port, address in ((TCP, each.tcp_address), (HTTP, each.http_address))
        } | {"nsqd-4.example.com": "127.0.0.1"}
        for each in self.lookups:
            each.names = self.names
        self.nodes: list[BareHost] = [self._host(number) for number in range(nsqds)]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.hosts:
            each.end()

    def _start(self) -> None:
        for each in self.lookups:
            each.type("systemctl start nsqlookupd")
        with ThreadPoolExecutor() as operators:
            list(operators.map(lambda node: node.type("systemctl start nsqd"), self.nodes))
        ports = {node.tcp_port for node in self.nodes}
        for each in self.lookups:
            eventually(lambda each=each: each.nodes() == ports)

    def _host(self, number: int) -> Host:
        """Return a host for an nsqd that registers with the nsqlookupds."""
        known = [f"--lookupd-tcp-address={each.tcp_address}" for each in self.lookups]
        here = ("--broadcast-address=127.0.0.1", f"--node-id={number}")
        made = Host(self._path / f"nsqd{number}", self._workers, *known, *here, *self._flags)
        made.names = self.names
        return made

    def bare_host(self) -> BareHost:
        """Return another host, called nsqd-4 in runbooks, with nothing installed."""
        made = BareHost(self._path / "nsqd4", "--node-id=4", *self._flags)
        made.names = self.names
        self.nodes.append(made)
        return made

    @property
    def hosts(self) -> list[BareHost]:
        return [*self.lookups, *self.nodes]
