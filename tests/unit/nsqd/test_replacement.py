"""The order of events while a worker is replaced: every order has one defined end."""

import itertools

import gevent
import pytest

from nsqcy.nsqd.master import replacement as module
from nsqcy.nsqd.master.replacement import KEPT, LOST, TAKEN_OVER, Replacement
from nsqcy.process import arbiter
from support.gevent_hub import wait_until

KILLED = -9


class Worker:
    """The two processes of a worker, and what the master has done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.replacement = Replacement(self)
        self.greenlet = gevent.spawn(self.replacement.run)

    def begin_hand_over(self) -> None:
        self.done.append("begin")

    def promote(self) -> None:
        self.done.append("promote")

    def end_successor(self) -> None:
        self.done.append("kill")

    def begun(self) -> "Worker":
        self.replacement.successor_waits()
        wait_until(lambda: "begin" in self.done)
        return self

    def outcome(self) -> str:
        found: str = self.greenlet.get(timeout=30)
        return found


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BOOT_LIMIT", "HAND_OVER_LIMIT", "KEEP_LIMIT"):
        monkeypatch.setattr(module, name, 0.01)


def test_a_hand_over() -> None:
    worker = Worker().begun()
    worker.replacement.taken_over()
    assert worker.done == ["begin", "promote"]  # at once
    assert worker.outcome() == TAKEN_OVER


@pytest.mark.parametrize("order", list(itertools.permutations(["taken over", "handed over"])))
def test_the_exit_of_the_worker_and_the_report_of_the_successor(order: tuple[str, ...]) -> None:
    worker = Worker().begun()
    for each in order:
        if each == "taken over":
            worker.replacement.taken_over()
        else:
            worker.replacement.left(arbiter.HANDED_OVER)
    assert worker.outcome() == TAKEN_OVER
    assert worker.done == ["begin", "promote"]


@pytest.mark.parametrize("has_died", [False, True])
def test_a_worker_that_has_handed_over_and_stays_as_a_pump(has_died: bool) -> None:
    worker = Worker().begun()
    if has_died:  # the successor: it could not report that it has taken over
        worker.replacement.successor_left(KILLED)
    worker.replacement.handed_over()
    assert worker.outcome() == (LOST if has_died else TAKEN_OVER)
    assert worker.replacement.exit_code == arbiter.HANDED_OVER
    worker.replacement.left(arbiter.HANDED_OVER)
    assert worker.done == (["begin"] if has_died else ["begin", "promote"])


def test_a_successor_that_cannot_boot() -> None:
    worker = Worker()
    worker.replacement.successor_left(arbiter.NOT_BOOTED)
    assert worker.outcome() == KEPT
    assert worker.replacement.reason == "the successor exited with status 3: could not boot"
    assert worker.done == []


def test_a_worker_that_dies_before_the_hand_over() -> None:
    worker = Worker()
    worker.replacement.left(KILLED)
    assert worker.done == ["kill"]
    worker.replacement.successor_left(KILLED)
    assert worker.outcome() == LOST
    assert worker.replacement.exit_code == KILLED


def test_a_worker_that_keeps_its_clients() -> None:
    worker = Worker().begun()
    worker.replacement.kept("busy")
    assert worker.done == ["begin", "kill"]
    worker.replacement.successor_left(KILLED)
    assert (worker.outcome(), worker.replacement.reason) == (KEPT, "busy")


@pytest.mark.parametrize("order", list(itertools.permutations(["worker", "successor"])))
def test_both_die_during_the_hand_over(order: tuple[str, ...]) -> None:
    worker = Worker().begun()
    for each in order:
        if each == "worker":
            worker.replacement.left(KILLED)
        else:
            worker.replacement.successor_left(KILLED)
    assert worker.outcome() == LOST
    assert worker.done == ["begin"]


def test_the_successor_dies_before_the_worker_notices() -> None:
    worker = Worker().begun()
    worker.replacement.successor_left(KILLED)
    assert not worker.greenlet.ready()
    worker.replacement.kept("the successor has exited")
    assert worker.outcome() == KEPT


def test_the_successor_dies_right_after_it_has_become_the_worker() -> None:
    worker = Worker().begun()
    worker.replacement.successor_left(KILLED)
    worker.replacement.left(arbiter.HANDED_OVER)
    assert worker.outcome() == LOST


def test_the_worker_is_killed_after_it_has_handed_over() -> None:
    worker = Worker().begun()
    worker.replacement.left(KILLED)
    worker.replacement.taken_over()
    assert worker.outcome() == TAKEN_OVER


@pytest.mark.usefixtures("limits")
def test_a_successor_that_never_waits() -> None:
    worker = Worker()
    wait_until(lambda: worker.done == ["kill"])
    worker.replacement.successor_left(KILLED)
    assert worker.outcome() == KEPT


@pytest.mark.usefixtures("limits")
def test_processes_that_report_nothing() -> None:
    worker = Worker().begun()
    assert worker.outcome() == KEPT
    assert worker.done == ["begin", "kill"]


def test_only_a_hand_over_that_has_not_begun_is_cancelled() -> None:
    worker = Worker()
    worker.replacement.cancel("nsqd stops")
    assert worker.done == ["kill"]
    worker.replacement.successor_left(KILLED)
    assert (worker.outcome(), worker.replacement.reason) == (KEPT, "nsqd stops")
    worker = Worker().begun()
    worker.replacement.cancel("nsqd stops")
    assert worker.done == ["begin"]
    worker.replacement.taken_over()
    assert worker.outcome() == TAKEN_OVER
