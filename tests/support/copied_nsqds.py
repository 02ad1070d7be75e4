"""Three nsqds that replicate messages among themselves, each on a host of a private network, with
one nsqlookupd and one etcd."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self

from nsqcy.testing import Nsqlookupd
from nsqcy.testing.http_requests import eventually
from support.etcd_process import Etcd
from support.logged_process import Logged
from support.nsqd_process import Nsqd
from support.private_network import Network

LEASE = 3.0  # seconds; a busy machine can still renew the lease
WORKERS = 2
COPIES = 3
NAMES = ("a", "b", "c")
SYNC_BUDGET = 180.0  # seconds until a healed cluster must be in sync
POLL = 0.1  # seconds between checks of the cluster
TCP, HTTP = 4150, 4151

CONFIG = """\
[nsqd]
etcd_endpoints = {etcd}
copies_lease = {lease:g}s
copies_timeout = {lease:g}s

[topic orders*]
copies = {copies}
"""


class CopiedNsqd(Nsqd):
    """One nsqd of the cluster. It keeps its addresses and data when it is restarted."""

    def __init__(self, name: str, network: Network, path: Path, **options: Any) -> None:
        self.name = name
        self.ip = network.address(name)
        data = path / name
        data.mkdir()
        super().__init__(
            data,
            workers=WORKERS,
            within=network.inside(name),
            host=self.ip,
            cwd=path,
            tcp_address=f"{self.ip}:{TCP}",
            http_address=f"{self.ip}:{HTTP}",
            https_address=None,
            broadcast_address=self.ip,
            copies_address=f"{self.ip}:0",
            **options,
        )

    @property
    def tcp_address(self) -> str:
        return f"{self.ip}:{TCP}"

    def copies(self) -> list[dict[str, Any]]:
        """Return each worker's report of its copies; an empty list if nsqd does not respond."""
        try:
            answer = self.web.get("/copies")
        except (OSError, HTTPException):
            return []
        workers: list[dict[str, Any]] = answer.json()["workers"] if answer.status == 200 else []
        return workers

    def kill_all(self) -> None:
        """Send SIGKILL to all processes of nsqd, to simulate a machine crash."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all nsqd processes."""
        os.killpg(self.process.pid, number)

    def erase(self) -> None:
        """Delete everything in the data path of a stopped nsqd."""
        for each in self.data.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()


