"""Counts and percentiles per minute, mergeable with later rows, and their Parquet files.

    topics/2026-01-31.parquet, channels/2026-01-31.parquet     a row for each minute of that day
    _rollup/state.json                                         minutes that are not closed
    _rollup/days.json                                          checksums of the daily files
    _rollup/checkpoint/                                        Spark's

A minute is *closed* when its log has advanced beyond it by more than the watermark. A row that
arrives later is *late*: the minute gets a separate row for the late rows of each batch. Daily files
are written before the state, each atomically; `undo` removes a batch's rows if the state does not
contain the batch. The state contains the position in each log after the last counted row.

Percentiles are bucket means, with 16 buckets per doubling: within 4.4 % of the value, and exact if
all values in a bucket are equal.
"""

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqcy.pipeline import state_files
from nsqcy.pipeline.checkpoint import Positions
from nsqcy.pipeline.state_files import Damaged as Damaged
from nsqcy.spark.offsets import Range, positions

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
HIDDEN = "_rollup"
DAY = 1440  # minutes
BUCKETS = 16  # buckets per doubling of the value
PUBLISH, FINISH = "publish", "finish"
SIZE, AGE, IN_FLIGHT, ATTEMPTS = "size", "age", "in_flight", "attempts"
MILLISECOND = 1_000_000
KINDS = ("topics", "channels")
STATE, DAYS = "the state of a rollup", "a rollup's list of checksums"

Checksums = dict[str, list[tuple[int, int]]]  # sizes and CRC-32 by path


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


Minute = dict[str, Values]  # counts by event and measure: "finish age"


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
    pos: Positions = field(default_factory=dict)  # the seq after the last counted row of each log

    def missing(self, planned: Iterable[Range]) -> list[Range]:
        """Return the rows that have not been counted."""
        found = []
        for part in planned:
            start = max(part.start, self.pos.get(part.topic, {}).get(part.log_id, 0))
            if start < part.end:
                found.append(Range(part.topic, part.log_id, start, part.end))
        return found


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
    """Return the row as a daily file contains it."""
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
    """Write the files for the days that have changed. Raises Damaged."""
    known = checksums(root)
    partials = []
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
        path = root / kind / f"{day}.parquet"
        before = check_day(root, path, known) if path.exists() else None
        partials.append((path, write_partial(path, kind, rows, step.number)))
        name = str(path.relative_to(root))
        known[name] = [*([before] if before else []), state_files.checksum(partials[-1][1])]
    state_files.write_json(days_path(root), {"v": VERSION, "files": known})
    for path, partial in partials:
        state_files.replace(path, partial)


def write_partial(path: Path, kind: str, rows: list[dict[str, Any]], number: int) -> Path:
    """Write these rows and the closed minutes of earlier batches to a file next to the path."""
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
    return partial


def undo(root: Path, state: State) -> None:
    """Remove the rows of a batch that the state does not contain: a killed job wrote them, and the
    batch may not be repeated. Raises Damaged."""
    step = Step(state.number + 1)
    known = checksums(root)
    for kind in KINDS:
        for path in files(root, kind):
            check_day(root, path, known)
            last = last_batch(path)
            if last > step.number:  # a killed job is at most one batch ahead
                raise Damaged(
                    f"{path} has minutes of batch {last}, but {state_path(root)} is missing or "
                    f"ends with batch {state.number}; restore a newer version, or use a "
                    "different --root"
                )
            if last > state.number:
                step.days.add((kind, path.stem))
    if step.days:
        write_days(root, state, step)


def last_batch(path: Path) -> int:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    return pc.max(pq.read_table(path, columns=["batch"])["batch"]).as_py() or 0


# --- checksums --------------------------------------------------------------------------------


def days_path(root: Path) -> Path:
    return root / HIDDEN / "days.json"


def checksums(root: Path) -> Checksums:
    """Return the possible sizes and checksums of each file. There are two after a crash, because
    they are saved before the file. Raises Damaged."""
    try:
        found = state_files.read_json(days_path(root), DAYS, VERSION)
        return {name: [(size, crc) for size, crc in each] for name, each in found["files"].items()}
    except FileNotFoundError:
        return {}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Damaged(f"{days_path(root)} is not {DAYS}") from None


def check_day(root: Path, path: Path, known: Checksums) -> tuple[int, int]:
    """Return the size and checksum of a daily file. Raises Damaged if it has changed."""
    found = state_files.checksum(path)
    if found not in known.get(str(path.relative_to(root)), [found]):
        raise Damaged(
            f"{path} has changed: its checksum is {found[1]:08x}; restore it from a backup, or "
            "remove it and lose its minutes"
        )
    return found


# --- the state --------------------------------------------------------------------------------


def state_path(root: Path) -> Path:
    return root / HIDDEN / "state.json"


def load(root: Path) -> State:
    """Read the state; an empty one if there is none. Raises Damaged."""
    path = state_path(root)
    try:
        found = state_files.read_json(path, STATE, VERSION)
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
            positions(found.get("pos", {})),
        )
    except FileNotFoundError:
        return State()
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Damaged(f"{path} is not {STATE}") from None


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
        "pos": state.pos,
    }
    state_files.write_json(state_path(root), found)


def files(root: Path, kind: str) -> Iterator[Path]:
    """Return daily files in time order."""
    yield from sorted((root / kind).glob("*.parquet"))
