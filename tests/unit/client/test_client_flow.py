"""RDY and backoff of a consumer: traces of the reference clients, and random histories compared
with a simple statement of the rules.

NSQCY_RUNS=20 tries many more histories.
"""

import gc
import math
import weakref
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqcy.client.flow import Flow, FlowSettings, State
from support.runs import runs, steps

PROFILE = settings(max_examples=runs(60), stateful_step_count=steps(40), deadline=None)

NORMAL, WAITING, TESTING = State.NORMAL, State.WAITING, State.TESTING
SEEDS = range(20)


class Line:
    """A connection that checks each RDY on its own, and against all other connections of its
    consumer."""

    def __init__(self, consumer: "Consumer", name: str, max_ready: int) -> None:
        self.consumer = consumer
        self.name = name
        self.max_ready = max_ready
        self.ready = 0
        self.in_flight = 0
        self.last_message = consumer.now

    def send_ready(self, count: int) -> None:
        assert 0 <= count <= self.max_ready
        assert count != self.ready
        raised = count > self.ready
        self.ready = count
        self.consumer.sent(self, raised)


class Consumer:
    """A flow with a clock, its lines, and their output in order."""

    def __init__(self, *, seed: int = 0, **options: Any) -> None:
        self.now = 100.0
        self.flow = Flow(FlowSettings(**{"max_backoff_duration": 128} | options), Random(seed))
        self.flow.on_backoff = lambda level, wait: self.waits.append((level, wait))
        self.flow.on_resume = lambda: self.waits.append("resumed")
        self.lines: list[Line] = []
        self.trace: list[str] = []
        self.waits: list[Any] = []
        self.busy: set[Line] = set()  # lines with endless messages, answered immediately

    def sent(self, line: Line, raised: bool) -> None:
        self.trace.append(f"{line.name} RDY {line.ready}")
        total = sum(other.ready for other in self.lines)
        # While a reduced budget takes effect, the total may exceed it.
        assert not raised or total <= self.flow.max_in_flight, self.trace

    def connect(self, name: str = "a", max_ready: int = 2500) -> Line:
        line = Line(self, name, max_ready)
        self.lines.append(line)
        self.flow.add(line, self.now)
        return line

    def lose(self, line: Line) -> None:
        self.lines.remove(line)
        self.busy.discard(line)
        self.flow.remove(line, self.now)

    def answer(self, line: Line, event: str) -> None:
        line.last_message = self.now
        if event == "success" and self.flow.calm:
            self.trace.append(f"{line.name} FIN")
            return
        getattr(self.flow, event)(self.now)
        self.trace.append(f"{line.name} {'FIN' if event == 'success' else 'REQ'}")

    def tick(self) -> None:
        """Advance the clock to the next due time."""
        assert self.now <= self.flow.due < math.inf
        self.now = self.flow.due
        for line in self.busy:
            if line.ready:
                line.last_message = self.now
        self.flow.tick(self.now)
        assert self.now < self.flow.due

    def ready(self) -> list[int]:
        assert self.flow.total_ready == sum(line.ready for line in self.lines)
        assert self.flow.total_ready <= self.flow.max_in_flight
        return [line.ready for line in self.lines]

    def holders(self) -> list[str]:
        return [line.name for line in self.lines if line.ready]

    def written(self) -> list[str]:
        """Return the output since the last call."""
        written, self.trace = self.trace, []
        return written


def plain(trace: str) -> list[str]:
    return [f"a {command}" for command in trace.split(" | ")]


# Spreading


@pytest.mark.case("CL-005")
def test_one_connection_has_the_whole_budget_at_once() -> None:
    consumer = Consumer(max_in_flight=5)
    consumer.connect()
    assert consumer.written() == ["a RDY 5"]


@pytest.mark.case("CL-006")
def test_two_connections_have_a_half_each() -> None:
    consumer = Consumer(max_in_flight=10)
    consumer.connect("a")
    consumer.connect("b")
    assert consumer.ready() == [5, 5]
    assert consumer.flow.due == math.inf


