"""A node's file: written in a thread, even on a disk that is temporarily not writable."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from nsqcy.copies.group import Group
from nsqcy.copies.recall import Known
from nsqcy.nsqd.copies.node import Node, machine_id
from nsqcy.storage.state_file import StateFile
from support.copies_cluster import Lines
from support.gevent_hub import wait_until

GROUP = Group("g", 1, "m.0", "m.0.1", ("m.0",), 2, 2, "n", "os")


class Disk:
    """Controls the writes of state files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.hangs = False
        self.writes = 0
        self.turns = threading.Semaphore(0)
        """Semaphore; while the disk hangs, each release permits one write."""
        write = StateFile.write

        def attempt(file: StateFile, content: bytes) -> None:
            self.writes += 1
            if self.hangs:
                self.turns.acquire()
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(file, content)

        monkeypatch.setattr(StateFile, "write", attempt)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.turns.release(100)


def make(path: Path, lines: Lines | None = None) -> Node:
    return Node(path, path / "0", "m", 0, "boot", lines or Lines())


def test_a_node_goes_on_while_its_file_cannot_be_written(tmp_path: Path, disk: Disk) -> None:
    lines = Lines()
    node = make(tmp_path, lines)
    assert node.flush()
    disk.is_full = True
    node.remember({"g": Known((1, 7), GROUP)})
    assert not node.flush()
    node.marked(7)
    assert not node.flush() and not node.is_saved
    assert [line.partition(": ")[0] for line in lines.lines] == ["COPIES"]
    other = make(tmp_path)
    assert not other.known and not other.flush()
    disk.is_full = False
    node.retry()
    assert node.flush() and node.is_saved
    again = make(tmp_path)
    assert again.known == {"g": Known((1, 7), GROUP)} and again.mark == 7


def test_a_node_begins_without_its_file(tmp_path: Path, disk: Disk) -> None:
    """Until the file contains the name of the process, the process must not register."""
    disk.is_full = True
    node = make(tmp_path)
    assert not node.flush() and not node.is_named
    disk.is_full = False
    node.retry()
    assert node.flush() and node.is_named
    assert (tmp_path / "0").is_dir()
    assert node.process in make(tmp_path).names


def test_the_hub_does_not_wait_for_a_write(tmp_path: Path, disk: Disk) -> None:
    node = make(tmp_path)
    assert node.flush()
    disk.hangs = True
    node.remember({"g": Known((1, 7), GROUP)})
    wait_until(lambda: disk.writes == 2)  # the write has begun, but does not block this greenlet
    for mark in range(8, 100):
        node.marked(mark)
    flushed = gevent.spawn(node.flush)
    gevent.sleep(0)
    assert not flushed.ready() and not node.is_saved
    disk.turns.release(2)
    assert flushed.get() and node.is_saved
    assert disk.writes == 3, "changes that arrive during a write share the next one"
    assert make(tmp_path).mark == 99


def test_a_machine_starts_with_the_copy_of_its_id(tmp_path: Path, disk: Disk) -> None:
    machine = machine_id(tmp_path, Lines())
    (tmp_path / "machine.json").write_text("{")
    disk.is_full = True
    assert machine_id(tmp_path, Lines()) == machine
    with pytest.raises(OSError, match="No space left"):
        machine_id(tmp_path / "new", Lines())
