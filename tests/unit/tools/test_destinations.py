"""Which destination a message is sent to, with a simulated clock and simulated random numbers."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.tools.destinations import (
    EPSILON_GREEDY,
    FIRST_RETRY,
    HOSTPOOL,
    LAST_RETRY,
    MODES,
    MULTICAST,
    ROUND_ROBIN,
    Chooser,
    EpsilonGreedy,
    HostPool,
    chooser,
)


def chosen(pool: Chooser, now: float, times: int) -> list[int]:
    return [pool.choose(now)[0] for _ in range(times)]


def never() -> float:
    raise AssertionError("this needs no random numbers")


def scripted(*numbers: float) -> Iterator[float]:
    yield from numbers


@pytest.mark.parametrize("mode", [HOSTPOOL, ROUND_ROBIN])
def test_one_after_the_other(mode: str) -> None:
    assert chosen(chooser(mode, 3, never), 0, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_knows_no_failures() -> None:
    pool = chooser(ROUND_ROBIN, 2, never)
    pool.failed(0, 0)
    assert chosen(pool, 0, 4) == [0, 1, 0, 1]


def test_multicast() -> None:
    assert list(chooser(MULTICAST, 3, never).choose(0)) == [0, 1, 2]


def test_every_mode_has_its_chooser() -> None:
    assert len({type(chooser(mode, 1, never)) for mode in MODES}) == len(MODES)


def test_a_dead_one_is_left_alone_for_half_a_minute() -> None:
    pool = HostPool(2)
    assert chosen(pool, 0, 1) == [0]
    pool.failed(0, 0)
    assert chosen(pool, FIRST_RETRY - 0.1, 3) == [1, 1, 1]
    assert chosen(pool, FIRST_RETRY, 3) == [0, 1, 1]


def test_it_is_tried_once_and_then_left_alone_for_twice_as_long() -> None:
    pool = HostPool(2)
    pool.failed(0, 0)
    now, waited = 0.0, []
    for delay in (30, 60, 120, 240, 480, 900, 900):
        assert 0 not in chosen(pool, now + delay - 0.1, 4)
        now += delay
        assert chosen(pool, now, 4).count(0) == 1
        pool.failed(0, now + 5)
        waited.append(delay)
    assert waited[-1] == LAST_RETRY


def test_a_success_makes_it_one_of_the_others_again() -> None:
    pool = HostPool(2)
    pool.failed(0, 0)
    assert 0 in chosen(pool, 30, 2)
    pool.succeeded(0, 31, 0.1)
    assert chosen(pool, 31, 4).count(0) == 2
    pool.failed(0, 40)  # the backoff starts again at 30 s
    assert chosen(pool, 69.9, 2) == [1, 1]
    assert 0 in chosen(pool, 70, 2)


def test_when_all_are_dead_all_are_alive() -> None:
    pool = HostPool(3)
    assert chosen(pool, 0, 2) == [0, 1]
    for destination in range(3):
        pool.failed(destination, 0)
    assert chosen(pool, 1, 4) == [0, 1, 2, 0]


def test_epsilon_greedy_takes_turns_while_no_speed_is_known() -> None:
    assert chosen(EpsilonGreedy(3, lambda: 0.9), 0, 4) == [0, 1, 2, 0]


def test_epsilon_greedy_prefers_the_fast() -> None:
    pool = EpsilonGreedy(2, random.Random(1).random)
    for _ in range(10):
        pool.succeeded(0, 10, 0.3)
        pool.succeeded(1, 10, 0.1)
    counts = Counter(chosen(pool, 11, 4000))
    assert 0.70 < counts[1] / 4000 < 0.78  # three quarters, except for exploration


def test_epsilon_greedy_explores_less_and_less() -> None:
    drawn: list[float] = []

    def low() -> float:
        drawn.append(0.0)
        return 0.0

    pool = EpsilonGreedy(2, low)
    pool.succeeded(0, 0, 0.1)
    assert chosen(pool, 0, 4) == [0, 1, 0, 1]  # explores in turn, though only one is known
    assert len(drawn) == 4
    # 0.3 * 0.9 ** 4 = 0.197: a draw of 0.2 no longer explores.
    numbers = scripted(0.2, 0.0, 0.19, 0.18)
    pool._random = lambda: next(numbers)
    assert chosen(pool, 0, 1) == [0]
    assert chosen(pool, 0, 1) == [0]
    assert pool._epsilon == pytest.approx(0.3 * 0.9**5)


def test_epsilon_greedy_leaves_the_dead_alone() -> None:
    pool = EpsilonGreedy(2, lambda: 0.99)
    pool.succeeded(0, 0, 1.0)
    pool.succeeded(1, 0, 0.01)
    pool.failed(1, 0)
    assert chosen(pool, 1, 3) == [0, 0, 0]
    assert chosen(pool, 30, 3) == [1, 0, 0]


def test_speeds_are_forgotten_after_five_minutes() -> None:
    pool = EpsilonGreedy(2, lambda: 0.99)
    pool.succeeded(0, 100, 0.5)
    assert chosen(pool, 399, 3) == [0, 0, 0]
    assert chosen(pool, 403, 4) == [0, 1, 0, 1]


def test_later_speeds_weigh_more() -> None:
    pool = EpsilonGreedy(1, lambda: 0.99)
    speed = pool._speeds[0]
    speed.add(0, 1.0)
    speed.add(0, 3.0)
    assert speed.mean(0) == pytest.approx(2.0)
    speed.add(150, 4.0)  # half of the buckets have 2, the later half 4
    assert 3.4 < speed.mean(297) < 3.6
    assert speed.mean(299.9) < speed.mean(440) == pytest.approx(4.0)


@pytest.mark.slow
@given(
    st.sampled_from([HOSTPOOL, EPSILON_GREEDY, ROUND_ROBIN]),
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0, 1000), st.booleans(), st.floats(0, 5)), max_size=60),
    st.randoms(use_true_random=False),
)
def test_there_is_always_one(
    mode: str, count: int, story: list[tuple[float, bool, float]], chance: random.Random
) -> None:
    pool = chooser(mode, count, chance.random)
    now = 0.0
    for pause, good, took in story:
        now += pause
        (destination,) = pool.choose(now)
        assert 0 <= destination < count
        if good:
            pool.succeeded(destination, now, took)
        else:
            pool.failed(destination, now)
