"""Files with the memory of a dead worker."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from nsqcy.nsqd.master import lost_memory
from nsqcy.nsqd.master.lost_memory import MARGIN, LostMemory
from nsqcy.storage.core import create_memory

NOW = 1_700_000_000.9
ENOUGH = 1 << 40
PAGE = 4096


@pytest.fixture
def sources() -> Iterator[dict[str, int]]:
    """Two memfds like a worker's: far larger than the machine's memory, with few pages."""
    found = {name: create_memory() for name in ("records", "state")}
    yield found
    for fd in found.values():
        os.close(fd)


def lost(path: Path, free: int = ENOUGH, margin: int = 0) -> LostMemory:
    return LostMemory(str(path), margin, clock=lambda: NOW, free=lambda _: free)


def fill(fd: int, offset: int, size: int) -> bytes:
    data = os.urandom(size)
    os.pwrite(fd, data, offset)
    return data


def content(path: Path, offset: int, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def test_data_is_copied_and_holes_are_not(tmp_path: Path, sources: dict[str, int]) -> None:
    buffer = lost_memory._BUFFER
    parts = {
        name: {offset: fill(fd, offset, size) for offset, size in where}
        for (name, fd), where in zip(
            sources.items(),
            [[(0, PAGE), (1 << 21, 3 * buffer + 100)], [(5 << 30, 2 * PAGE)]],
            strict=True,
        )
    }
    path = Path(lost(tmp_path).write(3, sources))
    assert path == tmp_path / "memory.lost.3.1700000000"
    assert sorted(each.name for each in path.iterdir()) == ["records", "state"]
    for name, written in parts.items():
        file = path / name
        for offset, data in written.items():
            assert content(file, offset, len(data)) == data
        assert content(file, PAGE, PAGE) == bytes(PAGE)
        used = sum(-(-len(data) // PAGE) * PAGE for data in written.values())
        assert file.stat().st_blocks * 512 <= used + 64 * PAGE


def test_only_the_owner_may_read_the_files(tmp_path: Path, sources: dict[str, int]) -> None:
    before = os.umask(0)
    try:
        path = Path(lost(tmp_path).write(0, sources))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, *path.iterdir())]
    assert modes == [0o700, 0o600, 0o600]


@pytest.mark.parametrize(("margin", "kept"), [(0, MARGIN), (2 * MARGIN, 2 * MARGIN)])
def test_a_margin_stays_free(
    tmp_path: Path, sources: dict[str, int], margin: int, kept: int
) -> None:
    for fd in sources.values():
        fill(fd, 0, 10 * PAGE)
    needed = 20 * PAGE + kept
    with pytest.raises(OSError, match=r"81920 bytes in memory, but only .* are free on disk"):
        lost(tmp_path, needed - 1, margin).write(0, sources)
    assert list(tmp_path.iterdir()) == []
    lost(tmp_path, needed, margin).write(0, sources)


def test_a_failed_copy_leaves_nothing(
    tmp_path: Path, sources: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fd in sources.values():
        fill(fd, 0, 3 * PAGE)
    calls = []
    pwrite = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        calls.append(len(data))
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(fd, data[: len(data) // 2 + 1], offset)  # writes may be short

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no space"):
        lost(tmp_path).write(0, sources)
    assert len(calls) == 3 and list(tmp_path.iterdir()) == []


def test_short_writes_are_continued(
    tmp_path: Path, sources: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fill(sources["state"], 0, 3 * PAGE)
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: pwrite(fd, data[: len(data) // 2 + 1], at)
    )
    path = Path(lost(tmp_path).write(0, sources))
    assert (path / "state").read_bytes() == data


def test_no_file_is_overwritten(tmp_path: Path, sources: dict[str, int]) -> None:
    data = fill(sources["state"], 0, PAGE)
    path = Path(lost(tmp_path).write(0, sources))
    with pytest.raises(FileExistsError):
        lost(tmp_path).write(0, sources)
    assert (path / "state").read_bytes() == data


def test_the_hub_runs_meanwhile(tmp_path: Path, sources: dict[str, int]) -> None:
    ticks: list[int] = []

    def free(_: str) -> int:
        """Runs in a thread, until the hub has run."""
        with open(written[0], "rb") as file:
            file.read(1)
        return ENOUGH

    written = os.pipe()
    gevent.spawn(lambda: (ticks.append(1), os.close(written[1])))
    keeper = LostMemory(str(tmp_path), clock=lambda: NOW, free=free)
    path = keeper.keep(1, sources)
    assert ticks and Path(path).is_dir()


def test_errors_reach_the_caller(tmp_path: Path, sources: dict[str, int]) -> None:
    with pytest.raises(FileNotFoundError):
        lost(tmp_path / "missing").keep(0, sources)
