"""Quantiles, slow and obvious: the twin of nsqcy.base.quantile."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any


def exact(values: Sequence[int], quantile: float) -> int:
    """What NSQ says of a list short enough to be kept whole: a little above the true place."""
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
    """How many places `value` is from where it should be in a sorted list; it must be in there."""
    first, last = bisect_left(ordered, value) + 1, bisect_right(ordered, value)
    assert first <= last, f"{value} was never seen"
    place = max(1, math.ceil(quantile * len(ordered)))
    return max(first - place, place - last, 0)
