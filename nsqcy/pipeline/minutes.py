"""Counts and percentiles per minute, mergeable with later rows, and their Parquet files.

    topics/2026-01-31.parquet, channels/2026-01-31.parquet     a row for each minute of that day
    _rollup/state.json                                         minutes that are not closed
    _rollup/checkpoint/                                        Spark's

A minute is *closed* when its log has advanced beyond it by more than the watermark. A row that
arrives later is *late*: the minute gets a separate row for the late rows of each batch. Daily files
are written before the state, each atomically, and a retried batch writes the same data again.

Percentiles are bucket means, with 16 buckets per doubling: within 4.4 % of the value, and exact if
all values in a bucket are equal.
"""

import datetime
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqcy.pipeline.manifests import sync_folder

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
HIDDEN = "_rollup"
DAY = 1440  # minutes
BUCKETS = 16  # buckets per doubling of the value
PUBLISH, FINISH = "publish", "finish"
SIZE, AGE, IN_FLIGHT, ATTEMPTS = "size", "age", "in_flight", "attempts"
MILLISECOND = 1_000_000


class Damaged(Exception):
    """A state file is invalid."""


class Key(NamedTuple):
    """The subject of a row; `channel` is empty for a topic."""

    topic: str
    channel: str
    nsqd: str
    minute: int  # since 1970

    @property
    def kind(self) -> str:
        return "channels" if self.channel else "topics"

    @property
    def day(self) -> str:
        start = datetime.datetime.fromtimestamp(self.minute * 60, datetime.UTC)
        return start.strftime("%Y-%m-%d")

    @property
    def clock(self) -> str:
        """Return the log that the row was read from; the log's time closes the minute."""
        return f"{'' if self.channel else self.topic} {self.nsqd}"


class Count(NamedTuple):
    """A group of rows, as counted by Spark."""

    key: Key
    kind: str  # kind of the event
    measure: str
    bucket: int
    rows: int
    total: int  # sum of the values; `low` and `high` are their bounds
    low: int
    high: int
    last: int  # second


# --- distributions ----------------------------------------------------------------------------


@dataclass
class Values:
    """A distribution: the number of values per bucket, and their sum."""

    buckets: dict[int, tuple[int, int]] = field(default_factory=dict)
    low: int = 0
    high: int = 0

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.buckets.values())

    @property
    def total(self) -> int:
        return sum(total for _, total in self.buckets.values())

    def add(self, bucket: int, rows: int, total: int, low: int, high: int) -> None:
        before, sum_before = self.buckets.get(bucket, (0, 0))
        self.low = min(self.low, low) if self.buckets else low
        self.high = max(self.high, high)
        self.buckets[bucket] = before + rows, sum_before + total

    def percentile(self, share: float) -> float | None:
        """Return a quantile; None if there are no values."""
        wanted = share * self.rows
        for _, (rows, total) in sorted(self.buckets.items()):
            wanted -= rows
            if wanted <= 0:
                return total / rows
        return None

    def between(self, minimum: float, maximum: float) -> int:
        """Return the number of values by the mean of each bucket."""
        return sum(r for r, total in self.buckets.values() if minimum <= total / r <= maximum)

    def as_json(self) -> list[Any]:
        return [self.low, self.high, sorted((b, *each) for b, each in self.buckets.items())]

    @classmethod
    def parse(cls, found: list[Any]) -> "Values":
        low, high, buckets = found
        return cls({bucket: (rows, total) for bucket, rows, total in buckets}, low, high)


Minute = dict[str, Values]  # by event and measure: "finish age"


def values(minute: Minute, kind: str, measure: str) -> Values:
    return minute.get(f"{kind} {measure}", Values())


def add(minutes: dict[Key, Minute], count: Count) -> None:
    found = minutes.setdefault(count.key, {}).setdefault(f"{count.kind} {count.measure}", Values())
    found.add(count.bucket, count.rows, count.total, count.low, count.high)


# --- a batch ----------------------------------------------------------------------------------


@dataclass
class State:
    """State after a batch; `number` counts the batches that had rows."""

    query: str = ""
    batch: int = -1
    number: int = 0
    late: int = 0  # late rows in all batches
    clocks: dict[str, int] = field(default_factory=dict)  # the last second of each log
    open: dict[Key, Minute] = field(default_factory=dict)


@dataclass
class Step:
    """Changes made by a batch: rows for files, by kind and day."""

    number: int
    days: set[tuple[str, str]] = field(default_factory=set)
    closed: dict[Key, Minute] = field(default_factory=dict)
    late: dict[Key, Minute] = field(default_factory=dict)
    late_rows: int = 0


def advance(state: State, counts: Iterable[Count], watermark: float) -> Step:
    """Merge the rows of a batch into the state, and close the minutes that have ended."""
    state.number += 1
    step = Step(state.number)
    clocks = dict(state.clocks)
    for count in counts:
        key = count.key
        clocks[key.clock] = max(clocks.get(key.clock, 0), count.last)
        late = is_over(key, state.clocks.get(key.clock, 0), watermark)
        add(step.late if late else state.open, count)
        if late and count.measure in (SIZE, ATTEMPTS):  # the columns of every row
            step.late_rows += count.rows
        step.days.add((key.kind, key.day))
    state.clocks = clocks
    state.late += step.late_rows
    for key in [key for key in state.open if is_over(key, clocks.get(key.clock, 0), watermark)]:
        step.closed[key] = state.open.pop(key)
        step.days.add((key.kind, key.day))
    return step


