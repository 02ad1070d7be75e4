"""Damaged and unreadable files of copies: they are repaired from another machine."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.copies_cluster import JOURNAL, Machine, OwnedLog, Settings, running, until
from support.etcd_process import Etcd, needs_etcd

pytestmark = needs_etcd

HEADER = 64  # bytes


@pytest.fixture
def scrubbed(etcd: Etcd, tmp_path: Path) -> Iterator[list[Machine]]:
    """Machines that constantly verify their copies."""
    with running(etcd, tmp_path, Settings(scrub_rate=100 << 20)) as machines:
        yield machines


def filled_log(machines: list[Machine], copies: int = 3, of: int = 0) -> OwnedLog:
    """Return a log of the first machine, with 90 records that all members have. `of`: the number of
    members, if fewer than `copies`."""
    owner = machines[0]
    until(lambda: len(owner.host.worker.sessions) == len(machines))
    group_id = owner.host.create_group("os", copies, 2)
    until(lambda: (group := owner.group(group_id)) and len(group.members) == (of or copies))
    log = owner.logs[group_id]
    for first in range(1, 90, 3):
        log.append(first)
    until(lambda: log.done == [0] * 30)
    return log


def segment_of(machine: Machine, group_id: str) -> Path:
    (path,) = (machine.root / group_id).glob("t.topic/*.seg")
    return path


def flip(path: Path, *offsets: int) -> None:
    """Invert bytes of a file."""
    with path.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0xFF]))


@contextmanager
def unreadable(path: Path) -> Iterator[Path]:
    """Make opening a file fail, even for root. Yield a path through which the file's content can be
    read."""
    kept = path.with_name("unreadable")
    path.rename(kept)
    path.symlink_to(path)
    yield kept
    path.unlink()
    kept.rename(path)


def mended(machine: Machine, group_id: str) -> tuple[bool, bool]:
    """Repair a machine's segment; return whether the result is final, and whether the segment has
    changed."""
    copy = machine.host.copy(group_id)
    assert copy is not None
    results: list[bool] = []
    path = segment_of(machine, group_id).relative_to(machine.root / group_id).as_posix()
    mends = copy.mends(path)
    copy.mend(path, results.append)
    machine.io.kick_now()
    until(lambda: results)
    return results[0], copy.mends(path) > mends


def answers_known(machine: Machine, group_id: str) -> bool:
    owner = machine.host.worker.owner(group_id)
    return owner is not None and all(feed.answers for feed in owner.feeds.values())


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([HEADER + 60], id="a record"),
        pytest.param([HEADER], id="a record's length"),
        pytest.param(range(200, 3000, 50), id="many records"),
        pytest.param([20], id="the header"),
    ],
)
def test_the_owner_mends_its_files(machines: list[Machine], offsets: list[int]) -> None:
    group_id = filled_log(machines).group.id
    until(lambda: answers_known(machines[0], group_id))
    contents = machines[0].contents(group_id)
    flip(segment_of(machines[0], group_id), *offsets)
    assert machines[0].contents(group_id) != contents
    assert mended(machines[0], group_id) == (True, True)
    assert machines[0].contents(group_id) == contents
    assert machines[0].host.figures()["damaged"] == 0


def test_each_copy_may_be_damaged_in_another_place(machines: list[Machine]) -> None:
    group_id = filled_log(machines).group.id
    until(lambda: answers_known(machines[0], group_id))
    contents = machines[0].contents(group_id)
    for number, machine in enumerate(machines):
        flip(segment_of(machine, group_id), HEADER + 500 * number + 60)
    assert mended(machines[0], group_id) == (True, True)
    assert machines[0].contents(group_id) == contents


def test_what_no_copy_has_stays(machines: list[Machine]) -> None:
    group_id = filled_log(machines).group.id
    until(lambda: answers_known(machines[0], group_id))
    for machine in machines:
        flip(segment_of(machine, group_id), HEADER + 60)
    contents = machines[0].contents(group_id)
    assert mended(machines[0], group_id) == (True, False)
    assert machines[0].contents(group_id) == contents
    assert machines[0].host.figures()["damaged"] == 1


def test_a_member_that_does_not_respond_may_have_it(machines: list[Machine]) -> None:
    group_id = filled_log(machines, 2).group.id
    group = machines[0].group(group_id)
    assert group is not None
    holder = next(each for each in machines[1:] if each.name in group.members)
    until(lambda: answers_known(machines[0], group_id))
    contents = machines[0].contents(group_id)
    flip(segment_of(machines[0], group_id), HEADER + 60)
    holder.stop()
    until(lambda: machines[0].host.worker.owner(group_id).responding() == 1)  # type: ignore[union-attr]
    assert mended(machines[0], group_id) == (False, False)
    holder.start()
    until(lambda: mended(machines[0], group_id)[0])
    assert machines[0].contents(group_id) == contents


def test_unreadable_parts_are_fetched(machines: list[Machine]) -> None:
    group_id = filled_log(machines).group.id
    until(lambda: answers_known(machines[0], group_id))
    contents = machines[0].contents(group_id)
    machines[0].io.fault("pread", nth=3, error=errno.EIO, times=2)
    assert mended(machines[0], group_id) == (True, True)
    assert machines[0].contents(group_id) == contents


def test_a_disk_that_cannot_be_read_is_not_damaged(machines: list[Machine]) -> None:
    group_id = filled_log(machines).group.id
    until(lambda: answers_known(machines[0], group_id))
    machines[0].io.fault("pread", error=errno.EIO, times=1000)
    assert mended(machines[0], group_id) == (False, False)
    figures = machines[0].host.figures()
    assert (figures["unreadable"], figures["damaged"]) == (1, 0)
    machines[0].io.clear_faults()
    assert mended(machines[0], group_id) == (True, False)
    assert machines[0].host.figures()["unreadable"] == 0


def test_the_scrubber_mends_a_holders_copy(scrubbed: list[Machine]) -> None:
    group_id = filled_log(scrubbed).group.id
    contents = scrubbed[0].contents(group_id)
    flip(segment_of(scrubbed[1], group_id), *range(100, 3000, 40))
    until(lambda: scrubbed[1].contents(group_id) == contents)
    until(lambda: scrubbed[1].host.figures()["mended"] > 0)
    assert any("was damaged; repaired" in line for line in scrubbed[1].lines.lines)


@pytest.mark.parametrize("number", [0, 1], ids=["owner", "holder"])
def test_a_damaged_journal_is_replaced(scrubbed: list[Machine], number: int) -> None:
    log = filled_log(scrubbed)
    group_id = log.group.id
    log.write_journal()
    journal = segment_of(scrubbed[number], group_id).with_name("journal")
    until(lambda: journal.exists() and JOURNAL in journal.read_bytes())
    until(lambda: len({str(each.contents(group_id)) for each in scrubbed}) == 1)
    contents = journal.read_bytes()
    flip(journal, len(contents) - 3)
    until(lambda: journal.read_bytes() == contents)
    until(lambda: scrubbed[number].host.figures()["damaged"] == 0)
    assert any("t.topic/journal" in line for line in scrubbed[number].lines.lines)
    until(lambda: len({str(each.contents(group_id)) for each in scrubbed}) == 1)


def test_damage_does_not_spread_to_a_node_that_joins(machines: list[Machine]) -> None:
    owner, _, other = machines
    other.stop()
    until(lambda: len(owner.host.worker.sessions) == 2)
    group_id = filled_log(machines[:2], 3, of=2).group.id
    contents = owner.contents(group_id)
    flip(segment_of(owner, group_id), *range(100, 3000, 40))
    other.start()
    until(lambda: (group := owner.group(group_id)) and other.name in group.members)
    assert other.contents(group_id) == owner.contents(group_id) == contents


@pytest.mark.parametrize("offset", [20, -1])
def test_an_owner_with_a_damaged_header_or_journal_does_not_resume(
    machines: list[Machine], offset: int
) -> None:
    owner = machines[0]
    group_id = filled_log(machines).group.id
    contents = owner.contents(group_id)
    owner.stop()
    if offset < 0:
        journal = segment_of(owner, group_id).with_name("journal")
        journal.write_bytes(bytes(100) + b"damaged")
    else:
        flip(segment_of(owner, group_id), offset)
    owner.start()
    until(lambda: any(group_id in machine.logs for machine in machines[1:]))
    for machine in machines[1:]:
        until(lambda machine=machine: machine.contents(group_id).items() >= contents.items())


def test_a_copy_that_cannot_be_read_is_kept(machines: list[Machine]) -> None:
    group_id = filled_log(machines).group.id
    holder = machines[1]
    contents = holder.contents(group_id)
    holder.stop()
    with unreadable(segment_of(holder, group_id)) as kept:
        holder.start()
        until(lambda: len(machines[0].host.worker.sessions) == 3)
        until(lambda: any("ended: connection closed" in line for line in machines[0].lines.lines))
        assert kept.stat().st_size == len(next(iter(contents.values())))
        until(lambda: holder.host.figures()["unreadable"] == 1)
    until(lambda: holder.host.figures()["unreadable"] == 0)
    until(lambda: holder.contents(group_id) == machines[0].contents(group_id))


def test_a_copy_that_cannot_be_read_is_deleted_later(machines: list[Machine]) -> None:
    """While the machine is stopped, the group ends."""
    log = filled_log(machines)
    group_id, holder = log.group.id, machines[1]
    holder.stop()
    with unreadable(segment_of(holder, group_id)):
        owner = machines[0].host.worker.owner(group_id)
        assert owner is not None
        owner.drained()
        until(lambda: (group := machines[0].group(group_id)) and group.done)
        holder.start()
        until(lambda: holder.host.figures()["unreadable"] == 1)
    until(lambda: not (holder.root / group_id).exists())
    assert holder.host.figures()["unreadable"] == 0


@pytest.mark.parametrize("error", [0, errno.EIO])
def test_a_log_reads_what_another_machine_has(machines: list[Machine], error: int) -> None:
    log = filled_log(machines)
    group_id = log.group.id
    until(lambda: answers_known(machines[0], group_id))
    contents = machines[0].contents(group_id)
    flip(segment_of(machines[0], group_id), *range(100, 3000, 40))
    if error:
        machines[0].io.fault("pread", error=error, times=20)
    results: list[tuple[int, bytes]] = []

    def read() -> None:
        log.probe.read(log.handle, lambda *result: results.append((result[0], bytes(result[1]))))
        machines[0].io.kick_now()

    def is_read() -> bool:
        if not results or results[-1][0]:
            read()
            count = len(results)
            until(lambda: len(results) > count)
        return results[-1][0] == 0

    until(is_read)
    ((path, whole),) = contents.items()
    assert results[-1][1] in whole and path.endswith(".seg")
