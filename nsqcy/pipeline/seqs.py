"""The present and missing seqs of a log. Memory use grows with the number of gaps, not the number
of rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

Run = tuple[int, int]  # start, and end (exclusive)


@dataclass(frozen=True)
class Coverage:
    """The seqs of one log. The log is complete if there are no `gaps` or duplicate rows
    (`twice`)."""

    start: int
    end: int
    rows: int
    gaps: tuple[Run, ...]
    twice: tuple[Run, ...]

    @property
    def missing(self) -> int:
        return sum(end - start for start, end in self.gaps)


def runs(seqs: "pa.Array") -> tuple[list[Run], list[int]]:
    """Return the runs of these seqs, in ascending order, and every repeated seq."""
    import pyarrow.compute as pc

    if not len(seqs):
        return [], []
    ordered = seqs.take(pc.array_sort_indices(seqs))
    steps = pc.subtract(ordered[1:], ordered[:-1])
    again = ordered[1:].filter(pc.equal(steps, 0)).to_pylist()
    jumps = pc.indices_nonzero(pc.greater(steps, 1)).to_pylist()
    starts = [0, *(index + 1 for index in jumps)]
    ends = [*jumps, len(ordered) - 1]
    found = [
        (ordered[start].as_py(), ordered[end].as_py() + 1)
        for start, end in zip(starts, ends, strict=True)
    ]
    return found, again


def coverage(parts: Iterable[Run], again: Iterable[int] = ()) -> Coverage:
    """Combine all runs of a log, which may overlap; `again` are further repetitions."""
    ordered = sorted(parts)
    twice = sorted((seq, seq + 1) for seq in again)
    gaps: list[Run] = []
    rows = sum(end - start for start, end in ordered) + len(twice)
    behind = ordered[0][0]
    for start, end in ordered:
        if start > behind:
            gaps.append((behind, start))
        elif start < behind:
            twice.append((start, min(end, behind)))
        behind = max(behind, end)
    return Coverage(ordered[0][0], behind, rows, tuple(gaps), tuple(joined(twice)))


def joined(parts: Iterable[Run]) -> list[Run]:
    """Merge runs that touch or overlap."""
    found: list[Run] = []
    for start, end in sorted(parts):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def without(whole: Run, parts: Iterable[Run]) -> list[Run]:
    """Return the remainder of a run."""
    found: list[Run] = []
    start, end = whole
    for first, after in joined(parts):
        if first > start:
            found.append((start, min(first, end)))
        start = max(start, after)
        if start >= end:
            return found
    return [*found, (start, end)]