@pytest.mark.case("CL-007")
def test_nothing_of_a_budget_that_does_not_divide_is_left() -> None:
    consumer = Consumer(max_in_flight=10)
    for name in "abc":
        consumer.connect(name)
    assert sorted(consumer.ready()) == [3, 3, 4]


@pytest.mark.case("CL-008")
def test_the_first_is_lowered_before_the_second_is_raised() -> None:
    consumer = Consumer(max_in_flight=10)
    consumer.connect("a")
    consumer.connect("b")
    assert consumer.written() == ["a RDY 10", "a RDY 5", "b RDY 5"]


def test_no_connection_is_sent_more_than_its_server_allows() -> None:
    consumer = Consumer(max_in_flight=10)
    consumer.connect("a", max_ready=3)
    assert consumer.written() == ["a RDY 3"]


def test_other_servers_get_the_credit_that_one_does_not_allow() -> None:
    consumer = Consumer(max_in_flight=20)
    for name, max_ready in {"a": 100, "b": 3, "c": 100, "d": 1}.items():
        consumer.connect(name, max_ready)
    assert consumer.ready() == [8, 3, 8, 1]


@pytest.mark.case("CL-010")
def test_messages_that_succeed_change_nothing() -> None:
    consumer = Consumer(max_in_flight=5)
    line = consumer.connect()
    for _ in range(10):
        consumer.answer(line, "success")
    consumer.flow.success(consumer.now)
    assert consumer.written() == ["a RDY 5"] + ["a FIN"] * 10


def test_the_rdy_of_a_lost_connection_goes_to_the_others() -> None:
    consumer = Consumer(max_in_flight=9)
    lines = [consumer.connect(name) for name in "abc"]
    consumer.lose(lines[1])
    assert sorted(consumer.ready()) == [4, 5]
    consumer.lose(lines[0])
    assert consumer.ready() == [9]
    consumer.lose(lines[2])
    assert consumer.ready() == []
    consumer.connect("d")
    assert consumer.ready() == [9]


@pytest.mark.case("CL-013")
def test_zero_pauses() -> None:
    consumer = Consumer(max_in_flight=5)
    line = consumer.connect()
    consumer.answer(line, "success")
    consumer.flow.set_max_in_flight(0, consumer.now)
    consumer.flow.set_max_in_flight(5, consumer.now)
    assert consumer.written() == plain("RDY 5 | FIN | RDY 0 | RDY 5")


@pytest.mark.case("CL-014")
def test_a_connection_opened_in_a_pause_gets_nothing_until_its_end() -> None:
    consumer = Consumer(max_in_flight=0)
    consumer.connect("a")
    assert consumer.flow.due == math.inf
    consumer.flow.set_max_in_flight(5, consumer.now)
    consumer.flow.set_max_in_flight(0, consumer.now)
    consumer.written()
    consumer.connect("b")
    assert consumer.written() == []
    assert consumer.flow.due == math.inf
    consumer.flow.set_max_in_flight(4, consumer.now)
    assert consumer.ready() == [2, 2]


def test_a_new_budget_is_spread_at_once() -> None:
    consumer = Consumer(max_in_flight=10)
    for name in "abcd":
        consumer.connect(name)
    consumer.flow.set_max_in_flight(2, consumer.now)
    assert sorted(consumer.ready()) == [0, 0, 1, 1]
    consumer.flow.set_max_in_flight(3, consumer.now)
    assert sorted(consumer.ready()) == [0, 1, 1, 1]
    consumer.flow.set_max_in_flight(8, consumer.now)
    assert consumer.ready() == [2, 2, 2, 2]
    consumer.written()
    consumer.flow.set_max_in_flight(8, consumer.now)
    assert consumer.written() == []


def test_one_that_is_lost_before_it_subscribes_changes_nothing() -> None:
    consumer = Consumer(max_in_flight=5)
    consumer.connect("a")
    consumer.flow.remove(Line(consumer, "b", 2500), consumer.now)
    assert consumer.written() == ["a RDY 5"]
    assert len(consumer.flow.lanes) == 1


