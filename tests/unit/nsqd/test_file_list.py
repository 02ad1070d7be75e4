"""The list of a copy's files: which missing files it reveals, and its state after a kill."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.nsqd.copies.copy_files import CopyFiles, Data, lacking_files
from nsqcy.nsqd.copies.file_list import (
    LIST,
    SPARE,
    DamagedList,
    FileList,
    is_listed,
    lacking,
    read_list,
)
from nsqcy.nsqd.copies.file_table import HEADER
from nsqcy.nsqd.copies.mirror import Mirror
from nsqcy.storage.core import Log, LogProbe, MirroredIo
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import messages, run, segment_header

BOOT = "0" * 32
FIRST = "t.topic/00000000000000000001.seg"
SECOND = "t.topic/00000000000000000002.seg"
JOURNAL = "t.topic/journal"


@pytest.fixture
def io() -> Iterator[FaultyIoThread]:
    io = FaultyIoThread()
    yield io
    io.close()


def opened(io: FaultyIoThread, root: Path, durability: str = "os") -> CopyFiles:
    failures: list[int] = []
    return CopyFiles(io, root, BOOT, durability, failures.append)


def filled(io: FaultyIoThread, root: Path) -> CopyFiles:
    """Return a copy with two segments and a journal, which another process has filled."""
    copy = opened(io, root)
    copy.begin_filling()
    for number, path in enumerate((FIRST, SECOND), 1):
        copy.write(path, 0, Data(segment_header(number)))
        copy.write(path, HEADER, Data(b"records!"))
    copy.write(JOURNAL, 0, Data(b"journal"))
    copy.fill([FIRST, SECOND, JOURNAL], 3)
    io.drain_now()
    return copy


# -- what the list reveals


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(HEADER)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def killed(io: FaultyIoThread, copy: CopyFiles) -> None:
    """Kill a process and its successor, which has opened the copy."""
    assert opened(io, copy.root).whole


def ended(_: FaultyIoThread, copy: CopyFiles) -> None:
    copy.close()


ANYHOW: list[tuple[str, Callable[[Path], object], list[str]]] = [
    (FIRST, Path.unlink, [FIRST]),
    (SECOND, Path.unlink, [SECOND]),
    (JOURNAL, Path.unlink, [JOURNAL]),
    ("t.topic", shutil.rmtree, [FIRST, SECOND, JOURNAL]),
    (LIST, Path.unlink, [LIST]),
    (LIST, empty, [LIST]),
    (LIST, flip, [LIST]),
    ("copy.json", Path.unlink, []),  # the copy is not whole without it
]
AFTER_A_CLEAN_EXIT = [(FIRST, cut, [FIRST]), (JOURNAL, empty, [JOURNAL])]


@pytest.mark.parametrize(
    ("stop", "path", "fault", "expected"),
    [
        *((killed, *each) for each in ANYHOW),
        *((ended, *each) for each in (*ANYHOW, *AFTER_A_CLEAN_EXIT)),
    ],
)
def test_a_missing_file(
    io: FaultyIoThread,
    tmp_path: Path,
    stop: Callable[[FaultyIoThread, CopyFiles], None],
    path: str,
    fault: Callable[[Path], object],
    expected: list[str],
) -> None:
    stop(io, filled(io, tmp_path))
    io.drain_now()
    assert lacking_files(tmp_path) == []
    fault(tmp_path / path)
    assert lacking_files(tmp_path) == expected
    copy = opened(io, tmp_path)
    assert copy.lacking == expected and copy.damaged >= set(expected)
    for _ in range(2):  # the loss counts until the copy is filled
        assert not copy.whole
        io.drain_now()
        copy = opened(io, tmp_path)
    assert not copy.whole


def test_a_segment_that_no_longer_grows_is_too_short_after_a_kill(
    io: FaultyIoThread, tmp_path: Path
) -> None:
    copy = filled(io, tmp_path)
    copy.table.list_sizes()
    copy.write(SECOND, HEADER + 8, Data(b"more"))
    copy.table.list_sizes()
    io.drain_now()
    cut(tmp_path / SECOND)
    assert lacking_files(tmp_path) == []  # the last write may not have reached the disk
    cut(tmp_path / FIRST)
    assert lacking_files(tmp_path) == [FIRST]


def test_a_fill_completes_the_copy(io: FaultyIoThread, tmp_path: Path) -> None:
    filled(io, tmp_path)
    (tmp_path / FIRST).unlink()
    copy = opened(io, tmp_path)
    assert copy.damaged == {FIRST}
    assert FIRST not in copy.offered()
    copy.begin_filling()
    copy.write(FIRST, 0, Data(segment_header(1)))
    copy.fill([FIRST, SECOND, JOURNAL], 4)
    io.drain_now()
    assert (copy.whole, copy.damaged, copy.lacking) == (True, set(), [])
    assert opened(io, tmp_path).whole


def test_a_copy_of_an_earlier_version_has_no_list(io: FaultyIoThread, tmp_path: Path) -> None:
    filled(io, tmp_path)
    facts = tmp_path / "copy.json"
    facts.write_text(json.dumps({"whole": True, "epoch": 3, "boot": BOOT, "serves": False}))
    (tmp_path / LIST).unlink()
    assert opened(io, tmp_path).whole
    io.drain_now()
    assert read_list(tmp_path).keys() == {FIRST, SECOND, JOURNAL}
    (tmp_path / FIRST).unlink()
    assert not opened(io, tmp_path).whole


def test_a_downgrade_makes_the_list_void(io: FaultyIoThread, tmp_path: Path) -> None:
    filled(io, tmp_path)
    (tmp_path / FIRST).unlink()  # by an earlier version, which does not change the list
    facts = tmp_path / "copy.json"
    facts.write_text(json.dumps({"whole": True, "epoch": 4, "boot": BOOT}))
    assert opened(io, tmp_path).whole


def test_a_file_that_was_never_written_is_not_missing(io: FaultyIoThread, tmp_path: Path) -> None:
    copy = opened(io, tmp_path)
    copy.begin_filling()
    copy.fill([], 1)
    copy.table.truncated(FIRST, 0)  # a log opens its next segment
    copy.close()
    io.drain_now()
    assert not (tmp_path / FIRST).exists()
    assert opened(io, tmp_path).whole


def test_a_removed_copy_leaves_no_list(io: FaultyIoThread, tmp_path: Path) -> None:
    root = tmp_path / "g"
    filled(io, root).remove()
    io.drain_now()
    assert not root.exists()


# -- a kill at any time


@pytest.mark.parametrize("seed", range(8))
def test_no_kill_makes_an_owners_list_wrong(tmp_path: Path, seed: int) -> None:
    io = FaultyIoThread(stepped=True)
    copy = opened(io, tmp_path)
    copy.own(1)
    copy.whole = True
    failures: list[int] = []
    mirror = Mirror(copy.table, lambda: None, failures.append)
    files = MirroredIo(io, tmp_path, mirror)
    files.wait(False)
    chance = random.Random(seed)
    log = Log(files, tmp_path, "t", max_bytes_per_file=2000, sync_every=7)
    probe = LogProbe(log)
    runs: list[Any] = []
    seq = 1
    for _ in range(100):
        match chance.randrange(7):
            case 0 | 1 | 2:
                count = chance.randint(1, 12)
                runs.append(probe.append(run(messages(seq, count)), seq, seq + count - 1, count))
                seq += count
                probe.commit()
            case 3:
                probe.write_snapshot(chance.randbytes(chance.randint(1, 500)))
            case 4:
                probe.append_delta(chance.randbytes(chance.randint(1, 50)))
            case 5 if runs:
                probe.release(runs.pop(chance.randrange(len(runs))))
            case 6:
                copy.table.list_sizes()
        step(io, tmp_path, chance)
    probe.close()
    while io.outstanding:
        step(io, tmp_path, chance)
    copy.close()
    io.drain_now()
    sizes = {str(path.relative_to(tmp_path)): path.stat().st_size for path in tmp_path.glob("*/*")}
    assert read_list(tmp_path) == sizes and failures == []
    del probe, log
    files.wait(False)
    io.drain_now()
    io.close()


@pytest.mark.parametrize("seed", range(8))
def test_no_kill_makes_a_holders_list_wrong(tmp_path: Path, seed: int) -> None:
    io = FaultyIoThread(stepped=True)
    copy = opened(io, tmp_path, durability="fsync")
    chance = random.Random(seed)
    copy.begin_filling()
    copy.fill([], 1)
    names = [*(f"t.topic/{number:020}.seg" for number in range(1, 5)), JOURNAL, "u.topic/journal"]
    for _ in range(150):
        path = chance.choice(names)
        match chance.randrange(8):
            case 0 | 1 | 2:
                copy.write(path, copy.size(path), Data(chance.randbytes(chance.randint(1, 99))))
            case 3:
                copy.truncate(path, chance.randint(0, copy.size(path)))
            case 4:
                copy.delete(path)
            case 5:
                copy.write(f"{JOURNAL}.tmp", 0, Data(chance.randbytes(20)))
                copy.rename(f"{JOURNAL}.tmp", JOURNAL)
            case 6:
                copy.table.list_sizes()
            case 7:
                copy.begin_filling()
                copy.align(names[0], copy.size(names[0]) // 2)
                copy.write(JOURNAL, 0, Data(chance.randbytes(10)))
                copy.fill(chance.sample(names, 3), 2)
        step(io, tmp_path, chance)
    while io.outstanding:
        step(io, tmp_path, chance)
    io.close()


def step(io: FaultyIoThread, root: Path, chance: random.Random) -> None:
    """Perform some of the operations; after each, the process might be killed."""
    io.kick_now()
    for _ in range(chance.randint(0, 9)):
        if io.step_now(chance.choice((None, None, "awaited", "background"))):
            assert lacking_files(root) == []
    io.poll_now()


# -- the file


def kept(io: FaultyIoThread, root: Path, sizes: dict[str, int]) -> FileList:
    return FileList(io, root, sizes, lambda error: None, is_synced=False)


def test_the_list_is_written_anew_when_most_lines_are_outdated(
    io: FaultyIoThread, tmp_path: Path
) -> None:
    files = kept(io, tmp_path, {FIRST: 5})
    for _ in range(3 * SPARE):
        files.put({JOURNAL: 0})
        files.reduce(JOURNAL, None)
    io.drain_now()
    assert read_list(tmp_path) == {FIRST: 5}
    assert len((tmp_path / LIST).read_bytes().splitlines()) <= SPARE + 10


def test_each_change_is_in_the_file(io: FaultyIoThread, tmp_path: Path) -> None:
    files = kept(io, tmp_path, {FIRST: 5, SECOND: 7})
    files.reduce(FIRST, 9)  # not smaller
    files.reduce(SECOND, 6)
    files.put({JOURNAL: 0})
    files.reduce("unknown", None)
    io.drain_now()
    assert read_list(tmp_path) == {FIRST: 5, SECOND: 6, JOURNAL: 0}
    assert JOURNAL in files and files.size(SECOND) == 6


def test_an_incomplete_last_line_is_ignored(io: FaultyIoThread, tmp_path: Path) -> None:
    kept(io, tmp_path, {FIRST: 5}).put({SECOND: 0})
    io.drain_now()
    content = (tmp_path / LIST).read_bytes()
    for end in range(len(content) - 1, content.index(SECOND.encode()), -1):
        (tmp_path / LIST).write_bytes(content[:end])
        assert read_list(tmp_path) == {FIRST: 5}
    (tmp_path / LIST).write_bytes(content[:-20] + bytes(19) + b"\n")
    assert read_list(tmp_path) == {FIRST: 5}


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_line_makes_the_list_void(
    io: FaultyIoThread, tmp_path: Path, number: int
) -> None:
    kept(io, tmp_path, {FIRST: 5, SECOND: 5})
    io.drain_now()
    content = (tmp_path / LIST).read_bytes()
    for offset in range(len(content.splitlines()[number])):
        at = offset + number * (content.index(b"\n") + 1)
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        (tmp_path / LIST).write_bytes(damaged)
        with pytest.raises(DamagedList, match=LIST):
            read_list(tmp_path)


def test_a_list_that_cannot_be_read_is_not_damaged(tmp_path: Path) -> None:
    (tmp_path / LIST).symlink_to(LIST)
    with pytest.raises(OSError, match="symbolic links"):
        read_list(tmp_path)


def test_which_files_are_lacking() -> None:
    listed = {"a": 0, "b": 5, "c": 5, "d": 5}
    assert lacking(listed, {"a": 0, "b": 5, "c": 4, "e": 1}) == ["c", "d"]
    assert is_listed(FIRST) and is_listed(JOURNAL)
    assert not is_listed(f"{JOURNAL}.tmp") and not is_listed(f"{JOURNAL}.fill")
