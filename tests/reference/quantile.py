"""Quantiles: a slow and simple reference implementation of base/quantile.pyx."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any


def exact(values: Sequence[int], quantile: float) -> int:
    """Return NSQ's result for a list that is short enough to be kept whole: slightly above the
    exact rank."""
    n = len(values)
    if not n:
        return 0
    return sorted(values)[min(n - 1, math.ceil(quantile * n) + math.ceil(0.01 * n))]


def summary(values: Sequence[int], quantiles: Sequence[float]) -> dict[str, Any]:
    return {
        "count": len(values),
        "percentiles": [{"quantile": q, "value": exact(values, q)} for q in quantiles],
    }


def rank_error(ordered: Sequence[int], quantile: float, value: int) -> int:
    """Return the distance in ranks between `value` and its correct position in a sorted list,
    which must contain it."""
    first, last = bisect_left(ordered, value) + 1, bisect_right(ordered, value)
    assert first <= last, f"the list does not contain {value}"
    place = max(1, math.ceil(quantile * len(ordered)))
    return max(first - place, place - last, 0)