@pytest.mark.slow
def test_a_lost_connection_is_forgotten() -> None:
    consumer = Consumer(max_in_flight=1)
    line = consumer.connect("a")
    consumer.connect("b")
    consumer.lose(line)
    gone = weakref.ref(line)
    del line
    gc.collect()
    assert gone() is None


# Less than one message per connection


@pytest.mark.case("CL-011")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_only_one_of_three_with_messages_gets_its_turn(seed: int) -> None:
    consumer = Consumer(max_in_flight=1, seed=seed)
    lines = [consumer.connect(name) for name in "abc"]
    busy = lines[seed % 3]
    consumer.busy.add(busy)
    rounds = 0
    while not busy.ready:
        consumer.tick()
        rounds += 1
    assert rounds <= 3  # two until the first line counts as idle, then one for the other line
    for _ in range(6):
        assert busy.ready
        consumer.tick()


@pytest.mark.case("CL-012")
def test_an_idle_connection_gives_its_rdy_to_another() -> None:
    consumer = Consumer(max_in_flight=1)
    consumer.connect("a")
    consumer.connect("b")
    assert consumer.written() == ["a RDY 1"]
    consumer.tick()
    assert consumer.written() == []
    consumer.tick()
    assert consumer.now == 110
    assert consumer.written() == ["a RDY 0", "b RDY 1"]
    consumer.tick()
    assert consumer.written() == ["b RDY 0", "a RDY 1"]


def test_it_holds_rdy_for_a_round_however_idle_it_was() -> None:
    consumer = Consumer(max_in_flight=1)
    first = consumer.connect("a")
    consumer.connect("b")
    consumer.connect("c")
    consumer.now += 4  # one second before the next round
    consumer.lose(first)
    (holder,) = consumer.holders()
    for line in consumer.lines:
        line.last_message = 0.0
    consumer.tick()
    assert consumer.holders() == [holder]
    consumer.tick()
    assert consumer.holders() != [holder]


def test_one_with_messages_keeps_rdy_for_no_longer_than_it_may() -> None:
    consumer = Consumer(max_in_flight=1)
    consumer.busy.add(consumer.connect("a"))
    consumer.busy.add(consumer.connect("b"))
    held = []
    for _ in range(18):
        consumer.tick()
        held += consumer.holders()
    assert held == ["a"] * 5 + ["b"] * 6 + ["a"] * 6 + ["b"]


def test_one_that_works_on_a_message_is_not_idle() -> None:
    consumer = Consumer(max_in_flight=1)
    consumer.connect("a").in_flight = 1
    consumer.connect("b")
    for _ in range(5):
        consumer.tick()
        assert consumer.holders() == ["a"]
    consumer.tick()
    assert consumer.holders() == ["b"]


def test_no_more_give_up_rdy_than_wait_for_it() -> None:
    consumer = Consumer(max_in_flight=5)
    for name in "abcdef":
        consumer.connect(name)
    consumer.written()
    consumer.tick()
    consumer.tick()
    first = consumer.written()
    assert [entry[1:] for entry in first] == [" RDY 0", " RDY 1"]
    assert first[1] == "f RDY 1"
    served = set()
    for _ in range(5):
        consumer.tick()
        lowered, raised = consumer.written()
        assert lowered[0] != raised[0]
        served.add(raised[0])
    assert served == set("abcde")


def test_a_lost_connections_turn_is_another_ones_at_once() -> None:
    consumer = Consumer(max_in_flight=2)
    lines = [consumer.connect(name) for name in "abcd"]
    consumer.lose(lines[0])
    assert sum(consumer.ready()) == 2
    consumer.lose(lines[1])
    assert consumer.ready() == [1, 1]
    assert consumer.flow.due == math.inf


@pytest.mark.parametrize(("lines", "budget"), [(3, 1), (7, 3), (20, 19), (40, 1)])
def test_no_one_starves_when_all_have_messages(lines: int, budget: int) -> None:
    consumer = Consumer(max_in_flight=budget)
    consumer.busy = {consumer.connect(str(number)) for number in range(lines)}
    turns: Counter[str] = Counter(consumer.holders())
    cycle = math.ceil(lines / budget) * 6  # rounds of five seconds in half a minute
    for _ in range(3 * cycle):
        consumer.tick()
        assert sum(consumer.ready()) == budget
        turns.update(consumer.holders())
    assert len(turns) == lines
    # Three cycles; the first and the last may be incomplete.
    assert max(turns.values()) <= 2 * min(turns.values()) + 6


