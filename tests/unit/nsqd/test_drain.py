"""Draining, with a simulated environment."""

import time
from collections.abc import Iterator

import gevent
import pytest

from nsqcy.nsqd.master import drain as module
from nsqcy.nsqd.master.drain import Drain
from nsqcy.nsqd.process_messages.drain_remainder import Remains, Rest, merged, summed
from support.gevent_hub import Lines, wait_until

NOTHING = Remains()
ONE = summed([Rest("t", "c", 1, 0, 0)])


class Around:
    """Returns the given amounts of remaining work one by one; repeats the last one."""

    def __init__(self, *looks: Remains | None) -> None:
        self.looks = list(looks)
        self.groups: list[int | None] = []
        self.done: list[str] = []
        self.code: int | None = None

    def withdraw(self) -> None:
        self.done.append("withdraw")
        gevent.sleep(0.01)
        self.done.append("withdrawn")

    def restore(self) -> None:
        self.done.append("restore")

    def refuse_publishes(self, refuse: bool) -> None:
        self.done.append("refuse" if refuse else "accept")

    def remains(self) -> Remains | None:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def hand_over(self) -> int | None:
        return self.groups.pop(0) if len(self.groups) > 1 else self.groups[0]

    def keep(self) -> None:
        self.done.append("keep")

    def end(self, code: int) -> None:
        assert self.code is None
        self.code = code


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 0.001)


@pytest.fixture
def lines() -> Iterator[Lines]:
    yield Lines()


@pytest.mark.parametrize(
    ("looks", "unseen"),
    [
        ([ONE, ONE, NOTHING, NOTHING], 0),
        ([NOTHING, ONE, NOTHING, NOTHING, ONE], 1),  # in transit between two workers for a moment
        ([None, NOTHING, None, NOTHING, NOTHING, ONE], 1),  # a worker that is down reports nothing
    ],
)
def test_it_ends_when_nothing_is_left_twice(
    lines: Lines, looks: list[Remains | None], unseen: int
) -> None:
    around = Around(*looks)
    Drain(around, lines).begin(None)
    wait_until(lambda: around.code == 0)
    assert len(around.looks) == max(unseen, 1)


def test_who_asks_meanwhile_waits_for_the_same(lines: Lines) -> None:
    around = Around(ONE)
    drain = Drain(around, lines)
    first = gevent.spawn(drain.begin, None)
    gevent.sleep(0)
    drain.begin(None)
    assert around.done == ["withdraw", "withdrawn", "refuse"]
    first.get()
    drain.cancel()
    drain.cancel()
    assert around.done[3:] == ["accept", "restore"]
    assert not drain.under_way and drain.left is None


def test_a_limit_is_of_one_drain(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    around = Around(ONE)
    drain = Drain(around, lines)
    drain.begin(0.02)
    drain.cancel()
    drain.begin(None)
    seconds = time.monotonic
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds() + 1000)
    gevent.sleep(0.01)
    assert around.code is None and "seconds_left" not in drain.state()
    drain.begin(-1)
    wait_until(lambda: around.code == 3)
    assert "left on disk: 1 message in 1 place: t:c (1 waiting" in lines.all[-1]


def test_clients_learn_how_many_messages_are_left(lines: Lines) -> None:
    drain = Drain(Around(ONE), lines)
    assert drain.reason() == "draining"
    drain.left = ONE
    assert drain.reason() == "draining: 1 message is left"
    drain.left = NOTHING
    assert drain.reason() == "draining: 0 messages are left"


def test_the_largest_are_named() -> None:
    parts = [
        summed(Rest(f"t{worker}{number}", "c", number, 1, 2) for number in range(80))
        for worker in range(3)
    ]
    whole = merged([tuple(part) for part in parts])
    assert whole.number == 240
    assert (whole.waiting, whole.in_flight, whole.deferred) == (3 * 3160, 240, 480)
    assert len(whole.places) == 100
    assert [each.waiting for each in whole.places[:4]] == [79, 79, 79, 78]


def test_it_ends_when_all_groups_are_handed_over(lines: Lines) -> None:
    around = Around(ONE)
    around.groups = [2, None, 1, 0]
    Drain(around, lines).begin(None, hand_over=True)
    wait_until(lambda: around.code == 0)
    assert lines.all[-1] == "DRAIN: all copied topics have been handed over"


def test_groups_that_are_left_are_kept_when_draining_ends(lines: Lines) -> None:
    around = Around(NOTHING)
    around.groups = [1]
    drain = Drain(around, lines)
    drain.begin(None)
    drain.begin(None, hand_over=True)  # no messages remain for consumers, but groups remain
    gevent.sleep(0.02)
    assert around.code is None
    drain.cancel()
    assert around.done[3:] == ["keep", "accept", "restore"]
