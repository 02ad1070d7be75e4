"""Contents of an archive, as recorded by its jobs: a manifest for each batch.

    topic=orders/dt=2026-01-31/hr=07/batch=1f3c9a2e-000000012/part-*.parquet   rows
    _archive/manifests/1f3c9a2e-000000012.json                               of that batch
    _archive/checkpoint/                                                     Spark's
    _archive/lock, compact.lock                                              held by the writer
    _archive/writing/1f3c9a2e-000000012/                                     a batch not in place
    _archive/compacting/                                                     unfinished compactions

A batch belongs to the archive once its manifest exists. Its files are first written where readers
do not look, then its manifest is written, and then the files are moved into place. A reader of the
files therefore never sees rows that the job may write again after a crash. Each file contains rows
from one log. A compaction is a manifest that `replaces` files of other manifests. It takes effect
once its files are in place, so a crash leaves either the old files or the new ones.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqcy.pipeline import seqs, state_files
from nsqcy.pipeline.checkpoint import Positions
from nsqcy.pipeline.seqs import Run
from nsqcy.pipeline.state_files import Damaged as Damaged
from nsqcy.spark.offsets import Range

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

VERSION = 1
READERS = 4
TRIES = 3  # attempts to read files that a compaction may be replacing
HIDDEN = "_archive"
WRITING, COMPACTING = "lock", "compact.lock"  # locks, each held by one writer at a time
UNPLACED, STAGED = "writing", "compacting"
HOLDERS = {WRITING: ("archive", "orphans"), COMPACTING: ("compact", "verify", "replay", "orphans")}


class Busy(Exception):
    """Another process is using this archive."""


@dataclass(frozen=True, order=True)
class File:
    """Rows of one log: `count` rows, with seqs from `start` up to, but not including, `end`."""

    path: str  # path relative to the root
    topic: str
    log_id: str
    start: int
    end: int
    count: int
    size: int
    crc: int  # CRC-32 of the file


@dataclass(frozen=True)
class Manifest:
    name: str
    files: tuple[File, ...]
    replaces: tuple[str, ...] = ()  # paths
    planned: tuple[Range, ...] = ()  # rows of the batch, including those that earlier batches wrote

    @property
    def rows(self) -> int:
        return sum(file.count for file in self.files)


@dataclass
class Contents:
    """Contents of an archive: files by path, and the places where errors were found."""

    files: dict[str, File] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)  # valid ones
    unfinished: list[Manifest] = field(default_factory=list)  # compactions that did not take effect
    moving: list[Manifest] = field(default_factory=list)  # batches that are not completely in place


# --- names ------------------------------------------------------------------------------------


def hidden(root: Path, name: str) -> Path:
    return root / HIDDEN / name


def manifest_path(root: Path, name: str) -> Path:
    return hidden(root, "manifests") / f"{name}.json"


def batch_name(query_id: str, number: int) -> str:
    """Return the name of a query, so that queries over one root do not overwrite each other."""
    return f"{query_id.replace('-', '')[:8]}-{number:09}"


def unused_name(root: Path, query_id: str, number: int) -> str:
    """Return the name of a batch, or a similar name if an earlier batch has that name for other
    rows."""
    name = wanted = batch_name(query_id, number)
    again = 1
    while manifest_path(root, name).exists():
        again += 1
        name = f"{wanted}-{again}"
    return name


def batch_of(path: str) -> str:
    """Return the batch of a file, given its directory."""
    return Path(path).parent.name.removeprefix("batch=")


def hour_of(path: str) -> str:
    """Return `topic=T/dt=D/hr=H` of a file."""
    return str(Path(path).parents[1])


def topic_of(path: str) -> str:
    return Path(path).parts[0].removeprefix("topic=")


def on_disk(root: Path, hour: str = "topic=*/dt=*/hr=*") -> set[str]:
    """Return the data files under the root, as paths relative to it."""
    return {
        str(path.relative_to(root))
        for path in root.glob(f"{hour}/batch=*/*.parquet")
        if not path.name.startswith((".", "_"))
    }


# --- a file -----------------------------------------------------------------------------------


def describe(root: Path, path: str) -> File:
    """Describe a file and sync it to disk."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(root / path)
    log_id, start, last = bounds(metadata, path)
    size, crc = state_files.checksum(root / path, sync=True)
    return File(path, topic_of(path), log_id, start, last + 1, metadata.num_rows, size, crc)