def test_consumers_do_not_go_around_in_step() -> None:
    second = set()
    for seed in SEEDS:
        consumer = Consumer(max_in_flight=1, seed=seed)
        for name in "abcd":
            consumer.connect(name)
        consumer.tick()
        consumer.tick()
        second.update(consumer.holders())
    assert second == {"b", "c", "d"}


# Backoff


def test_levels_and_waits() -> None:
    consumer = Consumer(max_in_flight=5)
    line = consumer.connect()
    for _ in range(9):
        consumer.answer(line, "failure")
        began = consumer.now
        consumer.tick()
        assert consumer.now - began == consumer.waits[-1][1]
    assert [level for level, _ in consumer.waits] == [1, 2, 3, 4, 5, 6, 7, 7, 7]
    assert [wait for _, wait in consumer.waits] == [2, 4, 8, 16, 32, 64, 128, 128, 128]
    consumer.waits.clear()
    for _ in range(6):
        consumer.answer(line, "success")
        consumer.tick()
    consumer.answer(line, "success")
    assert [wait for _, wait in consumer.waits[:-1]] == [64, 32, 16, 8, 4, 2]
    assert consumer.waits[-1] == "resumed"
    assert consumer.flow.calm
    assert consumer.ready() == [5]


def test_full_jitter_waits_for_any_part_of_it() -> None:
    consumer = Consumer(backoff_strategy="full_jitter", max_backoff_duration=8)
    line = consumer.connect()
    for _ in range(200):
        consumer.answer(line, "failure")
        consumer.tick()
    assert [level for level, _ in consumer.waits] == [1, 2, *[3] * 198]
    top = [wait for _, wait in consumer.waits[2:]]
    assert 0 <= min(top) < 1
    assert 7 < max(top) < 8


@pytest.mark.case("CL-015")
def test_a_failure_then_a_success() -> None:
    consumer = Consumer(max_in_flight=5, backoff_multiplier=0.01)
    line = consumer.connect()
    consumer.answer(line, "failure")
    assert (consumer.flow.state, consumer.flow.calm) == (WAITING, False)
    consumer.tick()
    assert (consumer.flow.state, consumer.flow.calm) == (TESTING, False)
    consumer.answer(line, "success")
    assert (consumer.flow.state, consumer.flow.calm) == (NORMAL, True)
    assert consumer.written() == plain("RDY 5 | RDY 0 | REQ | RDY 1 | RDY 5 | FIN")
    assert consumer.waits == [(1, 0.02), "resumed"]


@pytest.mark.case("CL-016")
def test_the_reference_trace() -> None:
    consumer = Consumer(max_in_flight=5, backoff_multiplier=0.01)
    line = consumer.connect()
    for event in ("success", "success", "success", "failure", "failure", "success", "success"):
        if consumer.flow.state is WAITING:
            consumer.tick()
        consumer.answer(line, event)
    assert consumer.written() == plain(
        "RDY 5 | FIN | FIN | FIN | RDY 0 | REQ | RDY 1 | RDY 0 | REQ"
        " | RDY 1 | RDY 0 | FIN | RDY 1 | RDY 5 | FIN"
    )
    assert consumer.waits == [(1, 0.02), (2, 0.04), (1, 0.02), "resumed"]


@pytest.mark.case("CL-017")
def test_neutral_in_a_test_waits_again() -> None:
    consumer = Consumer(max_in_flight=5)
    line = consumer.connect()
    consumer.answer(line, "failure")
    consumer.tick()
    consumer.written()
    consumer.answer(line, "neutral")
    consumer.tick()
    assert consumer.written() == plain("RDY 0 | REQ | RDY 1")
    assert consumer.waits == [(1, 2), (1, 2)]


