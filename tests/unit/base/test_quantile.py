"""Quantiles over a window: their error, and when values are kept and dropped."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcy.base.core import Latency, Percentiles
from reference import quantile as reference

WINDOW = 1000
QUANTILES = (1, 0.999, 0.99, 0.98, 0.95, 0.9, 0.5, 0.1, 0.01, 0.001)


def mixed(i: int) -> int:
    """Return scrambled numbers below 2**16, which repeat after 2**16 numbers."""
    return i * 40503 % 65536


Shape = Callable[[int, int], int]
SHAPES: dict[str, Shape] = {
    "up": lambda i, n: i,
    "down": lambda i, n: -i,
    "inwards": lambda i, n: i if i % 2 else n - i,
    "outwards": lambda i, n: i if i % 2 else -i,
    "again and again": lambda i, n: i % 700,
    "finer and finer": lambda i, n: (i * 7919) % (i + 1),
    "equal": lambda i, n: 7,
    "few": lambda i, n: i % 3,
    "shuffled": lambda i, n: mixed(i),
    "long tail": lambda i, n: (1 << 40) // (1 + mixed(i)),
}
lengths = st.one_of(st.integers(0, 40), st.integers(450, 1100), st.integers(2000, 8000))
streams = st.tuples(st.sampled_from(sorted(SHAPES)), lengths, st.integers(-30_000, 30_000))


def stream(shape: str, n: int, offset: int = 0) -> list[int]:
    return [SHAPES[shape](i, n) + offset for i in range(n)]


def fed(percentiles: Percentiles, values: Sequence[int], now: int = 0) -> Latency:
    latency = Latency(percentiles, 0)
    for value in values:
        latency.add(value, now)
    return latency


def check(percentiles: Percentiles, latencies: list[Latency], values: list[int], now: int) -> None:
    found = percentiles.summary(latencies, now)
    assert found["count"] == len(values)
    assert [each["quantile"] for each in found["percentiles"]] == list(percentiles.quantiles)
    ordered = sorted(values)
    for each in found["percentiles"]:
        if not values:
            assert each["value"] == 0
            continue
        off = reference.rank_error(ordered, each["quantile"], each["value"])
        assert off <= max(2, 0.03 * len(values)), each
        assert off == 0 or each["quantile"] < 1, each


@given(st.lists(st.integers(0, 2**40), max_size=499))
def test_few_values_are_kept_whole(values: list[int]) -> None:
    percentiles = Percentiles(QUANTILES, WINDOW)
    latency = fed(percentiles, values)
    expected = reference.summary(values, QUANTILES)
    assert percentiles.summary([latency], 0) == expected
    assert percentiles.summary([latency], 0) == expected, "reading changes nothing"


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(streams, min_size=1, max_size=4))
def test_ranks_of_one_stream(parts: list[tuple[str, int, int]]) -> None:
    values = [value for part in parts for value in stream(*part)]
    percentiles = Percentiles(QUANTILES, WINDOW)
    check(percentiles, [fed(percentiles, values)], values, 0)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(streams, min_size=2, max_size=9))
def test_ranks_of_several_together(parts: list[tuple[str, int, int]]) -> None:
    percentiles = Percentiles(QUANTILES, WINDOW)
    latencies = []
    values = []
    for shape, n, offset in parts:
        latencies.append(fed(percentiles, stream(shape, n, offset), now=len(latencies) % 2))
        values += stream(shape, n, offset)
    check(percentiles, latencies, values, 1)


def test_many_together() -> None:
    percentiles = Percentiles(QUANTILES, WINDOW)
    parts = [stream("shuffled", 3 * i, offset=i << 34) for i in range(300)]
    latencies = [fed(percentiles, part) for part in parts]
    check(percentiles, latencies, [value for part in parts for value in part], 0)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_memory_is_bounded(shape: str) -> None:
    latency = Latency(Percentiles((0.5,), WINDOW), 0)
    assert latency.memory_bytes == 0
    latency.add(1, 0)
    assert latency.memory_bytes <= 128
    for _ in range(3):
        for value in stream(shape, 100_000):
            latency.add(value, 0)
    assert latency.memory_bytes <= 65536


def test_a_window_is_two_halves() -> None:
    percentiles = Percentiles((1, 0.5), WINDOW)
    latency = Latency(percentiles, 0)

    def seen(now: int) -> list[int]:
        found = percentiles.summary([latency], now)
        return [found["count"], *(each["value"] for each in found["percentiles"])]

    latency.add(30, 10)
    latency.add(10, 499)
    assert seen(499) == [2, 30, 30]
    latency.add(20, 500)
    assert seen(999) == [3, 30, 30]
    assert seen(1000) == [1, 20, 20]  # the first half is dropped
    latency.add(5, 1001)
    assert seen(1499) == [2, 20, 20]
    assert seen(1500) == [1, 5, 5]
    assert seen(2000) == [0, 0, 0]
    latency.add(6, 2100)
    assert seen(2100) == [1, 6, 6]


@given(
    st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 100)), max_size=30),
    st.integers(0, 3000),
)
def test_what_the_window_covers(steps: list[tuple[int, int]], rest: int) -> None:
    """The result covers everything in the last half of the window, and nothing older than the
    window."""
    percentiles = Percentiles((1,), WINDOW)
    latency = Latency(percentiles, 0)
    now = 0
    times = []
    for passed, value in steps:
        now += passed
        latency.add(value, now)
        times.append(now)
    now += rest
    count = percentiles.summary([latency], now)["count"]
    assert sum(time > now - WINDOW // 2 for time in times) <= count
    assert count <= sum(time > now - WINDOW for time in times)


def test_an_idle_window_gives_its_memory_back() -> None:
    percentiles = Percentiles((0.5,), WINDOW)
    latency = fed(percentiles, range(5000))
    for value in range(5000):
        latency.add(value, 600)
    whole = latency.memory_bytes
    latency.rotate(1000)
    assert 0 < latency.memory_bytes < whole
    latency.rotate(1499)
    assert latency.memory_bytes > 0
    latency.rotate(1500)
    assert latency.memory_bytes == 0


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_long_time_takes_no_longer(window: int) -> None:
    percentiles = Percentiles((0.5,), window)
    latency = fed(percentiles, [1])
    latency.add(2, 2**62)
    assert percentiles.summary([latency], 2**62)["count"] == 1
    assert percentiles.summary([latency], 2**62 + 2 * window)["count"] == 0


def test_nothing_wanted_and_nothing_there() -> None:
    off = Percentiles((), 0)
    assert off.summary([None], 0) == {"count": 0, "percentiles": None}  # type: ignore[list-item]
    on = Percentiles((1, 0.5), WINDOW)
    assert on.summary([], 0) == {"count": 0, "percentiles": None}
    nothing = [{"quantile": 1, "value": 0}, {"quantile": 0.5, "value": 0}]
    assert on.summary([Latency(on, 0)], 0) == {"count": 0, "percentiles": nothing}


def test_a_window_has_a_length() -> None:
    with pytest.raises(ValueError, match="window"):
        Percentiles((0.5,), 0)
