"""A node's file, on a disk that cannot be written for a while."""

import errno
from pathlib import Path

import pytest

from nsqcy.copies.group import Group
from nsqcy.copies.recall import Known
from nsqcy.nsqd.copies.node import Node
from nsqcy.storage.state_file import StateFile
from support.copies_cluster import Lines

GROUP = Group("g", 1, "m.0", "m.0.1", ("m.0",), 2, 2, "n", "os")


def test_a_node_goes_on_while_its_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    node = Node(tmp_path, "m", 0, "boot", lines)

    def fail(self: StateFile, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(StateFile, "write", fail)
        node.remember({"g": Known((1, 7), GROUP)})
        node.marked(7)
    assert not node.is_saved
    assert [line.partition(": ")[0] for line in lines.lines] == ["COPIES"]
    assert not Node(tmp_path, "m", 0, "boot", lines).known
    node.retry()
    again = Node(tmp_path, "m", 0, "boot", lines)
    assert again.known == {"g": Known((1, 7), GROUP)} and again.mark == 7
