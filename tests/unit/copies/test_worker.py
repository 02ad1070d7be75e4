"""A worker's groups while its disk cannot be read."""

from typing import Any

import pytest

from nsqcy.copies.group import Group
from nsqcy.copies.ports import Limits, Unreadable
from nsqcy.copies.roles_and_takeover import Worker

GROUP = Group("g", 1, "a", "a.1", ("a", "b", "c"), 3, 2, "n", "fsync")


class Host:
    """Host with one copy, on a disk that can be made unreadable. Does nothing else."""

    def __init__(self) -> None:
        self.is_readable = True
        self.deleted: list[str] = []
        self.proposed: list[Group] = []

    def _read(self) -> None:
        if not self.is_readable:
            raise Unreadable

    def copy(self, group_id: str) -> None:
        self._read()

    def delete_copy(self, group_id: str) -> None:
        self._read()
        self.deleted.append(group_id)

    def propose(self, base: Group | None, value: Group, absent: str = "") -> None:
        self.proposed.append(value)

    def nonce(self) -> str:
        return "nonce"

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def worker(host: Host) -> Worker:
    worker = Worker("b", "b.1", host, Limits())
    worker.entered(1, 1, 0.0)
    worker.sessions = frozenset({"a.1", "b.1", "c.1"})
    worker.updated(GROUP, 1, 0.0)
    return worker


def test_a_copy_is_deleted_once_it_can_be_read(host: Host, worker: Worker) -> None:
    host.is_readable = False
    worker.updated(GROUP.finished("n2"), 2, 1.0)
    worker.tick(2.0)
    assert host.deleted == []
    host.is_readable = True
    worker.tick(3.0)
    assert host.deleted == ["g"]


def test_no_conclusion_is_drawn_from_a_copy_that_cannot_be_read(host: Host, worker: Worker) -> None:
    host.is_readable = False
    worker.sessions = frozenset({"b.1", "c.1"})  # the owner has exited
    worker.tick(1.0)
    worker.tick(100.0)
    assert host.proposed == []
