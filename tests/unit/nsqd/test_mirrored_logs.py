"""A log with mirrored changes: when a change is complete, and whether both directories are
equal."""

import errno
import random
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.nsqd.copies.copy_files import CopyFiles, Data
from nsqcy.storage.core import Log, LogProbe, MirroredIo
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import messages, run, walk

BOOT = "0" * 32


class Mirror:
    """Passes changes to a copy, and records their positions."""

    def __init__(self, copy: CopyFiles) -> None:
        self.copy = copy
        self.position = 0
        self.errors: list[int] = []
        self.runs: list[Any] = []

    def write(self, path: str, offset: int, data: bytes, are_records: bool) -> int:
        if are_records:
            self.runs.append(data)
        self.copy.write(path, offset, Data(data, are_records))
        return self._next()

    def shrinks(self, path: str, size: int | None) -> None:
        pass

    def truncate(self, path: str, size: int) -> int:
        self.copy.truncate(path, size)
        return self._next()

    def rename(self, path: str, to: str) -> int:
        self.copy.rename(path, to)
        return self._next()

    def delete(self, path: str) -> int:
        self.copy.delete(path)
        return self._next()

    def failed(self, error: int) -> None:
        self.errors.append(error)

    def _next(self) -> int:
        self.position += 1
        return self.position


