"""What of a log's dense seqs is there, and what is not. Memory goes with the number of gaps, not
with that of rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

Run = tuple[int, int]  # from, to before


@dataclass(frozen=True)
class Coverage:
    """Of one log. Dense if there are neither `gaps` nor rows more than once, `twice`."""

    start: int
    end: int
    rows: int
    gaps: tuple[Run, ...]
    twice: tuple[Run, ...]

    @property
    def missing(self) -> int:
        return sum(end - start for start, end in self.gaps)


def runs(seqs: "pa.Array") -> tuple[list[Run], list[int]]:
    """The runs of these, ascending, and those that occur again, once for each time."""
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
    """Of all runs of a log, which may overlap; `again` are rows beyond those."""
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
    """Runs that touch or overlap as one."""
    found: list[Run] = []
    for start, end in sorted(parts):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
