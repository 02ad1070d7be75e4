"""Which version a worker's next process runs."""

import sys

import pytest

from nsqcy.nsqd.master.master_state import Program, State
from nsqcy.nsqd.master.way_back import WayBack
from nsqcy.process import spawn

OLD = Program(["/old/python", "-P", "-m", "nsqcy.nsqd.main"], "/old/path")
OLDER = Program(["/older/python", "-P", "-m", "nsqcy.nsqd.main"], None)


def state(way_back: Program = OLD, failure: str = "") -> State:
    return State(-1, {}, failure, "0.0.9", "nsqd", {}, way_back, {}, [])


@pytest.fixture
def way_back() -> WayBack:
    found = WayBack()
    found.restore(None, state())
    return found


def test_the_previous_version_follows_two_failures(way_back: WayBack) -> None:
    assert way_back.choose(1) is None
    way_back.failed(1)
    assert way_back.choose(1) is None and not way_back.is_used(1)
    way_back.failed(1)
    assert way_back.choose(1) == OLD and way_back.is_used(1)
    assert way_back.choose(0) is None


def test_failures_of_both_versions_alternate(way_back: WayBack) -> None:
    chosen = []
    for _ in range(8):
        chosen.append(way_back.choose(0))
        way_back.failed(0)
    assert chosen == [None, None, OLD, OLD, None, None, OLD, OLD]


def test_a_worker_that_comes_up_begins_again(way_back: WayBack) -> None:
    way_back.failed(0)
    way_back.came_up(0)
    way_back.came_up(1)
    way_back.failed(0)
    assert way_back.choose(0) is None


def test_after_the_upgrade_there_is_none(way_back: WayBack) -> None:
    way_back.failed(0)
    way_back.failed(0)
    way_back.forget()
    assert way_back.choose(0) is None and way_back.dump() is None


def test_without_an_upgrade_there_is_none() -> None:
    way_back = WayBack()
    way_back.failed(0)
    way_back.failed(0)
    assert way_back.choose(0) is None


def test_the_version_that_works_stays_the_previous_one(way_back: WayBack) -> None:
    """The upgrade to OLD was not complete, and another upgrade follows."""
    later = WayBack()
    later.restore(OLDER, state())
    assert later.dump() == OLDER


def test_a_version_that_could_not_take_over_is_none() -> None:
    way_back = WayBack()
    way_back.restore(None, state(failure="broken"))
    assert way_back.dump() is None
    way_back.restore(OLDER, state(failure="broken"))
    assert way_back.dump() == OLDER


def test_files_that_were_replaced_are_none() -> None:
    way_back = WayBack()
    way_back.restore(None, state(Program.of(sys.executable, ["--workers=2"])))
    assert way_back.dump() is None


def test_a_program_of_the_previous_version() -> None:
    assert OLD.run("module", "1") == ["/old/python", "-P", "-m", "module", "1"]
    assert OLD.environ()["PYTHONPATH"] == "/old/path"
    assert "PYTHONPATH" not in OLDER.environ()
    same = Program([sys.executable], spawn.environment().get("PYTHONPATH"))
    assert same.is_same(Program.of(sys.executable, ())) and not OLD.is_same(OLDER)
