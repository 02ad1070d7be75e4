"""RDY of a consumer of several topics, against nsqds that are as slow as the network may be.

The model is obvious: an nsqd delivers a message if it has one, and if fewer are in flight than its
last RDY. RDY and messages take time to arrive. NSQCY_RUNS=20 tries many more histories.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqcy.client.flow import FlowSettings, State
from nsqcy.client.flow_across_topics import REVIEW, TRANSIT, SharedFlow
from support.runs import runs, steps

PROFILE = settings(max_examples=runs(60), stateful_step_count=steps(25), deadline=None)


class Line:
    """A connection to one topic, and its nsqd. The client sees messages only on arrival."""

    def __init__(self, world: "World", max_ready: int = 2500) -> None:
        self.world = world
        self.max_ready = max_ready
        self.ready = 0
        self.in_flight = 0
        self.delivered = 0
        self.last_message = world.now
        self.backlog = 0.0  # messages in the channel
        self.works = True  # messages are answered
        self.seconds = 0.01  # duration of a handler's call
        self.lost = False
        self.most = 0  # maximum number in flight since `most` was set to 0
        self._allowed = 0  # RDY that has arrived in nsqd
        self._sent = 0  # number in flight, as nsqd sees it
        self._kept = 0  # messages that the program has not answered

    def send_ready(self, count: int) -> None:
        assert 0 <= count <= self.max_ready
        assert count != self.ready
        raised = count > self.ready
        self.ready = count
        total = sum(each.ready for each in self.world.lines)
        assert not raised or total <= self.world.flow.max_in_flight
        self.world.commands += 1
        self.world.later(self.world.delay, lambda: self._allow(count))

    def _allow(self, count: int) -> None:
        self._allowed = count
        self.push()

    def push(self) -> None:
        """Deliver as an nsqd does."""
        while self.backlog and self._sent < self._allowed and not self.lost:
            self.backlog -= 1
            self._sent += 1
            self.world.later(self.world.delay, self._arrive)

    def _arrive(self) -> None:
        if self.lost:
            return
        self.in_flight += 1
        self.delivered += 1
        self.last_message = self.world.now
        self.most = max(self.most, self.in_flight)
        self._kept += 1
        if self.works:
            self.world.later(self.seconds, self.answer)

    def answer(self, event: str = "success") -> None:
        if self.lost or not self._kept:
            return
        self._kept -= 1
        if event != "success" or not self.world.flow.calm:
            getattr(self.world.flow, event)(self.world.now)
        self.in_flight -= 1
        self.world.later(self.world.delay, self._answered)

    def answer_all(self) -> None:
        self.works = True
        for _ in range(self._kept):
            self.answer()

    def _answered(self) -> None:
        self._sent -= 1
        self.push()


class World:
    """A flow, its lines, and a clock."""

    def __init__(self, *, seed: int = 0, delay: float = 0.001, **options: Any) -> None:
        self.now = 100.0
        self.delay = delay  # seconds in each direction
        self.commands = 0
        self.lines: list[Line] = []
        self.flow = SharedFlow(FlowSettings(**options), Random(seed))
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def connect(self, count: int = 1, **options: Any) -> list[Line]:
        made = [Line(self, **options) for _ in range(count)]
        for each in made:
            self.lines.append(each)
            self.flow.add(each, self.now)
        return made

    def lose(self, line: Line) -> None:
        line.lost = True
        self.lines.remove(line)
        self.flow.remove(line, self.now)
        line.in_flight = 0

    def fill(self, line: Line, count: float = math.inf) -> None:
        line.backlog += count
        line.push()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = self.flow.due
            at = min(due, self._events[0][0] if self._events else math.inf)
            if at > end:
                self.now = end
                return
            self.now = max(self.now, at)
            if due <= self.now:
                self.flow.tick(self.now)
                assert self.flow.due > self.now
            else:
                heapq.heappop(self._events)[2]()
            self.check()

    def check(self) -> None:
        assert self.in_flight() <= self.flow.max_in_flight

    def in_flight(self) -> int:
        return sum(each.in_flight for each in self.lines)


def test_an_idle_topic_does_not_hold_what_a_busy_one_needs() -> None:
    world = World(max_in_flight=20)
    busy, *idle = world.connect(5)
    world.fill(busy)
    world.run(2 * REVIEW)
    assert [busy.ready, *(each.ready for each in idle)] == [16, 1, 1, 1, 1]
    world.run(0.5)
    commands = world.commands
    world.run(60)
    assert world.commands == commands  # nothing changes


def test_busy_topics_have_equal_shares() -> None:
    world = World(max_in_flight=20)
    lines = world.connect(5)
    for each in lines[:3]:
        world.fill(each)
    lines[0].seconds = 30  # the handler's duration has no effect
    world.run(3 * REVIEW)
    assert [each.ready for each in lines] == [6, 6, 6, 1, 1]


def test_a_topic_with_few_messages_has_what_it_can_use() -> None:
    world = World(max_in_flight=100)
    busy, few = world.connect(2)
    world.fill(busy)
    for _ in range(100):
        world.fill(few, 1)
        world.run(0.1)
    assert few.ready == 16
    assert busy.ready == 84


def test_without_messages_all_have_equal_shares() -> None:
    world = World(max_in_flight=20)
    lines = world.connect(5)
    world.fill(lines[0], 1000)
    world.run(60)
    assert [each.ready for each in lines] == [4] * 5


def test_many_idle_topics_share_half() -> None:
    world = World(max_in_flight=10)
    busy, *idle = world.connect(100)
    world.fill(busy)
    world.run(60)
    assert busy.ready >= 4
    before = busy.delivered
    world.run(10)
    assert busy.delivered - before > 10 / 0.013 * 3.9
    for each in idle:
        world.fill(each, 1)
    world.run(20)
    assert all(each.delivered == 1 for each in idle)


@pytest.mark.parametrize("count", [2, 10])
def test_one_message_at_a_time(count: int) -> None:
    """All topics get a turn; the turns of topics without messages are short."""
    world = World(max_in_flight=1)
    busy, *others = world.connect(count)
    world.fill(busy)
    for each in others:
        world.fill(each, 1)
    world.run(10 + count)
    assert [each.delivered for each in others] == [1] * (count - 1)
    before = busy.delivered
    world.run(60)
    share = 5 / (5 + 0.5 * count)
    assert busy.delivered - before > 60 / 0.013 * share * 0.9


def test_busy_topics_take_turns() -> None:
    world = World(max_in_flight=2)
    lines = world.connect(6)
    for each in lines:
        world.fill(each)
    world.run(90)
    counts = sorted(each.delivered for each in lines)
    assert counts[0] > 0.7 * counts[-1]


def test_a_message_that_takes_long_is_waited_for() -> None:
    world = World(max_in_flight=1)
    first, second = world.connect(2)
    first.works = False
    world.fill(first, 1)
    world.fill(second, 1)
    while not first.in_flight:
        world.run(0.1)
    world.run(300)
    assert second.delivered <= 1
    first.answer_all()
    world.run(1)
    assert (first.in_flight, second.delivered) == (0, 1)


def test_a_new_topic_waits_only_for_what_is_in_transit() -> None:
    world = World(max_in_flight=10)
    (first,) = world.connect()
    world.fill(first)
    world.run(1)
    (second,) = world.connect()
    world.fill(second, 1)
    world.run(2 * TRANSIT)
    assert second.delivered == 1


def test_a_lost_connection_frees_its_share() -> None:
    world = World(max_in_flight=10)
    first, second = world.connect(2)
    world.run(1)
    world.lose(first)
    world.run(2 * TRANSIT)
    assert second.ready == 10


def test_a_batch_ends_when_no_lane_with_messages_can_send_more() -> None:
    world = World(max_in_flight=20)
    first, second = world.connect(2)
    first.works = second.works = False
    world.run(1)
    assert not world.flow.is_starved
    world.fill(first, 1)
    world.run(0.1)
    assert not world.flow.is_starved
    world.fill(first)
    world.run(0.1)
    assert world.flow.is_starved


class SharedFlowMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 1000),
        max_in_flight=st.integers(1, 12),
        delay=st.sampled_from([0, 0.001, TRANSIT * 0.49]),
        longest=st.sampled_from([0, 2, 8]),
        turn=st.sampled_from([0.1, 5]),
    )
    def begin(
        self, seed: int, max_in_flight: int, delay: float, longest: float, turn: float
    ) -> None:
        self.world = World(
            seed=seed,
            delay=delay,
            max_in_flight=max_in_flight,
            max_backoff_duration=longest,
            rdy_redistribute_interval=turn,
        )
        self.limit = max_in_flight

    def pick(self, number: int) -> Line:
        return self.world.lines[number % len(self.world.lines)]

    @precondition(lambda self: len(self.world.lines) < 8)
    @rule(count=st.integers(1, 4), max_ready=st.sampled_from([1, 3, 2500]))
    def connect(self, count: int, max_ready: int) -> None:
        self.world.connect(count, max_ready=max_ready)

    @precondition(lambda self: self.world.lines)
    @rule(number=st.integers(0, 1000))
    def lose(self, number: int) -> None:
        self.world.lose(self.pick(number))

    @precondition(lambda self: self.world.lines)
    @rule(number=st.integers(0, 1000), count=st.sampled_from([1, 5, 15]), works=st.booleans())
    def publish(self, number: int, count: int, works: bool) -> None:
        line = self.pick(number)
        line.works = works
        self.world.fill(line, count)

    @precondition(lambda self: self.world.lines)
    @rule(number=st.integers(0, 1000), event=st.sampled_from(["success", "neutral", "failure"]))
    def answer(self, number: int, event: str) -> None:
        self.pick(number).answer(event)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1, 7]))
    def wait(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(max_in_flight=st.integers(0, 12))
    def change(self, max_in_flight: int) -> None:
        """Change the budget; a lower budget applies to new messages."""
        for each in self.world.lines:
            each.answer_all()
        self.world.flow.set_max_in_flight(0, self.world.now)
        self.world.check = lambda: None  # type: ignore[method-assign]
        self.world.run(2 * TRANSIT)
        del self.world.check
        self.world.flow.set_max_in_flight(max_in_flight, self.world.now)
        self.limit = max_in_flight

    @precondition(lambda self: self.limit and self.world.lines)
    @rule()
    def everything_arrives(self) -> None:
        for each in self.world.lines:
            each.answer_all()
        count = len(self.world.lines)
        for each in self.world.lines:
            self.world.fill(each, 1)
        backlog = sum(each.backlog for each in self.world.lines)
        end = self.world.now + 20 + (count + 1) * (6 + backlog)
        while any(each.backlog or each.in_flight for each in self.world.lines):
            self.world.run(1)
            assert self.world.now < end

    @invariant()
    def rdy_is_within_the_budget(self) -> None:
        if hasattr(self, "world"):
            flow = self.world.flow
            assert flow.total_ready <= self.limit
            assert {*flow.lanes} == {*self.world.lines}
            if flow.state is State.WAITING:
                assert flow.total_ready == 0
            self.world.check()


TestSharedFlowMachine = pytest.mark.slow(SharedFlowMachine.TestCase)
TestSharedFlowMachine.settings = PROFILE