@pytest.mark.case("CL-018")
def test_neutral_is_nothing_otherwise() -> None:
    consumer = Consumer(max_in_flight=5)
    line = consumer.connect()
    consumer.answer(line, "neutral")
    assert consumer.written() == plain("RDY 5 | REQ")
    assert consumer.flow.calm


@pytest.mark.case("CL-019")
def test_many_that_fail_together_count_once() -> None:
    consumer = Consumer(max_in_flight=20)
    line = consumer.connect()
    for _ in range(20):
        consumer.answer(line, "failure")
    assert consumer.waits == [(1, 2)]
    assert consumer.written() == plain("RDY 20 | RDY 0") + ["a REQ"] * 20


@pytest.mark.parametrize("event", ["success", "failure", "neutral"])
def test_what_is_answered_in_a_wait_says_nothing(event: str) -> None:
    consumer = Consumer(max_in_flight=20)
    line = consumer.connect()
    consumer.answer(line, "failure")
    due = consumer.flow.due
    consumer.now += 1
    consumer.answer(line, event)
    assert (consumer.flow.backoff_level, consumer.flow.due) == (1, due)


@pytest.mark.case("CL-020")
@pytest.mark.parametrize("longest", [0, 1.9])
def test_no_backoff(longest: float) -> None:
    consumer = Consumer(max_in_flight=5, max_backoff_duration=longest)
    line = consumer.connect()
    consumer.answer(line, "failure")
    assert consumer.written() == plain("RDY 5 | REQ")
    assert consumer.flow.calm
    assert consumer.waits == []


@pytest.mark.case("CL-021")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_on_one_stops_all_and_one_is_tested(seed: int) -> None:
    consumer = Consumer(max_in_flight=10, seed=seed)
    line = consumer.connect("a")
    consumer.connect("b")
    consumer.written()
    consumer.answer(line, "failure")
    assert sorted(consumer.written()[:2]) == ["a RDY 0", "b RDY 0"]
    consumer.tick()
    assert sorted(consumer.ready()) == [0, 1]


def test_any_connection_may_be_the_one_that_is_tested() -> None:
    tested = set()
    for seed in SEEDS:
        consumer = Consumer(max_in_flight=9, seed=seed)
        lines = [consumer.connect(name) for name in "abc"]
        consumer.answer(lines[0], "failure")
        consumer.tick()
        tested.update(consumer.holders())
    assert tested == set("abc")


def test_each_test_is_on_another_connection() -> None:
    consumer = Consumer(max_in_flight=9)
    lines = [consumer.connect(name) for name in "abc"]
    tested = ""
    for _ in range(6):
        consumer.answer(lines[0], "failure")
        consumer.tick()
        tested += consumer.holders()[0]
    assert sorted(tested[:3]) == ["a", "b", "c"]
    assert tested[3:] == tested[:3]


def test_a_test_that_nothing_comes_of_moves_on() -> None:
    consumer = Consumer(max_in_flight=9)
    lines = [consumer.connect(name) for name in "abc"]
    consumer.answer(lines[0], "failure")
    consumer.tick()
    tested = set(consumer.holders())
    for _ in range(4):
        consumer.tick()
        assert sum(consumer.ready()) == 1
        tested.update(consumer.holders())
    assert tested == set("abc")


@pytest.mark.case("CL-022")
def test_the_tested_connection_closes() -> None:
    consumer = Consumer(max_in_flight=10)
    lines = [consumer.connect(name) for name in "ab"]
    consumer.answer(lines[0], "failure")
    consumer.tick()
    consumer.written()
    tested = next(line for line in lines if line.ready)
    consumer.lose(tested)
    (other,) = consumer.lines
    assert consumer.written() == [f"{other.name} RDY 1"]
    consumer.lose(other)
    consumer.connect("c")
    consumer.connect("d")
    assert consumer.written() == ["c RDY 1"]


