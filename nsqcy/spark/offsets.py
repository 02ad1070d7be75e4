"""A query's position in each log, and the rows that it reads next. Uses no clock or sockets.

An offset contains the next seq to read for each topic and log_id. Its `start` contains the start
of the previous batch in logs that the last offset does not contain: all logs in the first batch,
whose start Spark does not save; a new log; a log whose rows retention removed. Its `lost` contains
the positions in logs that no nsqd has: if one of these logs returns, its nsqd was only down.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nsqcy.spark.errors import CopiedDisk, DataLoss, OptionError

VERSION = 1

Positions = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Log:
    """The available range of one log: seqs from `first_seq` up to, but not including,
    `next_seq`."""

    log_id: str
    first_seq: int
    next_seq: int
    ended: bool  # a newer log follows it


@dataclass(frozen=True)
class Shard:
    """A topic on one nsqd: its logs, oldest first."""

    topic: str
    address: str
    logs: tuple[Log, ...]
    bytes: int = 0
    kept: bool = True  # kept by a retention policy
    instance: str = ""  # the run of nsqd; unknown for earlier versions

    @property
    def records(self) -> int:
        return sum(log.next_seq - log.first_seq for log in self.logs)


@dataclass(frozen=True)
class View:
    """The state of all nsqds. `away`: nsqds that did not respond, by the topics that they may
    have."""

    shards: tuple[Shard, ...]
    away: Mapping[str, Collection[str]] = field(default_factory=dict)
    asked: tuple[str, ...] = ()  # addresses

    def find(self, topic: str, log_id: str) -> tuple[Shard, Log] | None:
        for shard in self.shards:
            for log in shard.logs:
                if shard.topic == topic and log.log_id == log_id:
                    return shard, log
        return None


@dataclass(frozen=True)
class Offset:
    pos: Positions
    start: Positions = field(default_factory=dict)
    init: bool = False  # the start of a query, which Spark does not save
    # The approximate number of tasks in the previous batch, and the minimum number of rows per
    # task: a retried batch has the same tasks on every driver.
    split: tuple[int, int] | None = None
    lost: Positions = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Encode with sorted keys, because Spark compares strings."""
        found: dict[str, Any] = {}
        if self.start:
            found["from"] = ordered(self.start)
        if self.init:
            found["init"] = 1
        if self.lost:
            found["lost"] = ordered(self.lost)
        found["pos"] = ordered(self.pos)
        if self.split:
            found["split"] = list(self.split)
        return found | {"v": VERSION}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> "Offset":
        version = value.get("v")
        if version != VERSION:
            raise OptionError(
                f"the checkpoint has offsets of version {version!r}; this nsqcy supports "
                f"version {VERSION}: use the nsqcy that wrote the checkpoint, or a new"
                " checkpointLocation"
            )
        try:
            pos, start = positions(value["pos"]), positions(value.get("from", {}))
            lost = positions(value.get("lost", {}))
            pieces, minimum = map(int, value.get("split") or (0, 0))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            raise OptionError(f"the checkpoint has an invalid offset: {value}") from None
        tasks = (pieces, minimum) if pieces else None
        return cls(pos, start, bool(value.get("init")), tasks, lost)


@dataclass(frozen=True)
class Range:
    """Rows to be read: from `start` up to, but not including, `end`."""

    topic: str
    log_id: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"topic {self.topic!r}, log {self.log_id}, seq {self.start} to {self.end}"


@dataclass(frozen=True)
class Loss:
    """Lost rows; `rows` is None if their number is unknown."""

    text: str
    rows: int | None = None

    def error(self) -> DataLoss:
        return DataLoss(f"{self.text}; set failOnDataLoss=false to continue without them")


@dataclass
class Settled:
    """Positions in the existing logs, and the changes that were necessary."""

    pos: Positions
    start: Positions = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    lost: Positions = field(default_factory=dict)


def distinct(shards: Iterable[Shard]) -> list[Shard]:
    """Return each log once. An nsqd with several addresses is read at the first one; the common
    past of an nsqd and another one on a copy of its disk is read from one of them. Raises
    CopiedDisk if two nsqds have a log in which they may have different rows."""
    found: list[Shard] = []
    for shard in sorted(shards, key=lambda shard: (shard.topic, shard.address)):
        known = [other for other in found if other.topic == shard.topic]
        if not any(is_same_nsqd(shard, other) for other in known):
            logs = (log for log in shard.logs if not any(has_past(o, log, shard) for o in known))
            found.append(replace(shard, logs=tuple(logs)))
    return found


def is_same_nsqd(one: Shard, other: Shard) -> bool:
    """Return whether two addresses belong to the same nsqd."""
    if one.instance and other.instance:
        return one.instance == other.instance
    return one.logs[-1].log_id == other.logs[-1].log_id