class CopiedNsqds:
    """The cluster. Its topics `orders*` have three copies."""

    def __init__(self, path: Path, *, disk_size: str = "") -> None:
        """
        disk_size: size of each node's data path, in the format of `mount`; default: no limit
        """
        self._path = path
        self._disk_size = disk_size
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            self.network = network = exits.enter_context(Network(NAMES))
            self.etcd_address = network.bridge_address(1)
            self.etcd = exits.enter_context(Etcd(host=self.etcd_address))
            exits.callback(self._write_log, "etcd", self.etcd.members[0])
            bridge = network.bridge_address()
            self.lookup = exits.enter_context(
                Nsqlookupd(
                    tcp_address=f"{bridge}:4160",
                    http_address=f"{bridge}:4161",
                    broadcast_address=bridge,
                )
            )
            self.nodes = [self._node(name) for name in NAMES]
            for node in self.nodes:
                exits.callback(self._end, node)
                if self._disk_size:
                    exits.callback(self._mount(node))
            self.on_each(CopiedNsqd.start, self.nodes)
            self.await_sync()
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def keep(self, file: Path) -> Path:
        """Return a copy of a file that lasts as long as the cluster."""
        return Path(shutil.copy(file, self._path))

    def _node(self, name: str) -> CopiedNsqd:
        config = self._path / "nsqd.ini"
        etcd = self.etcd.members[0].client_url
        config.write_text(CONFIG.format(etcd=etcd, lease=LEASE, copies=COPIES))
        secret = self._path / "secret"
        secret.write_text("secret of the copies\n")
        return CopiedNsqd(
            name,
            self.network,
            self._path,
            config=config,
            copies_secret_file=secret,
            lookupd_tcp_address=self.lookup.tcp_address,
        )

    def _end(self, node: CopiedNsqd) -> None:
        node.destroy()
        self._write_log(node.name, node)

    def _write_log(self, name: str, process: Logged) -> None:
        """Write a log to a file, to help investigate failures."""
        (self._path / f"{name}.log").write_text(process.log_text())

    def _mount(self, node: CopiedNsqd) -> Callable[[], object]:
        """Mount a disk as the data path of a node; return the function that unmounts it."""
        path = os.fspath(node.data)
        options = f"size={self._disk_size},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "nsqcy", path], check=True)
        # Processes of a node that is being killed may still use the disk.
        return lambda: (node.destroy(), subprocess.run(["umount", "--lazy", path], check=True))

    @staticmethod
    def on_each(action: Callable[[CopiedNsqd], object], nodes: list[CopiedNsqd]) -> None:
        """Run an action on several nodes at the same time."""
        with ThreadPoolExecutor() as operators:
            list(operators.map(action, nodes))

    def others(self, node: CopiedNsqd) -> list[CopiedNsqd]:
        return [each for each in self.nodes if each is not node]

    # -- the state of the copies

    def await_sync(self) -> None:
        """Wait until all nodes are up, and every group has all of its copies and is not being
        drained."""
        try:
            eventually(lambda: not self.gaps(), SYNC_BUDGET, interval=POLL)
        except AssertionError:
            raise AssertionError("not in sync: " + "; ".join(self.gaps())) from None

    def gaps(self) -> list[str]:
        """Return the reasons why the cluster is not in sync."""
        reports = {node.name: node.copies() for node in self.nodes}
        sessions = {
            name for found in reports.values() for each in found for name in each["sessions"]
        }
        found = [
            f"etcd exited with {member.process.returncode}: {member.tail(3)}"
            for member in self.etcd.members
            if not member.alive()
        ]
        if len(sessions) != WORKERS * len(self.nodes):
            found.append(f"{len(sessions)} sessions")
        for name, workers in reports.items():
            if len(workers) != WORKERS:
                found.append(f"{name} has {len(workers)} workers")
            for worker in workers:
                where = f"{name}.{worker['worker']}"
                if not worker["etcd"]:
                    found.append(f"{where} cannot reach etcd")
                if not worker["ready"]:
                    found.append(f"{where} is not ready")
                if missing := sessions - set(worker["sessions"]):
                    found.append(f"{where} does not see {sorted(missing)}")
                found += [f"{where}: {group}" for group in _unsettled(worker["groups"])]
        return found

    def sessions(self, node: CopiedNsqd) -> set[str]:
        """Return the names under which other nodes know a node's processes."""
        return {each["node"] for each in node.copies()}

    def await_takeover(self, names: set[str], witnesses: list[CopiedNsqd]) -> None:
        """Wait until the witnesses report neither sessions of these processes nor groups owned by
        them."""

        def is_over() -> bool:
            workers = [each for node in witnesses for each in node.copies()]
            owners = {group["owner"] for each in workers for group in each["groups"]}
            present = {name for each in workers for name in each["sessions"]}
            return len(workers) == WORKERS * len(witnesses) and not (owners | present) & names

        eventually(is_over, SYNC_BUDGET, interval=POLL)


def _unsettled(groups: list[dict[str, Any]]) -> Iterator[str]:
    """Return a worker's groups that lack copies or are being drained."""
    for group in groups:
        about = {
            key: group.get(key)
            for key in ("group", "role", "members", "responding", "accepts", "waiting", "topics")
        }
        if group["closed"]:
            yield f"closed {about}"
        elif group["role"] == "new" or (group["role"] == "owner" and not _is_complete(group)):
            yield str(about)


def _is_complete(group: dict[str, Any]) -> bool:
    copies: int = group["copies"]
    has_all: bool = len(group["members"]) == group["responding"] == copies
    return has_all and group["accepts"] and group["waiting"] == 0
