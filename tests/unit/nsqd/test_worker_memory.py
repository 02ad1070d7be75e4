"""The descriptors of the workers' memory: random histories, compared with a model.

NSQCY_RUNS=20 tries many more histories.
"""

import contextlib
import errno
import os
import random
import resource
from collections.abc import Iterator

import pytest

from nsqcy.nsqd import reading_marks
from nsqcy.nsqd.boot_memory import WorkerMemory
from nsqcy.nsqd.master.worker_memory import Memfds, MemoryOfWorkers
from nsqcy.nsqd.reading_marks import Mark
from support.gevent_hub import Lines
from support.runs import runs

WORKERS = 2
TOPICS = ["a", "b"]


class FakeCalls:
    """Descriptors that are never reused, so that a second close of one is noticed."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}
        self.used: set[int] = set()
        self.marks: dict[int, Mark] = {}
        self.failing = 0
        self._next = 100

    def create(self) -> int:
        return self._create("memory")

    def create_marks(self) -> int:
        return self._create("marks")

    def _create(self, kind: str) -> int:
        if self.failing == 1:
            raise OSError(errno.EMFILE, "no descriptors")
        self.failing = max(0, self.failing - 1)
        self._next += 1
        self.kinds[self._next] = kind
        return self._next

    def close(self, fd: int) -> None:
        del self.kinds[fd]
        self.used.discard(fd)
        self.marks.pop(fd, None)

    def has_pages(self, fd: int) -> bool:
        assert self.kinds[fd] == "memory"
        return fd in self.used

    def mark(self, fd: int) -> Mark | None:
        assert self.kinds[fd] == "marks"
        return self.marks.get(fd)

    def clear_mark(self, fd: int) -> None:
        assert self.kinds[fd] == "marks"
        self.marks.pop(fd, None)


class Model:
    """What one worker, and its predecessors, have left."""

    def __init__(self) -> None:
        self.given: WorkerMemory | None = None
        self.is_up = False
        self.left = -1  # the state that waits to be restored
        self.records = -1
        self.restoring = False
        self.next: WorkerMemory | None = None  # what the successor got
        self.deaths: list[Mark] = []

    def owned(self) -> set[int]:
        """Return the descriptors that must be open."""
        found = {self.left, self.records}
        if self.is_up and self.given is not None:
            found |= {self.given.state_fd, self.given.records_fd}
        if self.next is not None:
            found.add(self.next.state_fd)
        return found - {-1}

    def leave_out(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for topic in TOPICS:
            blocks = list(dict.fromkeys(each.block for each in self.deaths if each.topic == topic))
            counted = sum(each.topic == topic for each in self.deaths)
            if 0 in blocks or counted > 1:
                found.append((topic, 0))
            else:
                found += [(topic, block) for block in blocks]
        return found


class History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.calls = FakeCalls()
        self.memory = MemoryOfWorkers(WORKERS, self.calls, Lines())
        self.models = [Model() for _ in range(WORKERS)]

    def step(self) -> None:
        worker = self.random.randrange(WORKERS)
        model = self.models[worker]
        if not model.is_up:
            self.start(worker, model)
        elif model.next is not None:
            self.random.choice([self.succeed, self.not_succeed, self.use])(worker, model)
        else:
            actions = [self.use, self.die, self.exit, self.restore, self.not_started]
            actions.append(self.begin_successor)
            weights = [4, 3, 1, 3, 1, 3]
            self.random.choices(actions, weights)[0](worker, model)
        self.check()

    def start(self, worker: int, model: Model) -> None:
        before = set(self.calls.kinds)
        self.calls.failing = self.random.choice([0, 0, 0, 1, 2, 3])
        try:
            given = self.memory.begin(worker)
        except OSError:
            assert model.left >= 0, "a worker without a predecessor must start"
            assert set(self.calls.kinds) == before
            return
        finally:
            self.calls.failing = 0
        model.is_up, model.given = True, given
        model.restoring = model.left >= 0
        if given is None:
            assert model.left < 0 and set(self.calls.kinds) == before
            return
        assert len(set(given.fds())) == len(given.fds()) == (4 if model.restoring else 3)
        assert given.state_fd not in before
        assert given.left_fd == model.left
        assert given.records_fd == model.records or model.records < 0
        assert self.calls.kinds[given.marks_fd] == "marks"
        assert given.marks_fd not in self.calls.marks
        assert sorted(given.leave_out) == sorted(model.leave_out())

    def begin_successor(self, worker: int, model: Model) -> None:
        self.calls.failing = self.random.choice([0, 0, 1])
        may_fail = self.calls.failing == 1
        try:
            given = self.memory.begin_successor(worker)
        except OSError:
            assert may_fail
            return
        finally:
            self.calls.failing = 0
        if model.given is None or model.left >= 0:
            assert given is None
            return
        assert given is not None
        assert (given.records_fd, given.left_fd) == (model.given.records_fd, model.given.state_fd)
        assert (given.marks_fd, given.leave_out) == (model.given.marks_fd, [])
        model.next = given

    def succeed(self, worker: int, model: Model) -> None:
        self.memory.succeeded(worker)
        assert model.next is not None
        model.given, model.next = model.next, None
        model.left, model.records = model.given.left_fd, model.given.records_fd
        model.restoring = True

    def not_succeed(self, worker: int, model: Model) -> None:
        self.memory.not_succeeded(worker)
        model.next = None

    def use(self, worker: int, model: Model) -> None:
        if model.given is not None:
            self.calls.used.add(model.given.state_fd)
            assert self.memory.is_used(worker)

    def restore(self, worker: int, model: Model) -> None:
        self.memory.restored(worker)
        if model.given is not None:
            model.left, model.records, model.restoring, model.deaths = -1, -1, False, []
        assert not self.memory.is_left(worker)

    def not_started(self, worker: int, model: Model) -> None:
        self.memory.not_started(worker)
        model.is_up = False
        if model.left < 0:
            model.deaths = []

    def exit(self, worker: int, model: Model) -> None:
        self.memory.finished(worker)
        self.models[worker] = Model()

    def die(self, worker: int, model: Model) -> None:
        given, model.is_up = model.given, False
        if given is None:
            assert self.memory.exited(worker, crashed=True) is None
            return
        crashed = self.random.random() < 0.7
        mark = None
        if self.random.random() < 0.7:
            mark = Mark(self.random.choice(TOPICS), self.random.randrange(3))
            self.calls.marks[given.marks_fd] = mark
        before = model.leave_out()
        if mark is not None and model.restoring and crashed:
            model.deaths.append(mark)
        if not model.restoring:
            model.left, model.records = given.state_fd, given.records_fd
        now = set(model.leave_out()) - set(before)
        left_out = self.memory.exited(worker, crashed=crashed)
        assert left_out == (Mark(*now.pop()) if now else None)
        assert self.memory.is_left(worker) == (model.left in self.calls.used)

    def check(self) -> None:
        memories = {fd for fd, kind in self.calls.kinds.items() if kind == "memory"}
        assert memories == set().union(*(model.owned() for model in self.models))
        assert len(self.calls.kinds) - len(memories) == sum(
            bool(model.owned()) for model in self.models
        )


@pytest.mark.parametrize("seed", range(runs(50)))
def test_a_random_history(seed: int) -> None:
    history = History(seed)
    for _ in range(200):
        history.step()
    for worker in range(WORKERS):
        history.memory.finished(worker)
    assert not history.calls.kinds


def test_what_is_left_is_kept_in_files_once() -> None:
    calls = FakeCalls()
    memory = MemoryOfWorkers(1, calls, Lines())
    assert memory.contents(0) == {}
    first = memory.begin(0)
    assert first is not None and memory.contents(0) == {}
    memory.exited(0, crashed=True)
    assert memory.contents(0) == {"records": first.records_fd, "state": first.state_fd}
    memory.kept(0)
    assert memory.contents(0) == {}
    second = memory.begin(0)
    assert second is not None
    memory.restored(0)
    memory.exited(0, crashed=True)
    assert memory.contents(0) == {"records": first.records_fd, "state": second.state_fd}


def test_a_report_from_a_worker_that_is_down_has_no_effect() -> None:
    calls = FakeCalls()
    memory = MemoryOfWorkers(1, calls, Lines())
    first = memory.begin(0)
    memory.exited(0, crashed=True)
    memory.restored(0)
    second = memory.begin(0)
    assert first is not None and second is not None
    assert second.left_fd == first.state_fd


def test_a_lack_of_memfds_is_reported_once() -> None:
    calls, lines = FakeCalls(), Lines()
    memory = MemoryOfWorkers(3, calls, lines)
    calls.failing = 1
    assert [memory.begin(worker) for worker in range(3)] == [None] * 3
    assert lines.all == ["messages in memory are lost if their worker dies: no descriptors"]
    for worker in range(3):
        assert memory.contents(worker) == {}
        assert not memory.is_used(worker)


# -- the kernel's calls


@contextlib.contextmanager
def opened(fd: int) -> Iterator[int]:
    yield fd
    os.close(fd)


def test_an_unused_memfd_has_no_pages() -> None:
    calls = Memfds(1)
    with opened(calls.create()) as fd:
        assert not calls.has_pages(fd)
        assert not os.get_inheritable(fd)
        os.pwrite(fd, b"x", 1 << 30)
        assert calls.has_pages(fd)


def test_the_marks_of_the_kernel() -> None:
    calls = Memfds(1)
    with opened(calls.create_marks()) as fd:
        assert calls.has_pages(fd)  # a worker's mark needs no new page
        assert not os.get_inheritable(fd)
        reading_marks.ReadingMarks(fd).begin(b"t", 7)
        assert calls.mark(fd) == Mark("t", 7)
        calls.clear_mark(fd)
        assert calls.mark(fd) is None


@pytest.mark.parametrize(
    ("kind", "limit", "error"),
    [
        (resource.RLIMIT_AS, 1 << 40, "the address space is limited"),
        (resource.RLIMIT_NOFILE, 64, "the limit of 64 open files is too low"),
    ],
)
def test_limits(monkeypatch: pytest.MonkeyPatch, kind: int, limit: int, error: str) -> None:
    def getrlimit(which: int) -> tuple[int, int]:
        return (limit if which == kind else resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    with pytest.raises(OSError, match=error):
        Memfds(8).create()


def test_many_files_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = (1024, 1024)
    infinity = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: usual if kind == resource.RLIMIT_NOFILE else infinity
    )
    with opened(Memfds(8).create()) as fd:
        assert fd >= 0


def test_boot_data_and_back() -> None:
    memory = WorkerMemory(3, 4, -1, 5, [("a", 7), ("b", 0)])
    sent = memory._asdict() | {"leave_out": [["a", 7], ["b", 0]]}  # as JSON
    assert WorkerMemory.from_json(sent) == memory
    assert WorkerMemory.from_json(None) is None
    assert memory.fds() == [3, 4, 5]