def has_past(shard: Shard, log: Log, at: Shard) -> bool:
    """Return whether a shard has all rows of this log of another nsqd."""
    for own in shard.logs:
        if own.log_id != log.log_id:
            continue
        if own.ended and log.ended and own.next_seq == log.next_seq:
            return True
        raise CopiedDisk(
            f"nsqd {shard.address} and nsqd {at.address} both have log {log.log_id} of topic "
            f"{shard.topic!r}: one of them runs on a copy of the other's data path, so their rows "
            "cannot be distinguished; stop one of them: a second nsqd needs its own --data-path, "
            "empty at first"
        )
    return False


def positions(value: Mapping[str, Mapping[str, int]]) -> Positions:
    """Parse an offset. Raises TypeError, ValueError, AttributeError or OverflowError if it is
    invalid."""
    return {
        str(topic): {str(log_id): int(seq) for log_id, seq in logs.items()}
        for topic, logs in value.items()
    }


def ordered(pos: Positions) -> Positions:
    return {topic: dict(sorted(logs.items())) for topic, logs in sorted(pos.items())}


def settle(offset: Offset, view: View, ends: Mapping[str, int], topics: Iterable[str]) -> Settled:
    """Adjust positions to the logs that exist now.

    `ends` contains the `next_seq` seen before: a log that was read to its end may disappear. The
    positions for an nsqd that is away stay unchanged.
    """
    settled = Settled({topic: {} for topic in topics})
    for topic, logs in offset.lost.items():
        for log_id, seq in logs.items():
            found = view.find(topic, log_id)
            if found is None:
                settled.lost.setdefault(topic, {})[log_id] = seq
                continue
            settled.start.setdefault(topic, {})[log_id] = seq
            settle_log(settled, *found, seq)
    for topic, logs in offset.pos.items():
        kept = settled.pos.setdefault(topic, {})
        for log_id, seq in logs.items():
            found = view.find(topic, log_id)
            if found is not None:
                settle_log(settled, *found, seq)
            elif view.away.get(topic):
                kept[log_id] = seq
            elif ends.get(log_id, seq + 1) > seq:
                settled.losses.append(vanished(topic, log_id, seq, view))
                settled.lost.setdefault(topic, {})[log_id] = seq
    for shard in view.shards:
        known = {*offset.pos.get(shard.topic, {}), *offset.lost.get(shard.topic, {})}
        for log in newer(shard.logs, known):
            settled.pos.setdefault(shard.topic, {})[log.log_id] = log.first_seq
            settled.start.setdefault(shard.topic, {})[log.log_id] = log.first_seq
    return settled


def newer(logs: tuple[Log, ...], known: Collection[str]) -> tuple[Log, ...]:
    """Return the logs after the last known one; the others have been read, or were omitted on
    purpose."""
    last = max((index for index, log in enumerate(logs) if log.log_id in known), default=-1)
    return logs[last + 1 :]


def settle_log(settled: Settled, shard: Shard, log: Log, seq: int) -> None:
    if log.ended and seq >= log.next_seq:
        return  # the whole log has been read
    moved = seq
    if seq < log.first_seq:
        moved = log.first_seq
        settled.losses.append(let_go(shard, log, seq, log.first_seq - seq))
    elif seq > log.next_seq:
        moved = log.next_seq
        settled.losses.append(too_short(shard, log, seq))
    settled.pos.setdefault(shard.topic, {})[log.log_id] = moved
    if moved != seq:
        settled.start.setdefault(shard.topic, {})[log.log_id] = moved


def fit(shard: Shard, log: Log, part: Range) -> tuple[Range, list[Loss]]:
    """The available part of a range, and the missing part."""
    losses = []
    if part.start < log.first_seq:
        gone = min(log.first_seq, part.end) - part.start
        losses.append(let_go(shard, log, part.start, gone))
    if max(part.start, part.end) > log.next_seq:
        losses.append(too_short(shard, log, max(part.start, part.end)))
    start, end = max(part.start, log.first_seq), min(part.end, log.next_seq)
    return Range(part.topic, part.log_id, start, max(start, end)), losses


def let_go(shard: Shard, log: Log, seq: int, rows: int) -> Loss:
    return Loss(
        f"rows are lost: topic {shard.topic!r}, log {log.log_id} on nsqd {shard.address}: "
        f"retention removed {rows} rows from seq {seq} on, and the first available seq is "
        f"{log.first_seq}",
        rows,
    )


def too_short(shard: Shard, log: Log, seq: int) -> Loss:
    return Loss(
        f"rows are lost: topic {shard.topic!r}, log {log.log_id} on nsqd {shard.address} had "
        f"rows up to seq {seq}, but now ends before {log.next_seq}; the log was restored from an "
        "older copy, or a crash truncated it"
    )


def vanished(topic: str, log_id: str, seq: int, view: View) -> Loss:
    there = [log.log_id for shard in view.shards if shard.topic == topic for log in shard.logs]
    what = f"the new log is {there[-1]}" if there else "the nsqds have no other log of this topic"
    return Loss(
        f"rows are lost: topic {topic!r}, log {log_id} is on none of the nsqds "
        f"{','.join(view.asked)}, so seq {seq} cannot be read; if the nsqd with the log is down, "
        f"start it; {what}"
    )
