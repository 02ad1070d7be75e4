"""A copy's files that are temporarily unreadable: every errno and every short read has the same
effect.

The simulation of copies therefore has only one kind of failed read
(`simulation.disk.Disk.fails_to_read`). The I/O thread's fault table makes its reads fail; a
substitute for the real file makes the blocking reads fail.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsqcy.copies.fetching import Outcome
from nsqcy.copies.messages import Fetch, Fetched
from nsqcy.copies.ports import Unreadable
from nsqcy.nsqd.copies.copy_files import CopyFiles, Data
from nsqcy.nsqd.copies.file_table import HEADER
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import messages, run, segment_header

SEGMENT = "t.topic/00000000000000000001.seg"
JOURNAL = "t.topic/journal"
HEAD = segment_header(1)
RECORDS = bytes(run(messages(1, 9)))
SIZE = HEADER + len(RECORDS)


class Fault(NamedTuple):
    error: int
    short: int = -1


FAULTS = {
    "EIO": Fault(errno.EIO),
    "EAGAIN": Fault(errno.EAGAIN),
    "ETIMEDOUT": Fault(errno.ETIMEDOUT),
    "ENOMEM": Fault(errno.ENOMEM),
    "nothing": Fault(0, 0),
}
SHORT = {**FAULTS, "short": Fault(0, 1)}  # the I/O thread continues short reads
every_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
every_blocking_fault = pytest.mark.parametrize("fault", SHORT.values(), ids=SHORT.keys())
ALWAYS = 1 << 40


@pytest.fixture
def io() -> Iterator[FaultyIoThread]:
    io = FaultyIoThread()
    yield io
    io.close()


class Opened:
    """A file whose reads fail."""

    def __init__(self, file: Any, fault: Fault) -> None:
        self._file = file
        self._fault = fault

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fileno(self) -> int:
        return int(self._file.fileno())

    def read(self, size: int = -1) -> bytes:
        if self._fault.error:
            raise OSError(self._fault.error, os.strerror(self._fault.error))
        return bytes(self._file.read(size)[: self._fault.short])


@pytest.fixture
def fail_blocking_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Fault], None]:
    """Make the blocking reads of the files with this suffix fail."""
    opens = Path.open

    def fail(suffix: str, fault: Fault) -> None:
        def opened(path: Path, *args: Any, **options: Any) -> Any:
            file = opens(path, *args, **options)
            return Opened(file, fault) if path.name.endswith(suffix) else file

        monkeypatch.setattr(Path, "open", opened)

    return fail


class Disk:
    """A copy's directory, and the copy's requests to its caller."""

    def __init__(self, io: FaultyIoThread, root: Path) -> None:
        self.io = io
        self.root = root
        self.requests: list[str] = []
        copy = self.open()
        copy.begin_filling()
        copy.write(SEGMENT, 0, Data(HEAD + RECORDS))
        copy.write(JOURNAL, 0, Data(bytes(8)))
        copy.fill([SEGMENT, JOURNAL], 3)
        io.drain_now()

    def open(self) -> CopyFiles:
        def fetch(part: Any, done: Callable[[Outcome, Any], object]) -> None:
            self.requests.append("fetch")
            done(Outcome.MISSING, None)

        return CopyFiles(
            self.io, self.root, "b", "os", print, fetch, mend_journal=self.requests.append
        )

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.root.glob("*.topic/*")}


@pytest.fixture
def disk(io: FaultyIoThread, tmp_path: Path) -> Disk:
    return Disk(io, tmp_path / "g")


@every_fault
def test_a_part_that_cannot_be_read_is_not_missing(disk: Disk, fault: Fault) -> None:
    copy = disk.open()
    answers: list[Fetched] = []
    disk.io.fault("pread", 1, fault.error, ALWAYS, fault.short)
    copy.answer(Fetch(1, SEGMENT, HEAD, HEADER, 100), answers.append)
    disk.io.drain_now()
    assert [each.outcome for each in answers] == ["unreadable"]


@every_fault
def test_a_piece_that_cannot_be_read_is_not_sent(disk: Disk, fault: Fault) -> None:
    piece, _ = disk.open().read(SEGMENT, 0, SIZE)
    read: list[int] = []
    disk.io.fault("pread", 1, fault.error, ALWAYS, fault.short)
    piece.read(lambda error, data: read.append(error))
    disk.io.drain_now()
    assert read == [fault.error or errno.EIO]


@every_fault
def test_a_file_that_cannot_be_read_is_neither_damaged_nor_verified(
    disk: Disk, fault: Fault
) -> None:
    copy, before = disk.open(), disk.contents()
    finals: list[bool] = []
    disk.io.fault("pread", 1, fault.error, ALWAYS, fault.short)
    copy.mend(SEGMENT, finals.append)
    while not finals:
        disk.io.drain_now()
    disk.io.clear_faults()
    assert finals == [False]
    assert (copy.damaged, copy.unreadable, copy.mends(SEGMENT)) == (set(), {SEGMENT}, 0)
    assert copy.whole and disk.contents() == before


@every_fault
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_one_failed_read_is_repeated(disk: Disk, fault: Fault, nth: int) -> None:
    copy = disk.open()
    finals: list[bool] = []
    disk.io.fault("pread", nth, fault.error, 1, fault.short)
    copy.mend(SEGMENT, finals.append)
    while not finals:
        disk.io.drain_now()
    assert finals == [True] and not copy.unreadable


def test_a_short_read_is_continued(disk: Disk) -> None:
    copy = disk.open()
    answers: list[Fetched] = []
    disk.io.fault("pread", 1, 0, ALWAYS, 7)
    copy.answer(Fetch(1, SEGMENT, HEAD, HEADER, len(RECORDS)), answers.append)
    disk.io.drain_now()
    assert [each.data for each in answers] == [RECORDS]


@every_fault
def test_a_journal_that_cannot_be_read_is_not_filled_again(disk: Disk, fault: Fault) -> None:
    copy = disk.open()
    done: list[bool] = []
    disk.io.fault("pread", 1, fault.error, ALWAYS, fault.short)
    copy.scrub(JOURNAL, lambda _, call: call(), lambda: done.append(True))
    while not done:
        disk.io.drain_now()
    assert disk.requests == [] and copy.whole


@every_blocking_fault
@pytest.mark.parametrize("suffix", [".seg", "journal"])
def test_nothing_is_concluded_from_files_that_cannot_be_read(
    disk: Disk, fail_blocking_reads: Callable[[str, Fault], None], fault: Fault, suffix: str
) -> None:
    copy = disk.open()
    fail_blocking_reads(suffix, fault)
    with pytest.raises(Unreadable):
        copy.check()
    assert copy.whole and not copy.damaged


@every_blocking_fault
@pytest.mark.parametrize("suffix", [".seg", "copy.json"])
def test_a_copy_that_cannot_be_read_is_not_opened(
    disk: Disk,
    fail_blocking_reads: Callable[[str, Fault], None],
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    suffix: str,
) -> None:
    fail_blocking_reads(suffix, fault)
    with pytest.raises(Unreadable):
        disk.open()
    monkeypatch.undo()
    assert disk.open().whole
