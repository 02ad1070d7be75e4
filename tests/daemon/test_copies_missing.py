"""Files of copies that are removed or cut while nsqd is stopped: they are filled from another
machine, and no machine deletes what another one lacks."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqcy.nsqd.copies.copy_files import CopyFiles
from nsqcy.nsqd.copies.file_list import LIST
from support.copies_cluster import JOURNAL, Machine, until
from support.etcd_process import needs_etcd

pytestmark = needs_etcd

RECORDS = 90


def remove_segment(root: Path) -> None:
    (segment,) = root.glob("t.topic/*.seg")
    segment.unlink()


def cut_segment(root: Path) -> None:
    (segment,) = root.glob("t.topic/*.seg")
    content = segment.read_bytes()
    length = int.from_bytes(content[64:68], "little")
    segment.write_bytes(content[: 64 + length])


def remove_journal(root: Path) -> None:
    (root / "t.topic" / "journal").unlink()


def remove_topic(root: Path) -> None:
    shutil.rmtree(root / "t.topic")


def remove_list(root: Path) -> None:
    (root / LIST).unlink()


FAULTS = [remove_segment, cut_segment, remove_journal, remove_topic, remove_list, shutil.rmtree]


def filled_group(machines: list[Machine]) -> tuple[str, dict[str, bytes]]:
    """Return a group of all machines with records and a journal, and its files."""
    owner = machines[0]
    until(lambda: len(owner.host.worker.sessions) == len(machines))
    group_id = owner.host.create_group("os", 3, 2)
    until(lambda: (group := owner.group(group_id)) and len(group.members) == 3)
    log = owner.logs[group_id]
    for first in range(1, RECORDS, 3):
        log.append(first)
    log.write_journal()
    until(lambda: log.done == [0] * (RECORDS // 3))
    until(lambda: all(is_settled(each, group_id) for each in machines))
    contents = owner.contents(group_id)
    assert all(each.contents(group_id) == contents for each in machines)
    return group_id, contents


def is_settled(machine: Machine, group_id: str) -> bool:
    """Return whether a machine has the journal."""
    contents = machine.contents(group_id)
    return JOURNAL in contents.get("t.topic/journal", b"") and len(contents) == 2


def check_filled(machines: list[Machine], group_id: str, contents: dict[str, bytes]) -> None:
    """Wait until all machines have the files again."""
    for machine in machines:
        until(lambda: any(group_id in each.logs for each in machines))
        until(lambda machine=machine: machine.contents(group_id).items() >= contents.items())
        until(lambda machine=machine: machine.host.figures()["damaged"] == 0)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("number", [0, 1], ids=["the owner's", "a holder's"])
@pytest.mark.parametrize("returns", ["first", "last"])
def test_after_a_stop_of_all(
    machines: list[Machine], fault: Callable[[Path], None], number: int, returns: str
) -> None:
    group_id, contents = filled_group(machines)
    for machine in machines:
        machine.stop()
    faulty = machines[number]
    fault(faulty.root / group_id)
    others = [each for each in machines if each is not faulty]
    for machine in [faulty, *others] if returns == "first" else [*others, faulty]:
        machine.start()
    check_filled(machines, group_id, contents)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("number", [0, 1], ids=["the owner's", "a holder's"])
def test_after_a_restart_of_one(
    machines: list[Machine], fault: Callable[[Path], None], number: int
) -> None:
    group_id, contents = filled_group(machines)
    machine = machines[number]
    machine.stop()
    fault(machine.root / group_id)
    machine.start()
    check_filled(machines, group_id, contents)


@pytest.mark.parametrize("fault", [remove_segment, remove_journal, remove_topic, remove_list])
def test_after_a_kill(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch, fault: Callable[[Path], None]
) -> None:
    group_id, contents = filled_group(machines)
    monkeypatch.setattr(CopyFiles, "close", lambda self: None)
    for machine in machines:
        machine.stop()
    fault(machines[0].root / group_id)
    for machine in machines:
        machine.start()
    check_filled(machines, group_id, contents)
    assert any("is missing or too short" in line for line in machines[0].lines.lines)


def test_what_no_machine_has_is_given_up(machines: list[Machine]) -> None:
    """The most complete copy is used; nothing waits forever."""
    group_id, _ = filled_group(machines)
    for machine in machines:
        machine.stop()
        remove_topic(machine.root / group_id)
    for machine in machines:
        machine.start()
    until(lambda: any(group_id in each.logs for each in machines))
    owner = next(each for each in machines if group_id in each.logs)
    owner.logs[group_id].append(RECORDS + 1)
    until(lambda: owner.logs[group_id].done == [0])
