"""An etcd that loses its data, is restored from a backup, or is replaced: the nodes detect it at
once, and restore their groups from their disks."""

from pathlib import Path

import pytest

from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.values import encode_group, encode_identity
from nsqcy.etcd.messages import Put
from nsqcy.nsqd.copies.copy_files import distrust_copies
from nsqcy.nsqd.copies.node import accept_registry
from support.copies_cluster import Machine, OwnedLog, Settings, until
from support.etcd_process import Etcd, needs_etcd

pytestmark = needs_etcd

PREFIX = f"/nsqcy/{Settings().cluster}/"


def new_log(machines: list[Machine]) -> OwnedLog:
    """Return a log of the first machine with a message that all machines have."""
    owner = machines[0]
    until(lambda: len(owner.host.worker.sessions) == len(machines))
    group_id = owner.host.create_group("os", len(machines), 2)
    until(lambda: all(has_all(each, group_id, len(machines)) for each in machines))
    log = owner.logs[group_id]
    append(log, 1)
    until(lambda: len({str(each.contents(group_id)) for each in machines}) == 1)
    return log


def has_all(machine: Machine, group_id: str, copies: int) -> bool:
    group = machine.group(group_id)
    return group is not None and len(group.members) == copies and is_protected(machine)


def append(log: OwnedLog, first: int) -> None:
    count = len(log.done)
    log.append(first)
    until(lambda: len(log.done) > count)
    assert not any(log.done)


def is_protected(machine: Machine) -> bool:
    return not machine.host.trouble() and machine.host.status()["etcd"]


def has_logged(machine: Machine, text: str) -> bool:
    return any(text in line for line in machine.lines.lines)


def erase(etcd: Etcd, *_: object) -> None:
    etcd.erase()


def delete_keys(etcd: Etcd, *_: object) -> None:
    found, _ = etcd.client().read(PREFIX)
    etcd.client().transact([], [], [each.key for each in found])


def restore(etcd: Etcd, snapshot: Path) -> None:
    etcd.restore(snapshot)


def replace(etcd: Etcd, *_: object) -> None:
    """Keep only the data of another cluster, whose nodes do not use this etcd."""
    etcd.erase()
    puts = [
        Put(f"{PREFIX}identity", encode_identity(Identity("other"))),
        Put(f"{PREFIX}groups/g", encode_group(Group("g", 1, "x", "x.1", ("x", "y"), 2, 2, "n"))),
    ]
    etcd.client().transact([], puts)


DAMAGES = [erase, delete_keys, restore, replace]


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_owner_restores_its_groups(etcd: Etcd, machines: list[Machine], damage) -> None:
    """The revision is not lower afterwards, because another program uses the same etcd."""
    snapshot = etcd.save()
    log = new_log(machines)
    group_id = log.group.id
    seen = etcd.revision()
    damage(etcd, snapshot)
    etcd.raise_revision(seen + 10)
    until(lambda: all(has_logged(each, "registry in etcd was replaced") for each in machines))
    until(lambda: all(map(is_protected, machines)))
    assert any(has_logged(each, "registry in etcd cannot be used") for each in machines)
    assert etcd.client().read(f"{PREFIX}groups/{group_id}")[0]
    append(log, 4)
    contents = machines[0].contents(group_id)
    machines[0].stop()
    until(lambda: any(group_id in each.logs for each in machines[1:]))
    successor = next(each for each in machines[1:] if group_id in each.logs)
    assert successor.contents(group_id) == contents
    machines[0].start()


