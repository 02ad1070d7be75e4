"""Damage to the registry in etcd while copied nsqds are under load. Each case of damage is followed
by the loss of a machine or a restart of all nsqds."""

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.values import encode_group, encode_identity
from nsqcy.etcd.messages import Put
from nsqcy.testing.http_requests import eventually
from support.copied_nsqds import LEASE, POLL, WORKERS, CopiedNsqd, CopiedNsqds
from support.copies_load import CopiesLoad
from support.etcd_process import Etcd

PREFIX = "/nsqcy/default/"
PATIENCE = 12 * LEASE
"""Seconds after which the operator runs `nsqcy copies repair`."""
MAX_PAUSE = 2 * LEASE
"""Seconds before the damage, and between the damage and the next fault."""

KINDS = ["lose", "lose_unnoticed", "delete_keys", "restore", "restore_unnoticed", "replace"]
USABLE = ("current", "successor")
SEQUELS = ["lose_a_machine", "stop_a_machine", "restart_all", "kill_all"]


@dataclass
class Damages:
    """Damages the registry, and waits after each case until the cluster is in sync."""

    cluster: CopiedNsqds
    load: CopiesLoad
    rng: random.Random
    repairs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    _snapshots: list[Path] = field(default_factory=list)
    _foreign: Path | None = None

    @property
    def etcd(self) -> Etcd:
        return self.cluster.etcd

    def apply(self, count: int, kinds: list[str] = KINDS, sequels: list[str] = SEQUELS) -> None:
        for number in range(1, count + 1):
            kind, sequel = self.rng.choice(kinds), self.rng.choice(sequels)
            self.counts.update((kind, sequel))
            since = time.monotonic()
            try:
                self._snapshots = [*self._snapshots[-2:], self.etcd.save()]
                self._pause()
                getattr(self, kind)()
                self._pause()
                getattr(self, sequel)()
                self._await_sync()
                self.load.goes_on()
            except BaseException as error:
                raise AssertionError(f"moment {number}, {kind}, {sequel}: {error}") from error
            seconds = time.monotonic() - since
            print(f"{number}: {kind}, {sequel}: in sync after {seconds:.1f} s", flush=True)

    def _pause(self) -> None:
        time.sleep(self.rng.uniform(0.0, MAX_PAUSE))

    # -- damages

    def lose(self) -> None:
        self.etcd.erase()

    def lose_unnoticed(self) -> None:
        """The revision is not lower afterwards, because another program uses the same etcd."""
        revision = self.etcd.revision()
        self.etcd.erase()
        self.etcd.raise_revision(revision + 10)

    def delete_keys(self) -> None:
        client = self.etcd.client()
        found, _ = client.read(PREFIX)
        keys = [each.key for each in found]
        client.transact([], [], self.rng.sample(keys, self.rng.randint(1, len(keys))))

    def restore(self) -> None:
        self.etcd.restore(self.rng.choice(self._snapshots))

    def restore_unnoticed(self) -> None:
        revision = self.etcd.revision()
        self.restore()
        self.etcd.raise_revision(revision + 10)

    def replace(self) -> None:
        """Use the data of another cluster."""
        if self._foreign is None:
            with Etcd() as other:
                client = other.client()
                lease = client.grant(int(LEASE))
                session = b'{"node": "x.0", "machine": "x", "address": "127.0.0.1:9"}'
                group = Group("g", 3, "x.0", "x.0.1", ("x.0", "y.0"), 3, 2, "n", "os")
                puts = [
                    Put(f"{PREFIX}identity", encode_identity(Identity("other"))),
                    Put(f"{PREFIX}groups/g", encode_group(group)),
                    Put(f"{PREFIX}sessions/x.0.1", session, lease),
                ]
                client.transact([], puts)
                self._foreign = self.cluster.keep(other.save())
        self.etcd.restore(self._foreign)

    # -- sequels

    def lose_a_machine(self) -> None:
        """Lose a machine; an empty one replaces it later."""
        node = self.rng.choice(self.cluster.nodes)
        node.kill_all()
        node.erase()
        time.sleep(self.rng.uniform(0.0, 3 * LEASE))
        _start(node)

    def stop_a_machine(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        node.kill_all()
        time.sleep(self.rng.uniform(0.0, 3 * LEASE))
        _start(node)

    def restart_all(self) -> None:
        self.cluster.on_each(_restart, self.cluster.nodes)

    def kill_all(self) -> None:
        self.cluster.on_each(CopiedNsqd.kill_all, self.cluster.nodes)
        self.cluster.on_each(_start, self.cluster.nodes)

    # -- afterwards

    def _await_sync(self) -> None:
        with contextlib.suppress(AssertionError):
            eventually(self._is_registered, PATIENCE, interval=POLL)
        if not self._is_registered():
            self._repair()
        self.cluster.await_sync()

    def _is_registered(self) -> bool:
        """Return whether every node uses the registry, and the registry has all groups."""
        workers = [each for node in self.cluster.nodes for each in node.copies()]
        return len(workers) == WORKERS * len(self.cluster.nodes) and all(
            each["etcd"]
            and each["registry"] in ("current", "successor")
            and not each["unregistered"]
            for each in workers
        )

    def _repair(self) -> None:
        """Follow the runbook."""
        for node in self.cluster.nodes:
            for each in node.copies():
                where = f"{node.name}.{each['worker']}"
                print(f"repairing: {where}: {each['registry']}, lacks {each['unregistered']}")
        self.repairs += 1
        self.cluster.on_each(CopiedNsqd.kill_all, self.cluster.nodes)
        for node in self.cluster.nodes:
            command = [f"{Path(sys.executable).parent}/nsqcy", "copies", "repair", str(node.data)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.cluster.on_each(_start, self.cluster.nodes)


def _start(node: CopiedNsqd) -> None:
    """Start an nsqd, whose /ping may fail until all groups are registered again."""
    node.start(is_healthy=False)


def _restart(node: CopiedNsqd) -> None:
    node.stop()
    _start(node)
