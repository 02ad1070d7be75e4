"""If the small files of copies cannot be read at startup, nsqd waits, and draws no conclusions."""

import errno
from pathlib import Path

import pytest

from nsqcy.errors import StartError
from nsqcy.nsqd.copies.copy_files import FACTS
from nsqcy.nsqd.copies.node import Node
from nsqcy.nsqd.copies.readable import LIMIT, await_readable
from nsqcy.storage.state_file import StateFile
from support.copies_cluster import Lines

PATHS = ["machine.json", "node.0.json", f"0/group/{FACTS}"]


class Disk:
    """Small files; one of them cannot be read for a while. Time passes only in `sleep`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.failing = ""
        self.reads_until_mended = 0
        self.now = 0.0
        self.lines = Lines()
        for path in PATHS:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text("{}")
        read_bytes = Path.read_bytes

        def read(path: Path) -> bytes:
            if self.failing and path == root / self.failing and self.reads_until_mended:
                self.reads_until_mended -= 1
                raise OSError(errno.EIO, "Input/output error")
            return read_bytes(path)

        monkeypatch.setattr(Path, "read_bytes", read)

    def fail(self, path: str, reads: int) -> None:
        self.failing = path
        self.reads_until_mended = reads

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, is_stopping: bool = False) -> None:
        await_readable(self.root, self.lines, lambda: is_stopping, lambda: self.now, self.sleep)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def test_a_start_does_not_wait_for_a_disk_that_works(disk: Disk, tmp_path: Path) -> None:
    disk.wait()
    await_readable(tmp_path / "missing", disk.lines, lambda: False)
    assert disk.now == 0.0 and disk.lines.lines == []


@pytest.mark.parametrize("path", PATHS)
def test_a_start_waits_for_each_file(disk: Disk, path: str) -> None:
    disk.fail(path, reads=20)
    disk.wait()
    assert disk.now > 1.0
    (line,) = disk.lines.lines
    assert line == f"{disk.root / path} cannot be read: input/output error; nsqd waits for the file"


def test_a_start_ends_if_a_file_stays_unreadable(disk: Disk) -> None:
    disk.fail("node.0.json", reads=100_000)
    with pytest.raises(StartError, match=r"node\.0\.json cannot be read: input/output error"):
        disk.wait()
    assert disk.now == pytest.approx(LIMIT, abs=1.0)


def test_a_stopped_start_does_not_wait(disk: Disk) -> None:
    disk.fail("machine.json", reads=100_000)
    with pytest.raises(StartError):
        disk.wait(is_stopping=True)
    assert disk.now == 0.0


def test_a_node_does_not_replace_a_file_that_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Node(tmp_path, tmp_path, "m", 0, "boot", Lines()).flush()
    path = tmp_path / "node.0.json"
    content = path.read_bytes()

    def fail(self: StateFile, path: str) -> tuple[bytes, bool]:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(StateFile, "_read", fail)
        with pytest.raises(OSError, match="cannot be read"):
            Node(tmp_path, tmp_path, "m", 0, "boot", Lines())
    assert path.read_bytes() == content and not path.with_name("node.0.json.damaged").exists()
