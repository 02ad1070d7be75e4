"""A copy's files on a disk: filling, damage, and their state after a restart."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.copies.messages import Fetch, Fetched
from nsqcy.nsqd.copies.copy_files import (
    CopyFiles,
    Data,
    Piece,
    distrust_copies,
    root_of,
    served_topics,
)
from nsqcy.nsqd.copies.file_table import HEADER
from nsqcy.storage.core import Log, LogProbe
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import messages, run, segment_header, walk

SEGMENT = "t.topic/00000000000000000001.seg"
OTHER = "t.topic/00000000000000000009.seg"
JOURNAL = "t.topic/journal"
HEAD = segment_header(1)


@pytest.fixture
def io() -> Iterator[FaultyIoThread]:
    io = FaultyIoThread()
    yield io
    io.close()


class Disk:
    """Opens copies in one directory, one after another."""

    def __init__(self, io: FaultyIoThread, root: Path) -> None:
        self.io = io
        self.root = root
        self.failures: list[int] = []

    def open(self, boot: str = "b", durability: str = "os") -> CopyFiles:
        return CopyFiles(self.io, self.root, boot, durability, self.failures.append)

    def contents(self) -> dict[str, bytes]:
        return {
            os.fspath(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.glob("*.topic/*")
        }

    def stored(self, copy: CopyFiles) -> bool:
        done: list[bool] = []
        copy.store(lambda: done.append(True))
        self.io.drain_now()
        return bool(done)


@pytest.fixture
def disk(io: FaultyIoThread, tmp_path: Path) -> Disk:
    return Disk(io, tmp_path / "copies" / "g")


def filled(disk: Disk, **options: Any) -> CopyFiles:
    copy = disk.open(**options)
    copy.begin_filling()
    copy.truncate(SEGMENT, 0)
    copy.write(SEGMENT, 0, Data(HEAD))
    copy.write(SEGMENT, HEADER, Data(b"records"))
    copy.truncate(JOURNAL, 0)
    copy.write(JOURNAL, 0, Data(b"journal"))
    copy.fill([SEGMENT, JOURNAL], 3)
    assert disk.stored(copy)
    return copy


def test_a_filled_copy(disk: Disk) -> None:
    copy = filled(disk)
    assert disk.contents() == {SEGMENT: HEAD + b"records", JOURNAL: b"journal"}
    assert (copy.whole, copy.epoch) == (True, 3)
    extents = copy.files()
    assert extents[SEGMENT].identity == HEAD and extents[SEGMENT].size == HEADER + 7
    assert extents[JOURNAL].identity is None


def test_a_restart_within_the_same_boot_keeps_a_copy_whole(disk: Disk) -> None:
    extents = filled(disk).files()
    copy = disk.open()
    assert (copy.whole, copy.epoch) == (True, 3)
    assert copy.files() == extents


def test_only_class_fsync_survives_another_boot(disk: Disk) -> None:
    filled(disk)
    assert not disk.open(boot="c").whole
    assert disk.open(boot="c", durability="fsync").whole


def test_an_unfinished_fill_changes_no_journal(disk: Disk) -> None:
    copy = filled(disk)
    copy.begin_filling()
    copy.truncate(JOURNAL, 0)
    copy.write(JOURNAL, 0, Data(b"another"))
    assert disk.stored(copy)
    assert disk.contents()[JOURNAL] == b"journal"
    copy.own(4)
    assert disk.stored(copy)
    assert disk.contents() == {SEGMENT: HEAD + b"records", JOURNAL: b"journal"}
    assert disk.open().epoch == 4


def test_the_end_of_a_fill_removes_all_other_files(disk: Disk) -> None:
    copy = filled(disk)
    copy.begin_filling()
    copy.write(JOURNAL, 0, Data(b"another"))
    copy.fill([JOURNAL], 4)
    assert disk.stored(copy)
    assert disk.contents() == {JOURNAL: b"another"}


def test_a_file_is_cut_and_continued(disk: Disk) -> None:
    copy = filled(disk)
    copy.truncate(SEGMENT, HEADER + 3)
    copy.write(SEGMENT, HEADER + 3, Data(b"new"))
    assert disk.stored(copy)
    assert disk.contents()[SEGMENT] == HEAD + b"recnew"
    assert copy.size(SEGMENT) == HEADER + 6
    copy.truncate(SEGMENT, 0)
    assert copy.files()[SEGMENT].identity is None


def test_a_file_that_was_cut_to_nothing_may_not_exist(disk: Disk) -> None:
    copy = filled(disk)
    copy.truncate("u.topic/00000000000000000001.seg", 0)
    assert disk.stored(copy) and disk.failures == []


def test_checksums_of_records_are_filled_in(disk: Disk) -> None:
    copy = filled(disk)
    copy.write(SEGMENT, HEADER + 7, Data(bytes(run(messages(1, 3))), are_records=True))
    assert disk.stored(copy)
    found = walk(disk.contents()[SEGMENT][HEADER + 7 :])
    assert [each.damaged for each in found] == [False] * 3


def test_pieces_are_read_when_they_are_sent(disk: Disk) -> None:
    copy = filled(disk)
    piece, end = copy.read(SEGMENT, HEADER, 4)
    assert isinstance(piece, Piece) and end == HEADER + 4
    read: list[tuple[int, bytes]] = []
    piece.read(lambda error, data: read.append((error, data)))
    disk.io.drain_now()
    assert read == [(0, b"reco")]
    assert copy.read(SEGMENT, end, 100)[1] == HEADER + 7


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_failed_write_is_never_stored(disk: Disk, durability: str) -> None:
    copy = filled(disk, durability=durability)
    disk.io.fault("pwrite", error=errno.ENOSPC)
    copy.write(SEGMENT, HEADER + 7, Data(b"more"))
    assert not disk.stored(copy)
    assert disk.failures == [errno.ENOSPC]
    disk.io.drain_now()
    assert not disk.open(durability=durability).whole


def test_a_failed_sync_is_never_stored(disk: Disk) -> None:
    copy = filled(disk, durability="fsync")
    disk.io.fault("fdatasync", error=errno.EIO)
    copy.write(SEGMENT, HEADER + 7, Data(b"more"))
    assert not disk.stored(copy)
    assert disk.failures == [errno.EIO]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_failed_copy_can_be_filled_again(disk: Disk, durability: str) -> None:
    copy = filled(disk, durability=durability)
    disk.io.fault("pwrite", error=errno.ENOSPC)
    copy.write(SEGMENT, HEADER + 7, Data(b"more"))
    assert not disk.stored(copy)
    copy.begin_filling()
    assert copy.files()[SEGMENT].identity is None
    copy.truncate(SEGMENT, 0)
    copy.write(SEGMENT, 0, Data(HEAD + b"records, more"))
    copy.fill([SEGMENT], 4)
    assert disk.stored(copy) and copy.whole
    assert disk.contents() == {SEGMENT: HEAD + b"records, more"}
    assert disk.open(durability=durability).whole


def test_an_unfinished_fill_offers_only_what_was_verified(disk: Disk) -> None:
    copy = filled(disk)
    copy.begin_filling()
    copy.align(SEGMENT, HEADER + 7)
    copy.write(SEGMENT, HEADER + 7, Data(b"not verified"))
    copy.align(OTHER, 0)
    copy.write(OTHER, 0, Data(segment_header(2) + b"verified"))
    copy.align(OTHER, HEADER + 8)
    copy.write(OTHER, HEADER + 8, Data(b"not verified"))
    assert disk.stored(copy)
    for each in (copy, disk.open()):
        sizes = {path: extent.size for path, extent in each.offered().items()}
        assert sizes == {SEGMENT: HEADER + 7, OTHER: HEADER + 8}
        assert each.whole  # the copy has all data that it has ever confirmed
        each.begin_filling()
        assert {path: extent.size for path, extent in each.offered().items()} == sizes
        assert disk.stored(each)


@pytest.mark.parametrize("ends", ["filled", "owned"])
def test_everything_is_offered_once_a_fill_has_ended(disk: Disk, ends: str) -> None:
    copy = filled(disk)
    copy.begin_filling()
    copy.align(SEGMENT, HEADER)
    copy.write(SEGMENT, HEADER, Data(b"records, more"))
    if ends == "filled":
        copy.fill([SEGMENT], 4)
    else:
        copy.own(4)
    assert disk.stored(copy)
    for each in (copy, disk.open()):
        assert each.offered()[SEGMENT].size == HEADER + 13


def test_a_part_of_another_process_s_file_is_missing(disk: Disk) -> None:
    copy = filled(disk)
    answers: list[Fetched] = []
    for number, identity in enumerate((HEAD, segment_header(2))):
        copy.answer(Fetch(number, SEGMENT, identity, HEADER, 7), answers.append)
    disk.io.drain_now()
    assert {each.number: (each.outcome, each.data) for each in answers} == {
        0: ("", b"records"),
        1: ("missing", None),
    }


def test_a_copy_with_a_damaged_header_is_not_whole(disk: Disk) -> None:
    filled(disk)
    with (disk.root / SEGMENT).open("r+b") as file:
        file.write(b"x")
    copy = disk.open()
    assert not copy.whole
    assert copy.offered() == {}


def test_damaged_facts_leave_a_copy_that_is_not_whole(disk: Disk) -> None:
    filled(disk)
    for content in (b"", b"[]", b'{"whole": 1, "boot": "b"}', b"\xff"):
        (disk.root / "copy.json").write_bytes(content)
        assert not disk.open().whole


def test_a_journal_that_is_damaged_in_two_passes_is_replaced(disk: Disk) -> None:
    replaced: list[str] = []
    found: list[tuple[str, int, int]] = []
    copy = CopyFiles(
        disk.io,
        disk.root,
        "b",
        "os",
        print,
        found=lambda path, findings: found.append((path, findings.damaged, findings.mended)),
        mend_journal=replaced.append,
    )
    log = Log(disk.io, disk.root, "t", sync_every=0)
    LogProbe(log).write_snapshot(b"state of the channels")
    disk.io.drain_now()
    journal = disk.root / JOURNAL
    intact = journal.read_bytes()
    copy.table.written(JOURNAL, 0, intact)

    def scrub(content: bytes) -> None:
        journal.write_bytes(content)
        copy.scrub(JOURNAL, lambda _, call: call(), lambda: None)
        disk.io.drain_now()

    damaged = intact[:-2] + b"xx"
    scrub(damaged)
    scrub(intact)  # the file was being replaced
    scrub(damaged)
    scrub(intact[:-3] + b"yyy")
    scrub(damaged)
    assert replaced == [] and found == []
    disk.io.fault("pread", error=errno.EIO)
    scrub(damaged)
    assert replaced == []
    scrub(damaged)
    assert replaced == [JOURNAL] and copy.damaged == {JOURNAL}
    scrub(intact)
    assert copy.damaged == set()
    assert found == [(JOURNAL, 1, 0), (JOURNAL, 0, 1)]


def test_a_start_finds_the_topics_that_each_worker_serves(
    io: FaultyIoThread, tmp_path: Path
) -> None:
    for worker, group, serves in ((0, "a", True), (1, "b", True), (1, "c", False)):
        root = root_of(tmp_path, worker) / group
        (root / f"of-{group}.topic").mkdir(parents=True)
        copy = CopyFiles(io, root, "boot", "os", print)
        copy.own(1)
        copy.serves = serves
    io.drain_now()
    assert served_topics(tmp_path, 2) == {"of-a": 0, "of-b": 1}
    assert served_topics(tmp_path, 1) == {"of-a": 0}
    copy = CopyFiles(io, root_of(tmp_path, 0) / "a", "boot", "os", print)
    copy.begin_filling()
    copy.fill([], 2)  # another node owns the group now
    io.drain_now()
    assert served_topics(tmp_path, 2) == {"of-b": 1}


def test_distrusted_copies_are_not_whole(io: FaultyIoThread, tmp_path: Path) -> None:
    root = root_of(tmp_path, 0) / "a"
    CopyFiles(io, root, "boot", "fsync", print).whole = True
    io.drain_now()
    assert CopyFiles(io, root, "boot", "fsync", print).whole
    assert distrust_copies(tmp_path) == 1
    assert not CopyFiles(io, root, "boot", "fsync", print).whole


def test_a_file_that_is_deleted_during_its_sync_is_no_failure(tmp_path: Path) -> None:
    io = FaultyIoThread(stepped=True)
    failures: list[int] = []
    CopyFiles(io, tmp_path, "boot", "fsync", failures.append).write(SEGMENT, 0, Data(HEAD))
    io.drain_now()
    copy = CopyFiles(io, tmp_path, "boot", "fsync", failures.append)
    io.drain_now()
    copy.sync()
    copy.delete(SEGMENT)
    io.kick_now()
    while io.step_now("writes"):  # the sync waits in its lane
        pass
    io.drain_now()
    assert failures == []
    io.close()


def test_what_a_killed_process_wrote_is_synced_before_it_is_confirmed(disk: Disk) -> None:
    copy = filled(disk, durability="fsync")
    copy.write(SEGMENT, HEADER + 7, Data(b" of a killed process"))
    disk.io.drain_now()  # written, but not synced
    copy = disk.open(durability="fsync")
    copy.begin_filling()
    copy.align(SEGMENT, HEADER + 27)  # the owner has these bytes too
    disk.io.record()
    copy.fill([SEGMENT, JOURNAL], 4)
    assert disk.stored(copy)
    calls = disk.io.recorded()
    paths = {fd: path for call, fd, path, *_ in calls if call == "open"}
    synced = {paths.get(fd) for call, fd, *_ in calls if call == "fdatasync"}
    assert {os.fspath(disk.root / SEGMENT), os.fspath(disk.root / JOURNAL)} <= synced


def test_a_deleted_topic_needs_no_sync(io: FaultyIoThread, tmp_path: Path) -> None:
    failures: list[int] = []
    copy = CopyFiles(io, tmp_path / "group", "boot", "fsync", failures.append)
    copy.write(SEGMENT, 0, Data(b"x" * HEADER))
    copy.delete(SEGMENT)
    copy.delete("t.topic")
    stored: list[bool] = []
    copy.store(lambda: stored.append(True))
    while not stored and not failures:
        io.drain_now()
    assert failures == []
    assert not (tmp_path / "group" / "t.topic").exists()
