"""Spark's checkpoint of a query: a directory with `metadata`, `offsets/N` and `commits/N`.

`offsets/N` is written before batch N and contains the end of the batch; `commits/N` is written
after the batch. The last files may be missing or damaged, for example after a power failure. Hadoop
keeps the checksum of each file, `.N.crc`, beside it: `crc\0`, then the chunk size and the CRC-32 of
each chunk, as big-endian 32-bit numbers.
"""

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nsqcy.spark.batch_plan import ranges
from nsqcy.spark.errors import OptionError
from nsqcy.spark.offsets import Offset, Range
from nsqcy.spark.offsets import Positions as Positions

CRC = b"crc\0"
RECENT = 50  # batches; Spark removes files of older ones while it runs


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
    pos = offset(path, committed).pos if committed >= 0 else {}
    return Checkpoint(planned, committed, pos)


def check(path: Path) -> None:
    """Check the files from which Spark would continue. Raises Unreadable."""
    found = read(path)
    for number in range(max(0, found.planned - 1), found.planned + 1):
        offset(path, number)
    # Spark repeats the last planned batch unless its commit exists, so it reads only that one.
    texts = {path / "metadata": 0, path / "commits" / str(found.committed): 1}
    for file, line in texts.items():
        try:
            json.loads(file.read_text().splitlines()[line])
        except FileNotFoundError:
            continue
        except (IndexError, RecursionError, ValueError):
            raise Unreadable(f"{file} is {'cut off' if file.stat().st_size else 'empty'}") from None
        check_sums(file)


def rows(path: Path, number: int) -> list[Range]:
    """Return the rows of a planned batch. Raises Unreadable."""
    start = offset(path, number - 1) if number else Offset({})
    try:
        return ranges(start, offset(path, number))
    except OptionError as error:
        raise Unreadable(f"{path}: {error}") from None


def committed_rows(path: Path) -> list[Range]:
    """Return the rows of the last committed batches, and an empty range at the end of each log.
    Raises Unreadable."""
    found = read(path)
    parts = [
        Range(topic, log_id, end, end)
        for topic, logs in found.pos.items()
        for log_id, end in logs.items()
    ]
    there = numbers(path / "offsets")
    for number in range(max(0, found.committed - RECENT), found.committed + 1):
        if number in there and (not number or number - 1 in there):
            parts += rows(path, number)
    return parts


def advance(pos: Positions, parts: Iterable[Range]) -> None:
    """Move positions to the ends of parts. Positions never move back, although a part of a repeated
    batch may end before them."""
    for part in parts:
        logs = pos.setdefault(part.topic, {})
        logs[part.log_id] = max(logs.get(part.log_id, 0), part.end)


def last(folder: Path) -> int:
    return max(numbers(folder), default=-1)


def numbers(folder: Path) -> set[int]:
    try:
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise Unreadable(f"{folder}: {error.strerror}") from None
    return {int(name) for name in names if name.isdecimal()}


def offset(path: Path, number: int) -> Offset:
    """Return the end of a batch of a query with one source."""
    file = path / "offsets" / str(number)
    try:
        lines = file.read_text().splitlines()
        if lines and (lines[0] != "v1" or len(lines) > 3):
            raise Unreadable(f"{file} is not an offset of a query with one source")
        found = Offset.parse(json.loads(lines[2]))
        check_sums(file)
        return found
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror}") from None
    except (AttributeError, LookupError, OptionError, RecursionError, TypeError, ValueError):
        raise Unreadable(f"{file} has no offset of format nsq") from None


def check_sums(file: Path) -> None:
    """Compare a file with its checksum, if there is one. Raises Unreadable."""
    try:
        sums = file.with_name(f".{file.name}.crc").read_bytes()
    except FileNotFoundError:
        return
    size = int.from_bytes(sums[4:8])
    if sums[:4] != CRC or not size:
        return  # Spark also ignores it
    data = file.read_bytes()
    pieces = [zlib.crc32(data[at : at + size]) for at in range(0, len(data), size)]
    if sums[8:] != struct.pack(f">{len(pieces)}I", *pieces):
        raise Unreadable(f"{file} is damaged: it does not match its checksum in .{file.name}.crc")