class Mirrored:
    """A log below `here` and its copy below `there`."""

    def __init__(self, path: Path, durability: str = "os", **options: Any) -> None:
        self.here, self.there = path / "here", path / "there"
        self.here.mkdir()
        self.io = FaultyIoThread()
        self.failures: list[int] = []
        self.copy = CopyFiles(self.io, self.there, BOOT, durability, self.failures.append)
        self.mirror = Mirror(self.copy)
        self.mirrored = MirroredIo(self.io, self.here, self.mirror)
        self.log = Log(self.mirrored, self.here, "t", **options)
        self.probe = LogProbe(self.log)
        self.done: list[int] = []

    def append(self, first: int, count: int = 3, **options: Any) -> Any:
        data = run(messages(first, count))
        return self.probe.append(
            data, first, first + count - 1, count, done=self.done.append, **options
        )

    def commit(self) -> None:
        """Carry out all operations and commit them."""
        while self.io.outstanding or self.mirrored.pending:
            self.io.drain_now()
            self.mirrored.committed(self.mirror.position)

    def contents(self, root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*.topic/*")}

    def close(self) -> None:
        self.mirrored.wait(False)
        self.io.drain_now()
        self.probe = self.log = self.copy = self.mirror = None
        self.io.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mirrored]:
    disk = Mirrored(tmp_path)
    yield disk
    disk.close()


def test_a_run_is_done_when_it_is_committed(disk: Mirrored) -> None:
    disk.append(1)
    disk.io.drain_now()
    assert disk.done == []
    disk.mirrored.committed(disk.mirror.position - 1)
    assert disk.done == []
    disk.mirrored.committed(disk.mirror.position)
    assert disk.done == [0]


def test_a_committed_run_is_done_when_it_was_made_here(disk: Mirrored) -> None:
    disk.append(1)
    disk.mirrored.committed(disk.mirror.position)
    assert disk.done == []
    disk.io.drain_now()
    assert disk.done == [0]


def test_nothing_waits_at_the_end_of_a_process(disk: Mirrored) -> None:
    disk.append(1)
    disk.io.drain_now()
    disk.mirrored.wait(False)
    assert disk.done == [0]
    disk.append(4)
    disk.io.drain_now()
    assert disk.done == [0, 0]


def test_a_run_can_still_be_sent_when_it_is_done(disk: Mirrored) -> None:
    """Its memory may be reused then, and a holder that joins may be slow."""
    wanted = messages(1, 3)
    data = run(wanted)
    disk.probe.append(data, 1, 3, 3, done=disk.done.append)
    disk.commit()
    assert disk.done == [0]
    data[:] = bytes(len(data))
    (sent,) = disk.mirror.runs
    assert [each.message for each in walk(bytes(sent))] == wanted
    assert len(sent) == len(data)


class Counter:
    """A mirror that only counts the changes."""

    def __init__(self) -> None:
        self.position = 0
        self.errors: list[int] = []

    def write(self, *_: Any) -> int:
        self.position += 1
        return self.position

    truncate = rename = delete = write

    def shrinks(self, path: str, size: int | None) -> None:
        pass

    def failed(self, error: int) -> None:
        self.errors.append(error)


class Stepped:
    """A log with a run that the I/O threads write when the test says so."""

    def __init__(self, path: Path) -> None:
        self.io = FaultyIoThread(stepped=True)
        self.mirror = Counter()
        self.mirrored = MirroredIo(self.io, path, self.mirror)
        self.probe = LogProbe(Log(self.mirrored, path, "t"))
        self.done: list[int] = []
        self.append(1)  # creates the file, which is announced
        self.io.drain_now()
        self.mirrored.committed(self.mirror.position)
        self.done.clear()
        self.append(4)
        self.io.kick_now()

    def append(self, first: int) -> None:
        self.probe.append(run(messages(first, 3)), first, first + 2, 3, done=self.done.append)

    def commit(self) -> None:
        self.mirrored.committed(self.mirror.position)

    def has_event(self) -> bool:
        return bool(select.select([self.io.fileno()], [], [], 0)[0])


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[Stepped]:
    found = Stepped(tmp_path)
    assert not found.has_event()
    yield found
    found.mirrored.wait(False)
    found.io.drain_now()
    found.probe = found.mirrored = found.mirror = None  # type: ignore[assignment]
    found.io.close()


def test_a_run_that_is_not_committed_causes_no_event(stepped: Stepped) -> None:
    stepped.io.step_now()
    assert not stepped.has_event()
    stepped.commit()
    assert stepped.done == [0]


def test_a_committed_run_causes_an_event(stepped: Stepped) -> None:
    stepped.commit()
    assert stepped.done == []
    stepped.io.step_now()
    assert stepped.has_event()
    stepped.io.poll_now()
    assert stepped.done == [0] and not stepped.has_event()


def test_each_of_several_committed_runs_causes_an_event(stepped: Stepped) -> None:
    stepped.append(7)
    stepped.io.kick_now()
    stepped.commit()
    for count in (1, 2):
        stepped.io.step_now()
        assert stepped.has_event()
        stepped.io.poll_now()
        assert stepped.done == [0] * count


def test_a_run_that_need_not_be_committed_causes_an_event(stepped: Stepped) -> None:
    stepped.mirrored.wait(False)
    stepped.io.step_now()
    assert stepped.has_event()
    stepped.io.poll_now()
    assert stepped.done == [0]


def test_a_run_that_was_made_before_is_announced_when_nothing_waits(stepped: Stepped) -> None:
    stepped.io.step_now()
    stepped.mirrored.wait(False)
    assert stepped.has_event()
    stepped.io.poll_now()
    assert stepped.done == [0]


def test_a_failed_run_causes_an_event(stepped: Stepped) -> None:
    stepped.io.fault("pwrite", error=errno.EIO)
    stepped.io.step_now()
    assert stepped.has_event()
    stepped.io.poll_now()
    assert stepped.mirror.errors == [errno.EIO]


def test_nothing_completes_in_the_middle_of_a_change(stepped: Stepped) -> None:
    stepped.io.step_now()

    def write(*_: Any) -> int:
        position = Counter.write(stepped.mirror)
        stepped.mirrored.committed(position)
        assert stepped.done == []
        return position

    stepped.mirror.write = write  # type: ignore[method-assign]
    stepped.append(7)
    assert stepped.has_event()
    stepped.io.poll_now()
    assert stepped.done == [0]


def test_a_failed_change_is_reported_to_the_mirror_only(disk: Mirrored) -> None:
    disk.append(1)
    disk.commit()
    disk.io.fault("pwrite", error=errno.EIO)
    disk.append(4)
    disk.io.drain_now()
    disk.mirrored.committed(disk.mirror.position)
    assert disk.mirror.errors == [errno.EIO]
    assert disk.done == [0]
    disk.mirrored.wait(False)
    assert disk.done == [0, errno.EIO]


def test_a_stopped_log_changes_nothing(disk: Mirrored) -> None:
    disk.append(1)
    disk.commit()
    before, position = disk.contents(disk.here), disk.mirror.position
    disk.append(4)
    disk.mirrored.stop()
    disk.append(7)
    disk.probe.write_snapshot(b"snapshot")
    disk.probe.close()
    disk.io.drain_now()
    assert disk.done == [0, 0, errno.ESTALE]
    assert disk.mirror.errors == []
    assert disk.mirror.position == position + 1
    assert disk.contents(disk.here).keys() == before.keys()
    assert disk.contents(disk.here) == disk.contents(disk.there)


def test_a_missing_file_is_no_failure(disk: Mirrored) -> None:
    disk.append(1)
    disk.commit()
    ends: list[int] = []
    disk.probe.delete(ends.append)
    disk.commit()
    assert ends == [0] and disk.mirror.errors == []
    assert disk.contents(disk.there) == {}
    assert not (disk.there / "t.topic").exists()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("seed", range(12))
def test_both_have_the_same_files(tmp_path: Path, seed: int, durability: str) -> None:
    chance = random.Random(seed)
    disk = Mirrored(tmp_path, durability, max_bytes_per_file=3000, sync_every=7)
    runs: list[Any] = []
    seq = 1
    for _ in range(120):
        match chance.randrange(7):
            case 0 | 1 | 2:
                count = chance.randint(1, 12)
                runs.append(disk.append(seq, count, durable=chance.random() < 0.3))
                seq += count
                disk.probe.commit()
            case 3:
                disk.probe.write_snapshot(chance.randbytes(chance.randint(1, 500)))
            case 4:
                disk.probe.append_delta(chance.randbytes(chance.randint(1, 50)))
            case 5 if runs:
                disk.probe.release(runs.pop(chance.randrange(len(runs))))
            case 6:
                disk.commit()
                assert disk.contents(disk.here) == disk.contents(disk.there)
    disk.probe.close()
    disk.commit()
    assert set(disk.done) <= {0} and disk.failures == []
    assert disk.contents(disk.here) == disk.contents(disk.there)
    assert disk.copy.table.extents() == type(disk.copy.table).scan(disk.there).extents()
    disk.close()