def test_a_wait_without_a_connection() -> None:
    consumer = Consumer(max_in_flight=10)
    line = consumer.connect("a")
    consumer.answer(line, "failure")
    consumer.lose(line)
    consumer.now = consumer.flow.due
    consumer.flow.tick(consumer.now)
    assert consumer.flow.due == math.inf
    consumer.written()
    line = consumer.connect("b")
    assert consumer.written() == ["b RDY 1"]
    consumer.answer(line, "success")
    assert consumer.ready() == [10]


def test_a_connection_opened_in_backoff_gets_nothing() -> None:
    consumer = Consumer(max_in_flight=10)
    line = consumer.connect("a")
    consumer.answer(line, "failure")
    consumer.connect("b")
    assert consumer.ready() == [0, 0]
    consumer.tick()
    consumer.connect("c")
    assert sum(consumer.ready()) == 1
    consumer.answer(line, "success")
    assert sorted(consumer.ready()) == [3, 3, 4]


def test_a_new_budget_in_backoff_counts_after_it() -> None:
    consumer = Consumer(max_in_flight=5)
    line = consumer.connect()
    consumer.answer(line, "failure")
    consumer.written()
    consumer.flow.set_max_in_flight(8, consumer.now)
    assert consumer.written() == []
    consumer.tick()
    consumer.flow.set_max_in_flight(0, consumer.now)
    consumer.flow.set_max_in_flight(7, consumer.now)
    consumer.answer(line, "success")
    assert consumer.written() == plain("RDY 1 | RDY 0 | RDY 1 | RDY 7 | FIN")


def test_a_wait_that_ends_in_a_pause() -> None:
    consumer = Consumer(max_in_flight=5)
    consumer.answer(consumer.connect(), "failure")
    consumer.flow.set_max_in_flight(0, consumer.now)
    consumer.now = consumer.flow.due
    consumer.flow.tick(consumer.now)
    assert (consumer.ready(), consumer.flow.due) == ([0], math.inf)
    consumer.flow.set_max_in_flight(5, consumer.now)
    assert consumer.ready() == [1]


# Batches


@pytest.mark.parametrize(
    ("ready", "in_flight", "starved"),
    [(100, 84, False), (100, 85, True), (3, 1, False), (3, 2, True), (1, 0, False), (1, 1, True)],
)
def test_starved(ready: int, in_flight: int, starved: bool) -> None:
    consumer = Consumer(max_in_flight=ready)
    line = consumer.connect()
    line.in_flight = in_flight
    assert consumer.flow.is_starved is starved
    assert consumer.flow.total_in_flight == in_flight


def test_what_is_left_of_a_connection_that_has_no_rdy_is_to_be_answered() -> None:
    consumer = Consumer(max_in_flight=0)
    line = consumer.connect()
    assert not consumer.flow.is_starved
    line.in_flight = 1
    assert consumer.flow.is_starved


@pytest.mark.case("CL-064")
@pytest.mark.parametrize("connections", [1, 3, 70, 130])
def test_a_batch_is_never_waited_for_in_vain(connections: int) -> None:
    consumer = Consumer(max_in_flight=100)
    for number in range(connections):
        consumer.connect(str(number))
    left, done, batch = 500, 0, 0
    while left:
        hungry = [line for line in consumer.lines if line.in_flight < line.ready]
        assert hungry, "all connections wait for an unfinished batch"
        for line in hungry[:left]:
            line.in_flight += 1
            left -= 1
            batch += 1
            if consumer.flow.is_starved or batch == 100:
                done += batch
                batch = 0
                for each in consumer.lines:
                    each.in_flight = 0
    assert done + batch == 500
    assert batch < 100


# Settings


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_in_flight", -1),
        ("max_in_flight", 2.5),
        ("max_in_flight", True),
        ("max_in_flight", "5"),
        ("low_rdy_idle_timeout", 0),
        ("low_rdy_idle_timeout", math.inf),
        ("low_rdy_timeout", -1),
        ("low_rdy_timeout", True),
        ("low_rdy_timeout", "10s"),
        ("rdy_redistribute_interval", 0),
        ("rdy_redistribute_interval", math.nan),
        ("max_backoff_duration", -0.1),
        ("max_backoff_duration", math.inf),
        ("max_backoff_duration", None),
        ("backoff_multiplier", 0),
        ("backoff_multiplier", math.nan),
        ("backoff_strategy", "linear"),
    ],
)
def test_nonsense_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be .*, not ") as caught:
        FlowSettings(**{option: value})  # type: ignore[arg-type]
    assert str(caught.value).endswith(repr(value))


