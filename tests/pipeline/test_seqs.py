"""Gaps and duplicates in ranges of numbers, compared with counting the numbers one by one."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.pipeline.seqs import Coverage, coverage, joined, runs

NUMBERS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def test_an_example() -> None:
    found, again = runs(pa.array([7, 1, 2, 3, 7, 2, 9], pa.int64()))
    assert (found, again) == ([(1, 4), (7, 8), (9, 10)], [2, 7])
    assert coverage(found, again) == Coverage(
        1, 10, 7, gaps=((4, 7), (8, 9)), twice=((2, 3), (7, 8))
    )
    assert runs(pa.array([], pa.int64())) == ([], [])
    assert joined([(1, 3), (3, 4), (9, 10), (2, 3)]) == [(1, 4), (9, 10)]


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_against_counting(files: list[list[int]]) -> None:
    parts, more = [], []
    for numbers in files:
        found, again = runs(pa.array(numbers, pa.int64()))
        parts += found
        more += again
    log = coverage(parts, more)
    everything = [number for numbers in files for number in numbers]
    there = set(everything)
    assert (log.start, log.end, log.rows) == (min(there), max(there) + 1, len(everything))
    gaps = {number for start, end in log.gaps for number in range(start, end)}
    assert gaps == set(range(log.start, log.end)) - there and log.missing == len(gaps)
    twice = {number for start, end in log.twice for number in range(start, end)}
    assert twice == {number for number in there if everything.count(number) > 1}