def is_over(key: Key, clock: int, watermark: float) -> bool:
    return (key.minute + 1) * 60 + watermark <= clock


# --- rows in files ----------------------------------------------------------------------------


def row(key: Key, minute: Minute, number: int, *, closed: bool, late: bool) -> dict[str, Any]:
    """Return the row in the form of a file."""
    start = datetime.datetime.fromtimestamp(key.minute * 60, datetime.UTC)
    head = {"topic": key.topic, "nsqd": key.nsqd, "minute": start}
    tail = {"late": late, "closed": closed, "batch": number}
    if not key.channel:
        return head | of_topic(minute) | tail
    return head | {"channel": key.channel} | of_channel(minute) | tail


def of_topic(minute: Minute) -> dict[str, Any]:
    sizes = values(minute, PUBLISH, SIZE)
    return {
        "count": sizes.rows,
        "bytes": sizes.total,
        "rate": sizes.rows / 60,
        "size_min": sizes.low,
        "size_p50": sizes.percentile(0.5),
        "size_p95": sizes.percentile(0.95),
        "size_p99": sizes.percentile(0.99),
        "size_max": sizes.high,
    }


def of_channel(minute: Minute) -> dict[str, Any]:
    def events(kind: str) -> int:
        return values(minute, kind, ATTEMPTS).rows

    found: dict[str, Any] = {
        "finished": events(FINISH),
        "requeued": events("requeue"),
        "timed_out": events("timeout"),
        "dead_lettered": events("dead-letter"),
        "expired": events("expired"),
    }
    for name, measure in (("latency", AGE), ("in_flight", IN_FLIGHT)):
        times = values(minute, FINISH, measure)
        for percent in (50, 95, 99):
            time = times.percentile(percent / 100)
            found[f"{name}_p{percent}_ms"] = None if time is None else time / MILLISECOND
    attempts = values(minute, FINISH, ATTEMPTS)
    return found | {
        "attempts_1": attempts.between(0, 1),
        "attempts_2": attempts.between(1.01, 2),
        "attempts_3_to_5": attempts.between(2.01, 5),
        "attempts_more": attempts.between(5.01, float("inf")),
    }


def schema(kind: str) -> "pa.Schema":
    import pyarrow as pa

    sample = of_channel({}) if kind == "channels" else of_topic({})
    numbers = {
        name: pa.int64() if isinstance(value, int) and name != "rate" else pa.float64()
        for name, value in sample.items()
    }
    names = ("topic", "channel", "nsqd") if kind == "channels" else ("topic", "nsqd")
    return pa.schema(
        {name: pa.string() for name in names}
        | {"minute": pa.timestamp("us", "UTC")}
        | numbers
        | {"late": pa.bool_(), "closed": pa.bool_(), "batch": pa.int64()}
    )


def write_days(root: Path, state: State, step: Step) -> None:
    """Write the files for the days that have changed."""
    for kind, day in sorted(step.days):
        rows = [
            row(key, minute, step.number, closed=closed, late=late)
            for minutes, closed, late in (
                (step.closed, True, False),
                (step.late, True, True),
                (state.open, False, False),
            )
            for key, minute in sorted(minutes.items())
            if (key.kind, key.day) == (kind, day)
        ]
        write_day(root / kind / f"{day}.parquet", kind, rows, step.number)


def write_day(path: Path, kind: str, rows: list[dict[str, Any]], number: int) -> None:
    """Write these rows and the closed minutes of earlier batches, atomically."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found = pa.Table.from_pylist(rows, schema=schema(kind))
    if path.exists():
        before = pq.read_table(path)
        kept = pc.and_(before["closed"], pc.less(before["batch"], number))
        found = pa.concat_tables([before.filter(kept), found])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pq.write_table(found.sort_by([("minute", "ascending")]), partial, compression="zstd")
    replace_by(path, partial)


def replace_by(path: Path, partial: Path) -> None:
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)


# --- the state --------------------------------------------------------------------------------


def state_path(root: Path) -> Path:
    return root / HIDDEN / "state.json"


def load(root: Path) -> State:
    path = state_path(root)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return State()
    try:
        found = json.loads(text)
        if found["v"] != VERSION:
            raise Damaged(
                f"{path}: version {found['v']!r}, but this nsqcy supports version {VERSION}"
            )
        return State(
            found["query"],
            found["batch"],
            found["number"],
            found["late"],
            found["clocks"],
            {
                Key(*key): {name: Values.parse(each) for name, each in minute.items()}
                for key, minute in found["open"]
            },
        )
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"{path} is not the state of a rollup") from None


def save(root: Path, state: State) -> None:
    found = {
        "v": VERSION,
        "query": state.query,
        "batch": state.batch,
        "number": state.number,
        "late": state.late,
        "clocks": state.clocks,
        "open": [
            (key, {name: each.as_json() for name, each in minute.items()})
            for key, minute in state.open.items()
        ],
    }
    path = state_path(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found))
    replace_by(path, partial)


def files(root: Path, kind: str) -> Iterator[Path]:
    """Return rows in time order."""
    yield from sorted((root / kind).glob("*.parquet"))