def test_a_nonsensical_budget_is_refused() -> None:
    consumer = Consumer(max_in_flight=5)
    consumer.connect()
    with pytest.raises(ValueError, match="max_in_flight"):
        consumer.flow.set_max_in_flight(-1, consumer.now)
    assert consumer.ready() == [5]


@pytest.mark.parametrize("multiplier", [5e-324, 1e-9, 1e308])
def test_a_level_never_overflows(multiplier: float) -> None:
    consumer = Consumer(backoff_multiplier=multiplier, max_backoff_duration=1e308)
    line = consumer.connect()
    for _ in range(2500):
        consumer.answer(line, "failure")
        consumer.flow.tick(math.inf)
    assert all(0 < wait <= 1e308 for _, wait in consumer.waits)


# Random histories


def outcome(state: State, level: int, event: str, top: int) -> tuple[State, int]:
    """Return the outcome according to the table in the guide."""
    if event == "time":
        return (TESTING, level) if state is WAITING else (state, level)
    if state is WAITING or top == 0:
        return state, level
    if state is NORMAL:
        return (WAITING, 1) if event == "failure" else (NORMAL, 0)
    if event == "failure":
        return WAITING, level + 1 if level < top else top
    if event == "neutral":
        return WAITING, level
    return (WAITING, level - 1) if level > 1 else (NORMAL, 0)


class FlowMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 1000),
        max_in_flight=st.integers(0, 12),
        interval=st.sampled_from([0.001, 0.3, 5, 40]),
        idle=st.sampled_from([0.1, 10, 33.3]),
        held=st.sampled_from([0.05, 30, 100]),
        longest=st.sampled_from([0, 1, 2, 9, 128]),
        strategy=st.sampled_from(["exponential", "full_jitter"]),
    )
    def begin(
        self,
        seed: int,
        max_in_flight: int,
        interval: float,
        idle: float,
        held: float,
        longest: float,
        strategy: str,
    ) -> None:
        self.consumer = Consumer(
            seed=seed,
            max_in_flight=max_in_flight,
            rdy_redistribute_interval=interval,
            low_rdy_idle_timeout=idle,
            low_rdy_timeout=held,
            max_backoff_duration=longest,
            backoff_strategy=strategy,
        )
        self.flow = self.consumer.flow
        self.top = {0: 0, 1: 0, 2: 1, 9: 3, 128: 7}[longest]
        self.state, self.level = NORMAL, 0
        self.max_in_flight = max_in_flight
        self.interval = interval
        self.patience = math.ceil(idle / interval) + 1  # rounds until all lines are idle
        self.names = 0

    def budget(self) -> int:
        return {NORMAL: self.max_in_flight, WAITING: 0, TESTING: min(1, self.max_in_flight)}[
            self.state
        ]

    def lacking(self) -> bool:
        return 0 < self.budget() < len(self.consumer.lines)

    def once(self, act: Callable[[], object]) -> int:
        """Call `act`, which sends at most one RDY per line. Return the number of RDYs."""
        self.consumer.written()
        act()
        written = Counter(entry.split()[0] for entry in self.consumer.written() if "RDY" in entry)
        assert not written or max(written.values()) == 1
        return len(written)

    @rule(max_ready=st.sampled_from([1, 2, 3, 2500]))
    def connect(self, max_ready: int) -> None:
        self.names += 1
        self.once(lambda: self.consumer.connect(str(self.names), max_ready))

    @precondition(lambda self: self.consumer.lines)
    @rule(pick=st.integers(0, 1000))
    def lose(self, pick: int) -> None:
        lines = self.consumer.lines
        self.once(lambda: self.consumer.lose(lines[pick % len(lines)]))

    @precondition(lambda self: self.consumer.lines)
    @rule(pick=st.integers(0, 1000), count=st.integers(0, 4))
    def deliver(self, pick: int, count: int) -> None:
        line = self.consumer.lines[pick % len(self.consumer.lines)]
        taken = min(count, line.ready - line.in_flight)
        if taken > 0:
            line.in_flight += taken
            line.last_message = self.consumer.now

    @precondition(lambda self: self.flow.total_in_flight)
    @rule(pick=st.integers(0, 1000), event=st.sampled_from(["success", "failure", "neutral"]))
    def answer(self, pick: int, event: str) -> None:
        having = [line for line in self.consumer.lines if line.in_flight]
        line = having[pick % len(having)]
        line.in_flight -= 1
        self.result(event)

    @rule(event=st.sampled_from(["success", "failure", "failure", "neutral"]))
    def result(self, event: str) -> None:
        """Report an additional result: of a message from a lost connection, or at the same time as
        another one."""
        before = self.state, self.level
        self.state, self.level = outcome(*before, event, self.top)
        sent = self.once(lambda: getattr(self.flow, event)(self.consumer.now))
        if before == (self.state, self.level):
            assert not sent

    @rule(max_in_flight=st.integers(0, 12))
    def change(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.once(lambda: self.flow.set_max_in_flight(max_in_flight, self.consumer.now))

    @rule(step=st.sampled_from([0.0001, 0.2, 1, 4.9, 60]))
    def early(self, step: float) -> None:
        """Advance the clock, but not to the due time."""
        now = self.consumer.now + step
        if now < self.flow.due:
            self.consumer.now = now
            due = self.flow.due
            assert not self.once(lambda: self.flow.tick(now))
            assert self.flow.due == due

    @precondition(lambda self: self.flow.due < math.inf)
    @rule(late=st.sampled_from([0, 0, 0.5, 20]))
    def tick(self, late: float) -> None:
        self.state, self.level = outcome(self.state, self.level, "time", self.top)
        self.consumer.now = max(self.consumer.now, self.flow.due) + late
        self.once(lambda: self.flow.tick(self.consumer.now))
        assert self.flow.due > self.consumer.now

    @precondition(lambda self: self.lacking())
    @rule(pick=st.integers(0, 1000))
    def only_one_has_messages(self, pick: int) -> None:
        consumer = self.consumer
        for line in consumer.lines:
            line.in_flight = 0
        busy = consumer.lines[pick % len(consumer.lines)]
        if self.interval < 0.1:
            consumer.now += 200  # otherwise, it takes too many rounds until all are idle
        limit = len(consumer.lines) + (0 if self.interval < 0.1 else self.patience)
        rounds = 0
        while not busy.ready:
            self.tick(0)
            rounds += 1
            assert rounds <= limit
        busy.last_message = consumer.now

    @invariant()
    def rdy_is_what_the_rules_say(self) -> None:
        if not hasattr(self, "consumer"):
            return
        lines, budget = self.consumer.lines, self.budget()
        ready = self.consumer.ready()
        if len(lines) > budget:
            assert sorted(ready) == [0] * (len(lines) - budget) + [1] * budget
            return
        assert sum(ready) == min(budget, sum(line.max_ready for line in lines))
        for line in lines:
            # No line's RDY exceeds that of another line by two, unless the other line is at its
            # maximum.
            assert line.ready == line.max_ready or max(ready) <= line.ready + 1

    @invariant()
    def state_is_what_the_table_says(self) -> None:
        if not hasattr(self, "consumer"):
            return
        flow = self.flow
        assert (flow.state, flow.backoff_level) == (self.state, self.level)
        assert flow.calm is (self.state is NORMAL)
        assert flow.max_in_flight == self.max_in_flight
        assert {*flow.lanes} == {*self.consumer.lines}
        if self.state is WAITING:
            assert flow.due < math.inf
        elif self.lacking():
            assert flow.due <= self.consumer.now + self.interval
        else:
            assert flow.due == math.inf


TestFlowMachine = pytest.mark.slow(FlowMachine.TestCase)
TestFlowMachine.settings = PROFILE