def bounds(metadata: "pq.FileMetaData", path: str) -> tuple[str, int, int]:
    """Read the log, the first and the last seq from the footer only."""
    ids: set[str] = set()
    seqs: list[int] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        found = {column.path_in_schema: column.statistics for column in columns}
        ids |= {found["log_id"].min, found["log_id"].max}
        seqs += [found["seq"].min, found["seq"].max]
    if len(ids) != 1:
        raise Damaged(
            f"{path}: rows of {len(ids)} logs, but each file must have rows of a single log"
        )
    return ids.pop(), min(seqs), max(seqs)


def read_seqs(root: Path, path: str) -> tuple[str, "pa.Array"]:
    """Return the log of a file, and the seq of each row. Raises Damaged."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # Read with page checksums, which matter if no manifest contains a checksum of the file.
    with pq.ParquetFile(root / path, page_checksum_verification=True) as parquet:
        log_id, first, last = bounds(parquet.metadata, path)
        found = parquet.read(columns=["log_id", "seq"])
    column = found.column("seq").combine_chunks()
    ids, limits = pc.unique(found["log_id"]).to_pylist(), pc.min_max(column).as_py()
    if (ids, limits) != ([log_id], {"min": first, "max": last}):
        raise Damaged(f"{path}: the rows do not match the footer")
    return log_id, column


def runs(root: Path, file: File) -> list[Run]:
    """Return the sequence numbers in a file. Reads the file only if other files may have rows in
    between. Raises Damaged, FileNotFoundError."""
    if file.count == file.end - file.start:
        return [(file.start, file.end)]
    if found := difference(root, file):
        raise Damaged(found)
    return seqs.runs(read_seqs(root, file.path)[1])[0]


def difference(root: Path, file: File) -> str | None:
    """Return how a file differs from its manifest; None if it matches."""
    size, crc = state_files.checksum(root / file.path)
    if (size, crc) == (file.size, file.crc):
        return None
    return (
        f"{file.path} has changed: its checksum is {crc:08x}, but the manifest has {file.crc:08x}"
    )


def check(root: Path, file: File) -> None:
    """Check a file before its rows are used. Raises Damaged."""
    try:
        found = difference(root, file)
    except FileNotFoundError:
        found = f"{file.path} is missing"
    if found:
        raise Damaged(f"{found}; run nsqcy-pipeline verify")


def overlap(file: File, part: Range) -> bool:
    """Return whether a file may have some rows of a part."""
    is_log = (file.topic, file.log_id) == (part.topic, part.log_id)
    return is_log and file.start < part.end and part.start < file.end


# --- manifests --------------------------------------------------------------------------------


def write(root: Path, manifest: Manifest) -> None:
    """Write a manifest atomically. Its files must already be on disk."""
    state_files.write_json(manifest_path(root, manifest.name), as_json(manifest))


def as_json(manifest: Manifest) -> dict[str, Any]:
    files = []
    for file in manifest.files:
        row = asdict(file)
        row["from"], row["to"] = row.pop("start"), row.pop("end")
        files.append(row)
    found: dict[str, Any] = {"v": VERSION, "batch": manifest.name, "files": files}
    if manifest.replaces:
        found["replaces"] = list(manifest.replaces)
    if manifest.planned:
        found["planned"] = [
            [part.topic, part.log_id, part.start, part.end] for part in manifest.planned
        ]
    return found


def read_one(path: Path) -> Manifest:
    """Read a manifest. Raises Damaged."""
    what = "a manifest"
    found = state_files.read_json(path, what, VERSION)
    try:
        files = tuple(map(_file, found["files"]))
        replaces = tuple(map(_text, found.get("replaces", ())))
        planned = tuple(_range(*part) for part in found.get("planned", ()))
        return Manifest(_text(found["batch"]), files, replaces, planned)
    except (KeyError, TypeError):
        raise Damaged(f"{path} is not {what}") from None


def _file(row: dict[str, Any]) -> File:
    return File(
        path=_text(row["path"]),
        topic=_text(row["topic"]),
        log_id=_text(row["log_id"]),
        start=_number(row["from"]),
        end=_number(row["to"]),
        count=_number(row["count"]),
        size=_number(row["size"]),
        crc=_number(row["crc"]),
    )


def _range(topic: Any, log_id: Any, start: Any, end: Any) -> Range:
    return Range(_text(topic), _text(log_id), _number(start), _number(end))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not a whole number")
    return value


def read_all(root: Path) -> list[Manifest]:
    """Return the manifests in name order."""
    return list(map(read_one, sorted(hidden(root, "manifests").glob("*.json"))))


def read(root: Path) -> Contents:
    """Read the contents of the archive."""
    found = Contents()
    gone: set[str] = set()
    every = read_all(root)
    moving = unplaced(root)  # after the manifests, so missing batches are in place
    for manifest in every:
        if manifest.replaces and not happened(root, manifest):
            found.unfinished.append(manifest)
            continue
        if manifest.name in moving:
            found.moving.append(manifest)
            continue
        found.manifests.append(manifest)
        gone |= set(manifest.replaces)
    for manifest in found.manifests:
        found.files |= {file.path: file for file in manifest.files if file.path not in gone}
    return found


def happened(root: Path, manifest: Manifest) -> bool:
    """Return whether a compaction took effect.

    It did not if the files that it replaces exist and its own files do not. If neither set of files
    exists, a later compaction has replaced its files, or they are missing.
    """
    new = (root / file.path for file in manifest.files)
    old = (root / path for path in manifest.replaces)
    return any(path.exists() for path in new) or not any(path.exists() for path in old)


def positions(contents: Contents) -> Positions:
    """Return the end of each log: the seq after its last row."""
    found: Positions = {}
    for file in contents.files.values():
        logs = found.setdefault(file.topic, {})
        logs[file.log_id] = max(logs.get(file.log_id, 0), file.end)
    return found


def lacking(root: Path, planned: Iterable[Range]) -> list[Range]:
    """Return the rows that the archive does not have. Raises Damaged."""
    for _ in range(TRIES):
        try:
            files = read(root).files.values()
            return [each for part in planned for each in not_in(root, part, files)]
        except FileNotFoundError as error:  # a compaction has replaced a file
            gone = error
    raise gone


def not_in(root: Path, part: Range, files: Iterable[File]) -> Iterator[Range]:
    """Yield the ranges of a part that these files do not have."""
    there = [run for file in files if overlap(file, part) for run in runs(root, file)]
    for start, end in seqs.without((part.start, part.end), there):
        yield Range(part.topic, part.log_id, start, end)


# --- a batch ----------------------------------------------------------------------------------


def unplaced(root: Path) -> list[str]:
    """Return the batches that are not completely in place."""
    folder = hidden(root, UNPLACED)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def describe_batch(root: Path, name: str, planned: Iterable[Range]) -> Manifest:
    """Describe the files in a batch's `writing` directory, and sync them to disk."""
    folder = hidden(root, UNPLACED) / name
    paths = sorted(on_disk(folder))
    with ThreadPoolExecutor(READERS) as pool:
        files = tuple(pool.map(lambda path: describe(folder, path), paths))
    for batch in {(folder / path).parent for path in paths}:
        state_files.sync_folders(batch, folder)
    return Manifest(name, files, planned=tuple(planned))


