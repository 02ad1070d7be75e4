"""Spark's checkpoint of a query: a directory with `offsets/N` and `commits/N`.

`offsets/N` is written before batch N and contains the end of the batch; `commits/N` is written
after the batch.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from nsqcy.spark import offsets
from nsqcy.spark.offsets import Positions as Positions


class Unreadable(Exception):
    """A checkpoint is invalid."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a checkpoint: `committed` is the last batch that was written, -1 for none; `pos` is
    its end."""

    planned: int
    committed: int
    pos: Positions


def read(path: Path) -> Checkpoint:
    """Read a checkpoint. A missing or empty directory belongs to a query that has not begun. Raises
    Unreadable."""
    planned, committed = last(path / "offsets"), last(path / "commits")
    pos = ends(path / "offsets" / str(committed)) if committed >= 0 else {}
    return Checkpoint(planned, committed, pos)


def last(folder: Path) -> int:
    try:
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise Unreadable(f"{folder}: {error.strerror}") from None
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def ends(path: Path) -> Positions:
    """Return the positions in an offset of a query with one source."""
    try:
        lines = path.read_text().splitlines()
        if lines[0] != "v1" or len(lines) != 3:
            raise Unreadable(f"{path} is not an offset of a query with one source")
        return offsets.positions(json.loads(lines[2])["pos"])
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise Unreadable(f"{path} has no offset of format nsq") from None
