"""Three nsqds and an etcd on this machine, for topics with copies.

The prefix of a topic's name selects its number of copies and its durability class.
"""

import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.bench.daemon import Address, Cluster, Daemon, NotOffered
from loadtest.bench.peers import servers
from loadtest.bench.speed import Settings, topic_name

NODES = 3
READY_BUDGET = 60.0  # seconds


class Kind(NamedTuple):
    """Topics with the same settings."""

    prefix: str
    title: str
    copies: int
    durability: str

    @property
    def section(self) -> str:
        return (
            f"[topic {self.prefix}_*]\ncopies = {self.copies}\ndurability = {self.durability}\n\n"
        )


ONE = Kind("one", "1 copy", 1, "os")
TWO = Kind("two", "2 copies", 2, "os")
THREE = Kind("three", "3 copies", 3, "os")
SYNCED = Kind("synced", "3 copies, fsync", 3, "fsync")
KINDS = (ONE, TWO, THREE, SYNCED)


@contextmanager
def running(settings: Settings, folder: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster whose nodes have found each other."""
    if not servers.program("etcd"):
        raise NotOffered("etcd is not installed")
    config = folder / "nsqd.ini"
    config.write_text("[nsqd]\n\n" + "".join(kind.section for kind in KINDS))
    with ExitStack() as stack:
        etcd = stack.enter_context(servers.started(servers.ETCD, _healthy, folder))
        options |= {
            "config": config,
            "etcd_endpoints": f"http://127.0.0.1:{etcd.tcp[1]}",
            "copies_address": "127.0.0.1:0",
        }
        nodes = []
        for number in range(NODES):
            path = folder / f"node{number}"
            path.mkdir()
            nodes.append(stack.enter_context(settings.nsqd(data_path=path, **options)))
        for node in nodes:
            _until(lambda node=node: node.sessions() == NODES, "nodes to find each other")
        yield Cluster(nodes)


def create(cluster: Daemon, kind: Kind) -> str:
    """Create a topic with a channel, wait until all copies exist, and return its name."""
    name = f"{kind.prefix}_{topic_name()}"
    cluster.web.create(name, "bench")
    if kind.copies > 1:
        _until(lambda: _complete(cluster, name, kind.copies), f"{kind.title} of a topic")
    return name


def _complete(cluster: Daemon, name: str, copies: int) -> bool:
    return any(
        len(group["members"]) == copies and not group["joining"] and group["accepts"]
        for group in cluster.groups()
        if group["role"] == "owner" and name in group["topics"]
    )


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + READY_BUDGET
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {READY_BUDGET:.0f} s for {what}")
        time.sleep(0.05)


def _healthy(address: Address) -> None:
    url = f"http://{address[0]}:{address[1]}/health"
    with urllib.request.urlopen(url, timeout=READY_BUDGET) as answer:
        if b'"true"' not in answer.read():
            raise ConnectionRefusedError("etcd has no leader")