def add(root: Path, manifest: Manifest) -> None:
    """Make a batch a part of the archive."""
    write(root, manifest)
    move(root, manifest.name)


def move(root: Path, name: str) -> None:
    """Move the files of a batch, whose manifest exists, into place."""
    folder = hidden(root, UNPLACED) / name
    for batch in folder.glob("topic=*/dt=*/hr=*/batch=*"):
        place = root / batch.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():  # left without a manifest by an earlier version
            shutil.rmtree(place)
        batch.rename(place)
        state_files.sync_folders(place.parent, root)
    shutil.rmtree(folder)


def complete(root: Path, manifest: Manifest) -> None:
    """Move the rest of a batch into place after a crash. Raises Damaged if a file has changed.
    Spark has not committed that batch, so it is written again if it is removed."""
    folder, path = hidden(root, UNPLACED) / manifest.name, manifest_path(root, manifest.name)
    for file in manifest.files:
        if (root / file.path).exists():
            continue
        try:
            check(folder, file)
        except Damaged:
            raise Damaged(
                f"{folder / file.path} is missing or has changed: remove {folder} and {path}; "
                "the job then writes that batch again"
            ) from None
    move(root, manifest.name)


# --- who writes -------------------------------------------------------------------------------


@contextmanager
def locked(root: Path, name: str, *, reading: bool = False) -> Iterator[None]:
    """Lock the archive for one writer or any number of readers. Raises Busy.

    The lock is released when its process exits. A reader that cannot write to the archive needs no
    lock.
    """
    path = hidden(root, name)
    if reading and not os.access(path if path.exists() else root, os.W_OK):
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        busy = f"another job is using {root}: {' or '.join(HOLDERS[name])}"
        lock(file.fileno(), busy, shared=reading)
        yield


def lock(fd: int, busy: str, *, shared: bool = False) -> None:
    """Lock a file or directory until it is closed. If it is already locked, raises Busy with the
    text `busy`."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy(busy) from None
