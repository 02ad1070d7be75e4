"""Workers that hold copies for each other, with real files, sockets and etcd."""

import errno
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqcy.copies.group import Group
from nsqcy.nsqd.copies.registry import decoded, prefix_of
from nsqcy.storage.state_file import StateFile
from support.copies_cluster import LIMITS, Machine, OwnedLog, Settings, running, until
from support.etcd_process import Etcd, needs_etcd

pytestmark = needs_etcd


class FullMachine(Machine):
    """A machine whose disk is full while it creates a group."""

    def begun(self, group: Group, files: Any, directory: Path) -> None:
        self.io.fault("pwrite", error=errno.ENOSPC)
        super().owned(group, files, directory)
        self.logs[group.id].append(1)

    def owned(self, group: Group, files: Any, directory: Path) -> None:
        if group.id not in self.logs:
            super().owned(group, files, directory)


def new_log(owner: Machine, copies: int, of: int = 3) -> OwnedLog:
    """Return a log in a group that has all of its members. `of`: the number of machines."""
    until(lambda: len(owner.host.worker.sessions) == of)
    group_id = owner.host.create_group("os", copies, 2)
    until(lambda: (group := owner.group(group_id)) and len(group.members) == copies)
    return owner.logs[group_id]


def test_every_member_has_what_is_acknowledged(machines: list[Machine]) -> None:
    log = new_log(machines[0], 3)
    for first in range(1, 100, 3):
        log.append(first)
    until(lambda: log.done == [0] * 33)
    contents = machines[0].contents(log.group.id)
    assert contents
    for machine in machines:
        assert machine.contents(log.group.id) == contents


def test_a_member_takes_over_and_the_owner_returns(machines: list[Machine]) -> None:
    owner = machines[0]
    log = new_log(owner, 3)
    group_id = log.group.id
    log.append(1)
    until(lambda: log.done == [0])
    contents = owner.contents(group_id)
    owner.stop()
    until(lambda: any(group_id in machine.logs for machine in machines[1:]))
    successor = next(machine for machine in machines[1:] if group_id in machine.logs)
    assert successor.contents(group_id) == contents
    assert successor.logs[group_id].group.closed
    owner.start()
    successor.logs[group_id].append(4)
    until(lambda: owner.contents(group_id) == successor.contents(group_id) != contents)
    group = successor.group(group_id)
    assert group is not None
    until(lambda: owner.name in (successor.group(group_id) or group).members)


def test_a_restart_within_the_lease_resumes(machines: list[Machine]) -> None:
    owner = machines[0]
    log = new_log(owner, 2)
    log.append(1)
    until(lambda: log.done == [0])
    contents = owner.contents(log.group.id)
    owner.stop()
    owner.start()
    until(lambda: log.group.id in owner.logs)
    again = owner.logs[log.group.id]
    assert again.group.epoch == 2 and not again.group.closed
    assert owner.contents(log.group.id) == contents


