"""The parts of the load test that do not depend on locust: time, bodies, latencies,
users."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.soak.bodies import MIN_BYTES, TIMED_BYTES, Bodies, Sizes, Stamp
from loadtest.soak.ledger import Account
from loadtest.soak.timeline import SPANS, Cell, Timeline, bucket
from loadtest.swarm.options import Options
from loadtest.swarm.pacing import Pace
from loadtest.swarm.run import Run
from loadtest.swarm.stages import Knee, Step, users_at
from support.load_parts import over_the_wire

# --- pacing -------------------------------------------------------------------------------------


def test_requests_are_due_by_the_clock() -> None:
    pace = Pace(10, 100.0)
    assert [pace.take(100.0), pace.take(100.1)] == pytest.approx([100.0, 100.1])
    assert pace.wait(100.12) == pytest.approx(0.08)


def test_what_a_slow_answer_delays_counts_from_when_it_was_due() -> None:
    pace = Pace(10, 100.0)
    pace.take(100.0)
    assert pace.wait(105.0) == 0
    late = [105.0 - pace.take(105.0) for _ in range(3)]
    assert late == pytest.approx([4.9, 4.8, 4.7])


def test_users_that_start_together_do_not_send_together() -> None:
    assert Pace(10, 100.0, phase=0.5).wait(100.0) == pytest.approx(0.05)


def test_without_a_rate_a_request_is_due_when_it_is_made() -> None:
    pace = Pace(0, 100.0, phase=0.5)
    assert (pace.wait(100.0), pace.take(103.0)) == (0.0, 103.0)


# --- bodies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [MIN_BYTES, TIMED_BYTES - 1, TIMED_BYTES, 100, 3000])
def test_a_body_has_its_stamp_and_its_size_and_shows_that_it_is_whole(size: int) -> None:
    sizes = Sizes.parse(str(size), minimum=MIN_BYTES)
    bodies, other = Bodies(1 << 63, sizes), Bodies(1, sizes)
    for number in range(20):
        stamp = Stamp(1 << 20, number, due=-5, deferred=True)
        body = bodies.make(stamp)
        known = stamp if size >= TIMED_BYTES else Stamp(1 << 20, number)
        assert (len(body), bodies.read(body), other.read(body)) == (size, known, None)
        for at in {0, MIN_BYTES - 1, size // 2, size - 1}:
            assert bodies.read(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]) is None
        assert bodies.read(body[:-1]) is None


def test_sizes_are_drawn_by_their_weights() -> None:
    sizes = Sizes.parse("50:3,1000-1010:1")
    drawn = [sizes.draw() for _ in range(2000)]
    assert set(drawn) == {50, *range(1000, 1011)}
    assert 1200 < drawn.count(50) < 1800
    assert sizes.largest == 1010


@pytest.mark.parametrize("text", ["", "10", "100-50", "100:0", "100:x", "x", "100-99999999999"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="sizes"):
        Sizes.parse(text)


# --- latencies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("micros", [0, 1, 63, 127, 128, 1000, 12_345, 999_999, 3_600_000_000])
def test_a_bucket_is_never_too_low_and_little_too_high(micros: int) -> None:
    assert micros <= bucket(micros / 1000) <= micros * 1.016


def test_percentiles_are_of_those_that_did_not_fail() -> None:
    cell = Cell()
    for number in range(1, 101):
        cell.add(number / 1000, 2, failed=False)
    cell.add(9000.0, 2, failed=True)
    found = [cell.percentile(share) for share in (0.5, 0.99, 1.0)]
    assert found == [0.05, 0.099, 0.1]
    assert (cell.requests, cell.messages, cell.failures) == (101, 200, 1)
    assert Cell().percentile(0.5) is None


def test_timelines_of_processes_add_up() -> None:
    one, whole = Timeline(), Timeline()
    one.add(7, "PUB", "t", 1.0)
    one.add(7, "PUB", "t", 1.0, failed=True)
    whole.add(7, "PUB", "t", 3.0, messages=5)
    for _ in range(2):
        whole.merge(over_the_wire(one.take()))
    cell = whole.totals()["PUB", "t"]
    assert (cell.requests, cell.messages, cell.failures) == (3, 6, 1)
    assert sum(cell.latencies.values()) == 2


@pytest.mark.parametrize(("spans", "span"), [(1, 1), (2, 2), (3, 4)])
def test_a_long_timeline_becomes_coarser(spans: int, span: int) -> None:
    timeline = Timeline()
    for second in range(1000, 1000 + spans * SPANS):
        timeline.add(second, "PUB", "t", 1.0)
    assert timeline.span == span
    assert len(timeline.cells) <= SPANS
    assert timeline.totals()["PUB", "t"].requests == spans * SPANS
    assert timeline.totals(1000, 1100)["PUB", "t"].requests == 100


# --- users over time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "users"),
    [
        ("steady", [20, 20, 20, 20, 20]),
        ("ramp", [1, 5, 10, 15, 20]),
        ("soak", [1, 20, 20, 20, 20]),
        ("spike", [5, 5, 20, 5, 5]),
    ],
)
def test_shapes(shape: str, users: list[int]) -> None:
    moments = [0.0, 25.0, 50.0, 75.0, 99.9]
    assert [users_at(shape, each, 20, 100.0) for each in moments] == users
    assert users_at(shape, 100.0, 20, 100.0) is None
    assert users_at(shape, 1e6, 20, None) is not None


def knee(p99: dict[int, float | None], failures: float = 0.0, users: int = 30) -> Knee:
    """Search on a server whose latency is given by the number of users."""

    def measure(count: int, since: float, until: float) -> Step:
        assert until - since == pytest.approx(7.0)
        return Step(count, 100.0 * count, p99[count], "PUB", failures)

    found = Knee(10, 10.0, users, 50.0, 0.01, measure)
    at: float = 0
    while found.tick(at) is not None:
        at += 1
    return found


def test_the_knee_is_the_last_step_that_was_good() -> None:
    found = knee({10: 5.0, 20: 8.0, 30: 900.0})
    assert found.knee == found.steps[1]
    assert found.told() == (
        "20 users, 2,000 msg/s, p99 8 ms (PUB), 0.00% failed;"
        " with 30 users p99 of PUB was 900 ms (at most 50 ms)"
    )


def test_failures_are_a_knee_too() -> None:
    found = knee({10: 5.0}, failures=0.02)
    assert found.knee is None
    assert found.told() == "below 10 users: 2.00% of requests failed (at most 1.00%)"


def test_silence_is_too_much() -> None:
    assert knee({10: 5.0, 20: None}).crossed == "nothing was answered"


def test_no_knee_within_the_users_there_are() -> None:
    found = knee({10: 5.0, 20: 6.0, 25: 7.0}, users=25)
    assert found.knee == found.steps[-1]
    assert found.told().startswith("not reached: 25 users")


# --- a run --------------------------------------------------------------------------------------


def test_processes_send_in_what_they_did() -> None:
    options = Options(topics="t", channels="c")
    whole, worker = Run(options, 5), Run(options, 5, process=1)
    assert whole.new_publisher() != worker.new_publisher()
    worker.request("PUB", "t", 2.0, context={"messages": 3})
    worker.ledger.publish("t", 1, range(3))
    worker.strains.note(12.0)
    assert not whole.merge(over_the_wire(Run(options, 5).take())).is_so
    worker.quiet.waiting, worker.quiet.halted = 1, True
    assert not whole.merge(over_the_wire(worker.take())).is_so
    assert not whole.is_drained
    worker.quiet.waiting = 0
    for number in range(3):
        worker.ledger.finish(("t", "c"), 1, number)
    assert whole.merge(over_the_wire(worker.take())).is_so
    assert whole.is_drained
    assert whole.timeline.totals()["PUB", "t"].messages == 3
    assert whole.strains.worst().late == 12.0


def test_what_is_left_of_another_run_does_not_count() -> None:
    options = Options(topics="t", channels="c")
    old = Run(options, 4)
    old.ledger.publish("t", 1, range(3))
    new = Run(options, 5)
    new.merge(over_the_wire(old.take()))
    assert new.accounts() == [Account("t", "c")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topics", "no spaces"),
        ("channels", ""),
        ("channels", "c#ephemeral"),
        ("shape", "round"),
        ("batch", 0),
        ("publish_rate", -1.0),
        ("requeue_share", 1.5),
        ("nsqd_tcp_address", "host:port"),
        ("nsqd_http_address", "4151"),
        ("thresholds", "p98 PUB=1"),
        ("size", "1"),
    ],
)
def test_options_that_make_no_sense(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        Options(**{name: value})


def test_every_flag_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "LOADTEST.md").read_text()
    flags = {f"--{name.replace('_', '-')}" for name in Options().shown()} | {"--auth-secret"}
    assert {each for each in flags if f"`{each}`" not in page} == set()


def test_options_say_where_nsqds_are() -> None:
    assert Options().nsqds == ["127.0.0.1:4150"]
    assert Options().https == ["127.0.0.1:4151"]
    found = Options(lookupd_http_address="a:4161,b:4161", auth_secret="hush")
    assert (found.nsqds, found.https, found.lookupds) == ([], [], ["a:4161", "b:4161"])
    assert found.connection["auth_secret"] == "hush"
    assert "hush" not in json.dumps(found.shown())
