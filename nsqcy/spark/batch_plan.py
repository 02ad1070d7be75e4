"""The next batch: its end in each log within the maxima, its ranges, and their division into tasks.

Pure. offsets.py determines a query's position; this module determines the end of its next batch.
"""

from nsqcy.spark.errors import OptionError
from nsqcy.spark.offsets import Offset, Positions, Range, Settled, View


def backlogs(
    pos: Positions, view: View, cap: Positions | None
) -> dict[tuple[str, str], list[Range]]:
    """Return the readable ranges of each shard, up to `cap`, oldest log first."""
    found: dict[tuple[str, str], list[Range]] = {}
    for shard in view.shards:
        for log in shard.logs:
            seq = pos.get(shard.topic, {}).get(log.log_id)
            end = log.next_seq
            if cap is not None:
                end = min(end, cap.get(shard.topic, {}).get(log.log_id, 0))
            if seq is not None and seq < end:
                part = Range(shard.topic, log.log_id, seq, end)
                found.setdefault((shard.topic, shard.address), []).append(part)
    return found


def shares(wanted: list[int], maximum: int) -> list[int]:
    """Divide `maximum` proportionally; each share is at least one if `maximum` is large enough."""
    total = sum(wanted)
    if total <= maximum:
        return list(wanted)
    found = [0] * len(wanted)
    by_size = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for index in by_size[:maximum]:
        found[index] = min(1, wanted[index])
    left = maximum - sum(found)
    rest = total - sum(found)
    for index in by_size:
        open_ = wanted[index] - found[index]
        share = open_ * left // rest if rest else 0
        found[index] += share
        left, rest = left - share, rest - open_
    return found


def advance(
    settled: Settled, view: View, maximum: int | None, max_bytes: int | None, cap: Positions | None
) -> tuple[Positions, int, bool]:
    """Return the positions after the next batch, its number of rows, and whether a maximum made it
    smaller."""
    pos = {topic: dict(logs) for topic, logs in settled.pos.items()}
    parts = backlogs(pos, view, cap)
    wanted = [sum(part.rows for part in each) for each in parts.values()]
    limit = sum(wanted)
    if maximum is not None:
        limit = min(limit, maximum)
    if max_bytes is not None:
        limit = min(limit, rows_of(max_bytes, view))
    for each, share in zip(parts.values(), shares(wanted, limit), strict=True):
        for part in each:
            taken = min(share, part.rows)
            pos[part.topic][part.log_id] += taken
            share -= taken
    return pos, limit, limit < sum(wanted)


def rows_of(size: int, view: View) -> int:
    """Return the number of rows that have about this number of bytes; at least one."""
    records = sum(shard.records for shard in view.shards)
    data = sum(shard.bytes for shard in view.shards)
    return max(1, size * records // data) if data else size


def ranges(start: Offset, end: Offset) -> list[Range]:
    """Return the ranges in the batch between two offsets."""
    found = []
    for topic, logs in sorted(end.pos.items()):
        for log_id, stop in sorted(logs.items()):
            begin = end.start.get(topic, {}).get(log_id)
            if begin is None:
                begin = start.pos.get(topic, {}).get(log_id)
            if begin is None:
                raise OptionError(
                    f"the checkpoint has no start position for log {log_id} of topic {topic!r}"
                )
            if begin < stop:
                found.append(Range(topic, log_id, begin, stop))
    return found


def split(parts: list[Range], pieces: int, minimum: int = 1) -> list[Range]:
    """Divide ranges into about this number of parts of at least `minimum` rows, in order."""
    total = sum(part.rows for part in parts)
    found = []
    for part in parts:
        count = max(1, min(round(pieces * part.rows / total), part.rows // minimum)) if total else 1
        edges = [part.start + part.rows * number // count for number in range(count + 1)]
        found += [
            Range(part.topic, part.log_id, edges[number], edges[number + 1])
            for number in range(count)
        ]
    return found
