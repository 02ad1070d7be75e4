"""Latencies from publish to finish: one nsqd's percentiles, and their combination across several
nsqds.

Pure functions. Times are in nanoseconds. Percentiles cannot be summed: for several nodes, the
result contains the count-weighted mean, the minimum and the maximum.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nsqcy.util import gojson


@dataclass(frozen=True)
class Percentile:
    """The time at a quantile. `value` is set only for a single node."""

    quantile: float
    average: float
    min: float
    max: float
    count: int
    value: float | None = None


@dataclass(frozen=True)
class Latency:
    """Latency statistics. `percentiles` is None if a node does not record latencies."""

    count: int = 0
    percentiles: tuple[Percentile, ...] | None = None


_PERCENTILE: gojson.Fields = {"quantile": (gojson.number, 0.0), "value": (gojson.number, 0.0)}
FIELDS: gojson.Fields = {
    "count": (gojson.int64, 0),
    "percentiles": (gojson.array(gojson.structure(_PERCENTILE), gojson.EMPTY), None),
}
# Shared, because nsqds without latencies may have tens of thousands of channels.
_SAID_OF_NOTHING = {"count": 0, "percentiles": None}
_NOTHING = Latency()
_read = gojson.alike(FIELDS)


def of_node(value: Any) -> Latency:
    """Parse a node's latencies."""
    if value == _SAID_OF_NOTHING:
        return _NOTHING
    count, percentiles = _read(value)
    if percentiles is None:
        return Latency(count)
    return Latency(
        count, tuple([_single(each["quantile"], each["value"], count) for each in percentiles])
    )


def _single(quantile: float, value: float, count: int) -> Percentile:
    return Percentile(quantile, value, value, value, count, value)


def merge(latencies: Iterable[Latency | None]) -> Latency:
    """Combine the latencies of several nodes. Quantiles are in order of first appearance."""
    count = 0
    merged: dict[float, Percentile] = {}
    for latency in latencies:
        if latency is None:
            continue
        count += latency.count
        for each in latency.percentiles or ():
            known = merged.get(each.quantile)
            merged[each.quantile] = _together(known, each) if known else _without_value(each)
    return Latency(count, tuple(merged.values()) or None)


def merge_one(latency: Latency | None) -> Latency:
    """Combine one node's latencies with nothing."""
    if latency is not None and latency.percentiles is None:
        return latency
    return merge((latency,)) if latency is not None else _NOTHING


def _without_value(each: Percentile) -> Percentile:
    average = each.average if each.count else 0.0
    return Percentile(each.quantile, average, each.min, each.max, each.count)


def _together(one: Percentile, other: Percentile) -> Percentile:
    count = one.count + other.count
    share = other.count / count if count else 0.0
    return Percentile(
        one.quantile,
        one.average * (1 - share) + other.average * share,
        min(one.min, other.min),
        max(one.max, other.max),
        count,
    )
