"""Describes curves: what a message costs while one quantity grows. Measures nothing.

A row of a curve has the value of the growing quantity in figures["x"], and the memory for each unit
of it, if that is known, in figures["bytes"].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

from loadtest.bench import chart
from loadtest.bench.markdown import table

CHART = "benchmarks-curves.svg"
TOLERANCE = 0.1  # smaller differences between exponents are noise
STEEP = 0.3  # for a single step: a factor of 2 if the quantity grows by a factor of 10
MANY = 100  # for smaller quantities, memory and CPU time per unit are imprecise
UNITS = ("µs of CPU per message", "messages per second", "MB of memory")

Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """`work`: the exponent with which the work for a message grows by definition. A message to
    10 channels is 10 copies, but a message to one of 10 topics is still one message."""

    title: str
    thing: str  # a unit of the quantity, in the singular; "": its memory is not shown
    about: str
    work: int = 0

    def point(self, x: int) -> str:
        """Return the name of a row."""
        return f"{self.title}: {x:,}"


WAITING = Curve(
    "messages waiting",
    "message",
    "Messages are published in batches of 200, wait in one channel, and are then consumed. CPU "
    "and rate cover publishing and consuming. Up to 100,000 messages, the work is repeated, and "
    "later rounds reuse the memory of the first round; with more messages, all memory is new. "
    "Beyond half of the free memory, nsqd writes messages to disk.",
)
TOPICS = Curve(
    "topics",
    "topic",
    "Every topic is created by a message. Then further messages are published to the topics in "
    "rotation, one by one in writes of 100; only these further messages are measured.",
)
CHANNELS = Curve(
    "channels of one topic",
    "channel",
    "Messages are published in batches of 200, and then consumed from every channel by a consumer "
    "of its own. CPU and rate cover publishing and consuming, per published message. Memory is "
    "measured while the channels are empty.",
    work=1,
)
CONNECTIONS = Curve(
    "connections",
    "connection",
    "The consumers, each with `RDY 1`, empty one channel together. The largest number of "
    "connections is limited by the number of files that a process may open on this machine. Memory "
    "is measured before the first message.",
)
WORKERS = Curve(
    "workers",
    "",
    "Producers and consumers use 16 topics, and nsqd has the given number of workers. "
    "The load generator shares the cores.",
)
SIZE = Curve(
    "bytes of a message",
    "",
    "Messages are published and consumed at once, in batches of at most 200 messages and "
    "100,000 bytes.",
    work=1,
)
CURVES = (WAITING, TOPICS, CHANNELS, CONNECTIONS, WORKERS, SIZE)

HEAD = """## Curves

In each curve, one quantity grows by orders of magnitude. Every point has its own nsqd with one
worker, the settings in the table at the top of this page, and 200-byte messages, unless the curve
says otherwise. The exponent
describes the growth between the ends of a curve: with 0, a message always costs the same; with 1,
its cost grows in proportion to the quantity. Growth is faster than linear if the exponent is at
least {tolerance} above that of the work itself, which is 1 for channels and bytes, and 0 otherwise.
The axes are logarithmic. Compare CPU per message; the rates include the load generator's
competition for the cores.

![CPU per message, rate and memory of each curve]({chart})
"""


def section(rows: Sequence[Row]) -> str:
    parts = [HEAD.format(chart=CHART, tolerance=TOLERANCE)]
    for curve, points in _by_curve(rows):
        parts.append(f"### {curve.title[0].upper()}{curve.title[1:]}\n")
        parts.append(f"{curve.about}\n\n{told(curve, points)}\n")
        parts.append(_table(curve, points))
    return "\n".join(parts) + "\n" if rows else ""


def picture(rows: Sequence[Row]) -> str:
    return chart.lines(
        [
            chart.Line(
                curve.title,
                [
                    (row["figures"]["x"], (row["daemon_us"], row["rate"], row["rss"] / 1e6))
                    for row in points
                ],
            )
            for curve, points in _by_curve(rows)
        ],
        UNITS,
    )


def told(curve: Curve, rows: Sequence[Row]) -> str:
    """Return what grows, and how."""
    points = [(row["figures"]["x"], row["daemon_us"]) for row in rows]
    (first, start), (last, end) = points[0], points[-1]
    if first == last:
        return "Only one point was measured."
    parts = [
        f"From {first:,.0f} to {last:,.0f} {curve.title}, CPU per message changes from "
        f"{start:,.2f} to {end:,.2f} µs, with an exponent of {exponent(points):.2f}: "
        f"{_verdict(exponent(points), curve.work)}."
    ]
    steepest = max(pairwise(points), key=exponent)
    if exponent(steepest) > max(exponent(points), curve.work) + STEEP:
        (low, _), (high, _) = steepest
        parts.append(
            f"The steepest step is from {low:,.0f} to {high:,.0f}, with an exponent of "
            f"{exponent(steepest):.2f}."
        )
    if curve.thing:
        each = rows[-1]["figures"]["bytes"]
        parts.append(f"At the end, a {curve.thing} takes {each:,.0f} bytes of memory.")
    return " ".join(parts)


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the exponent e of y = c·x^e through the first and the last point."""
    (x, y), (x2, y2) = points[0], points[-1]
    return log(y2 / y) / log(x2 / x)


def _verdict(found: float, work: int) -> str:
    if found >= work + TOLERANCE:
        return "total CPU time grows **faster than linearly**"
    if found > work - TOLERANCE:
        return "it grows linearly" if work else "it stays nearly constant"
    return "it grows more slowly than linearly" if work else "it falls"


def _table(curve: Curve, rows: Sequence[Row]) -> str:
    head = [curve.title, "class", "msg/s", "CPU µs/msg", "load µs/msg", "RSS MB"]
    head += [f"bytes per {curve.thing}"] * bool(curve.thing) + ["messages", "rounds", "note"]
    body = [
        [
            f"{row['figures']['x']:,.0f}",
            row["durability"],
            f"{row['rate']:,.0f}",
            f"{row['daemon_us']:.3f}",
            f"{row['load_us']:.3f}",
            f"{row['rss'] / 1e6:,.0f}",
            *([_each(row)] if curve.thing else []),
            f"{row['messages']:,}",
            str(row["rounds"]),
            row["note"],
        ]
        for row in rows
    ]
    return table(head, body)


def _each(row: Row) -> str:
    figures = row["figures"]
    return f"{figures['bytes']:,.0f}" if figures["x"] >= MANY else ""


def _by_curve(rows: Sequence[Row]) -> list[tuple[Curve, list[Row]]]:
    found = []
    for curve in CURVES:
        those = [row for row in rows if row["scenario"].startswith(f"{curve.title}: ")]
        if those:
            found.append((curve, those))
    return found