def test_a_restart_on_a_disk_that_cannot_be_written(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other nodes serve the group while the disk is not writable. Afterwards, the node joins with
    its copy and its name."""
    owner = machines[0]
    log = new_log(owner, 3)
    group_id = log.group.id
    log.append(1)
    until(lambda: log.done == [0])
    owner.stop()
    write = StateFile.write

    def fail(file: StateFile, content: bytes) -> None:
        if file.path.startswith(str(owner.root)):
            raise OSError(errno.EROFS, "Read-only file system")
        write(file, content)

    with monkeypatch.context() as unwritable:
        unwritable.setattr(StateFile, "write", fail)
        owner.start()
        until(lambda: any(group_id in machine.logs for machine in machines[1:]))
        until(lambda: "Read-only file system".lower() in "".join(owner.lines.lines))
        assert not owner.logs
        assert all(len(each.host.worker.sessions) == 2 for each in machines[1:])
    successor = next(machine for machine in machines[1:] if group_id in machine.logs)
    successor.logs[group_id].append(4)
    until(lambda: len(successor.host.worker.sessions) == 3)
    until(lambda: owner.contents(group_id) == successor.contents(group_id))
    assert "older than the registry" not in "".join(owner.lines.lines)


def test_a_mark_waits_for_the_disk(
    machines: list[Machine], etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry must not state that a node remembers values that are not yet on its disk.
    Meanwhile, the node continues."""
    owner = machines[0]
    hangs = threading.Event()
    turns = threading.Semaphore(0)
    write = StateFile.write
    hung: list[str] = []
    on_disk: list[bytes] = []

    def slow(file: StateFile, content: bytes) -> None:
        is_nodes = file.path.startswith(str(owner.root))
        if is_nodes and hangs.is_set():
            hung.append(file.path)
            turns.acquire()
        write(file, content)
        if is_nodes:
            on_disk.append(content)

    monkeypatch.setattr(StateFile, "write", slow)
    new_log(owner, 3)
    prefix = prefix_of(owner.settings.cluster)

    def mark() -> int:
        return decoded(prefix, etcd.client().read(prefix)[0]).marks.get(owner.name, 0)

    until(mark)
    hangs.set()
    log = new_log(owner, 3)
    log.append(1)
    until(lambda: log.done == [0])
    until(lambda: hung)
    groups = json.loads(on_disk[-1])["groups"].values()
    remembered = max(each["revision"] for each in groups)
    assert mark() <= remembered
    turns.release(100)
    until(lambda: mark() > remembered)


def test_a_lost_member_is_replaced(machines: list[Machine]) -> None:
    owner = machines[0]
    log = new_log(owner, 2)
    group = owner.group(log.group.id)
    assert group is not None
    holder = next(each for each in machines[1:] if each.name in group.members)
    other = next(each for each in machines[1:] if each is not holder)
    holder.stop()
    log.append(1)
    until(lambda: (group := owner.group(log.group.id)) and other.name in group.members)
    until(lambda: log.done == [0])
    assert other.contents(log.group.id) == owner.contents(log.group.id)
    holder.start()


@pytest.fixture
def patient(etcd: Etcd, tmp_path: Path) -> Iterator[list[Machine]]:
    """Machines that wait for silent members much longer than a test takes."""
    settings = Settings(limits=replace(LIMITS, copy_timeout=600.0, fill_timeout=600.0))
    with running(etcd, tmp_path, settings) as machines:
        yield machines


def holder_and_other(machines: list[Machine], group_id: str) -> tuple[Machine, Machine]:
    """Return the machine with the second copy, and the one without a copy."""
    group = machines[0].group(group_id)
    assert group is not None
    first, second = machines[1:]
    return (first, second) if first.name in group.members else (second, first)


def test_a_member_that_exits_is_replaced_at_once(patient: list[Machine]) -> None:
    log = new_log(patient[0], 2)
    holder, other = holder_and_other(patient, log.group.id)
    holder.host.leave()
    log.append(1)
    until(lambda: log.done == [0])
    until(lambda: other.contents(log.group.id) == patient[0].contents(log.group.id))


def test_a_member_whose_disk_fails_is_replaced_at_once(patient: list[Machine]) -> None:
    log = new_log(patient[0], 2)
    log.append(1)
    until(lambda: log.done == [0])
    holder, other = holder_and_other(patient, log.group.id)
    holder.io.fault("pwrite", error=errno.ENOSPC)
    log.append(4)
    until(lambda: log.done == [0, 0])
    until(lambda: other.contents(log.group.id) == patient[0].contents(log.group.id))
    assert any("no space left" in line for line in holder.lines.lines)


def test_copies_are_in_other_zones_if_possible(etcd: Etcd, tmp_path: Path) -> None:
    zones = ("a", "a", "a", "b")
    machines = [
        Machine(tmp_path / str(number), etcd, Settings(zone=zone))
        for number, zone in enumerate(zones)
    ]
    until(lambda: len(machines[0].host.worker.sessions) == 4)
    for _ in range(3):
        log = new_log(machines[0], 2, of=4)
        group = machines[0].group(log.group.id)
        assert group is not None and machines[3].name in group.members
    for machine in machines:
        machine.stop()


def test_the_value_of_a_group_that_has_ended_is_deleted(etcd: Etcd, tmp_path: Path) -> None:
    settings = Settings(limits=replace(LIMITS, done_timeout=0.5))
    with running(etcd, tmp_path, settings) as machines:
        log = new_log(machines[0], 3)
        owner = machines[0].host.worker.owner(log.group.id)
        assert owner is not None
        owner.drained()
        key = f"/nsqcy/{settings.cluster}/groups/{log.group.id}"
        until(lambda: not etcd.client().read(key)[0])
        until(lambda: all(machine.group(log.group.id) is None for machine in machines))
        assert not any((machine.root / log.group.id).exists() for machine in machines)


def test_a_group_that_cannot_be_written_from_the_beginning_ends(
    machines: list[Machine], etcd: Etcd, tmp_path: Path
) -> None:
    full = FullMachine(tmp_path / "full", etcd)
    machines.append(full)
    until(lambda: len(full.host.worker.sessions) == len(machines))
    group_id = full.host.create_group("os", 3, 2)
    until(lambda: (group := full.group(group_id)) and group.done)
    assert full.logs == {}