@pytest.mark.parametrize("damage", DAMAGES)
def test_members_restore_a_group_after_all_were_stopped(
    etcd: Etcd, machines: list[Machine], damage
) -> None:
    snapshot = etcd.save()
    log = new_log(machines)
    group_id, contents = log.group.id, machines[0].contents(log.group.id)
    seen = etcd.revision()
    for machine in machines:
        machine.stop()
    damage(etcd, snapshot)
    etcd.raise_revision(seen + 10)
    for machine in machines[:2]:
        machine.start()
    # A missing member might know a later value.
    until(lambda: machines[0].host.status()["unregistered"] == [group_id])
    until(lambda: len(etcd.client().read(f"{PREFIX}recalls/")[0]) == 2)
    assert not etcd.client().read(f"{PREFIX}groups/{group_id}")[0] or damage is restore
    assert group_id not in machines[0].logs
    machines[2].start()
    until(lambda: group_id in machines[0].logs)
    assert not machines[0].logs[group_id].group.closed
    assert machines[0].contents(group_id) == contents
    until(lambda: all(map(is_protected, machines)))
    until(lambda: not etcd.client().read(f"{PREFIX}recalls/")[0])


def test_a_node_that_starts_without_etcd_says_so(etcd: Etcd, machines: list[Machine]) -> None:
    new_log(machines)
    machines[1].stop()
    (member,) = etcd.members
    member.kill()
    machines[1].start()
    until(lambda: has_logged(machines[1], "etcd does not respond"))
    assert "etcd has not responded since the start" in machines[1].host.trouble()
    assert machines[1].host.status()["unregistered"] == []
    assert machines[1].host.figures()["unregistered"] == 0
    etcd.restart(member)
    until(lambda: all(map(is_protected, machines)))


def test_after_a_repair_the_others_restore_a_group(etcd: Etcd, machines: list[Machine]) -> None:
    """The owner and its disk are lost at the same time as the data of etcd."""
    log = new_log(machines)
    group_id, contents = log.group.id, machines[0].contents(log.group.id)
    for machine in machines:
        machine.stop()
    etcd.erase()
    for machine in machines[1:]:
        accept_registry(machine.root)
        assert distrust_copies(machine.root.parent) >= 0
        machine.start()
    until(lambda: any(group_id in each.logs for each in machines[1:]))
    successor = next(each for each in machines[1:] if group_id in each.logs)
    assert successor.logs[group_id].group.closed
    assert successor.contents(group_id) == contents
    until(lambda: all(map(is_protected, machines[1:])))
    until(lambda: not any(each.host.worker.recall.is_repaired for each in machines[1:]))
    machines[0].start()


def test_a_registry_that_others_use_is_left_alone(
    etcd: Etcd, machines: list[Machine], tmp_path: Path
) -> None:
    log = new_log(machines)
    for machine in machines:
        machine.stop()
    etcd.erase()
    others = [Machine(tmp_path / f"other{number}", etcd) for number in range(2)]
    other = new_log(others)
    first = machines[0]
    first.start()
    until(lambda: first.host.status()["registry"] == "foreign")
    append(other, 4)
    assert first.group(log.group.id) is None and not first.host.worker.sessions
    first.stop()
    for machine in machines:
        accept_registry(machine.root)
        machine.start()
    until(lambda: any(log.group.id in each.logs for each in machines))
    until(lambda: all(map(is_protected, [*machines, *others])))
    append(other, 7)
    for machine in others:
        machine.stop()


def test_a_registry_without_an_identity_gets_one(etcd: Etcd, machines: list[Machine]) -> None:
    """Nodes of an older version have used this etcd, and they still own the group."""
    log = new_log(machines)
    for machine in machines:
        machine.stop()
    keys = [f"{PREFIX}identity", *(f"{PREFIX}marks/{each.name}" for each in machines)]
    etcd.client().transact([], [], keys)
    for machine in machines:
        path = machine.root / "node.0.json"
        path.write_text(OLDER % (machine.host.session.id, etcd.revision() - 1))
        machine.start()
    until(lambda: log.group.id in machines[0].logs)
    identities = {each.host.status()["registry"] for each in machines}
    assert identities == {"current"}
    assert not any("cannot be used" in line for each in machines for line in each.lines.lines)


OLDER = '{"processes": ["%s"], "revision": %d}'
