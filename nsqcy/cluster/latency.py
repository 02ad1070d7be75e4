"""Times from publish to finish: percentiles of one nsqd, and what can be said of several together.

Pure. Times are nanoseconds. Percentiles cannot be added: of several nodes the mean, weighted by
their counts, the least and the greatest are known, and these are what a sum has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nsqcy.util import gojson


@dataclass(frozen=True)
class Percentile:
    """The time of a quantile; `value` only of a single node, where it is all there is."""

    quantile: float
    average: float
    min: float
    max: float
    count: int
    value: float | None = None


@dataclass(frozen=True)
class Latency:
    """`percentiles` are None where a node keeps no times."""

    count: int = 0
    percentiles: tuple[Percentile, ...] | None = None


_PERCENTILE: gojson.Fields = {"quantile": (gojson.number, 0.0), "value": (gojson.number, 0.0)}
FIELDS: gojson.Fields = {
    "count": (gojson.int64, 0),
    "percentiles": (gojson.array(gojson.structure(_PERCENTILE), gojson.EMPTY), None),
}
# Of nsqds that keep no times tens of thousands say so.
_SAID_OF_NOTHING = {"count": 0, "percentiles": None}
_NOTHING = Latency()
_read = gojson.alike(FIELDS)


def of_node(value: Any) -> Latency:
    """Reads what a node says of times."""
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
    """Of several nodes together; quantiles in the order in which they first appear."""
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
