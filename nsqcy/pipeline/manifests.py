"""Contents of an archive, as recorded by its jobs: a manifest for each batch.

    topic=orders/dt=2026-01-31/hr=07/batch=1f3c9a2e-000000012/part-*.parquet   rows
    _archive/manifests/1f3c9a2e-000000012.json                               of that batch
    _archive/checkpoint/                                                     Spark's
    _archive/lock, compact.lock                                              held by the writer
    _archive/compacting/                                                     unfinished compactions

A batch belongs to the archive once its manifest exists. The manifest is written last: files that a
crash leaves without a manifest are written again under the same names. Each file contains rows from
one log. A compaction is a manifest that `replaces` files of other manifests. It takes effect once
its files are in place, so a crash leaves either the old files or the new ones.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqcy.pipeline.checkpoint import Positions

if TYPE_CHECKING:
    import pyarrow.parquet as pq

VERSION = 1
HIDDEN = "_archive"
WRITING, COMPACTING = "lock", "compact.lock"  # maximum number of locks per process
STAGED = "compacting"
HOLDERS = {WRITING: ("archive",), COMPACTING: ("compact", "verify", "replay")}
PIECE = 1 << 20


class Damaged(Exception):
    """The archive is damaged."""


class Busy(Exception):
    """Another process is using this archive."""


@dataclass(frozen=True)
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

    @property
    def rows(self) -> int:
        return sum(file.count for file in self.files)


@dataclass
class Contents:
    """Contents of an archive: files by path, and the places where errors were found."""

    files: dict[str, File] = field(default_factory=dict)
    manifests: list[Manifest] = field(default_factory=list)  # valid ones
    unfinished: list[Manifest] = field(default_factory=list)  # compactions that did not take effect


# --- names ------------------------------------------------------------------------------------


def hidden(root: Path, name: str) -> Path:
    return root / HIDDEN / name


def manifest_path(root: Path, name: str) -> Path:
    return hidden(root, "manifests") / f"{name}.json"


def batch_name(query_id: str, number: int) -> str:
    """Return the name of a query, so that queries over one root do not overwrite each other."""
    return f"{query_id.replace('-', '')[:8]}-{number:09}"


def batch_of(path: str) -> str:
    """Return the batch of a file, given its directory."""
    return Path(path).parent.name.removeprefix("batch=")


def hour_of(path: str) -> str:
    """Return `topic=T/dt=D/hr=H` of a file."""
    return str(Path(path).parents[1])


def topic_of(path: str) -> str:
    return Path(path).parts[0].removeprefix("topic=")


def on_disk(
    root: Path, batch: str = "*", hours: Iterable[str] = ("topic=*/dt=*/hr=*",)
) -> set[str]:
    """Yield the files with rows under the root."""
    return {
        str(path.relative_to(root))
        for hour in hours
        for path in root.glob(f"{hour}/batch={batch}/*.parquet")
        if not path.name.startswith((".", "_"))
    }


# --- a file -----------------------------------------------------------------------------------


def describe(root: Path, path: str) -> File:
    """Describe a file and sync it to disk."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(root / path)
    log_id, start, last = bounds(metadata, path)
    size, crc = checksum(root / path, sync=True)
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


def checksum(path: Path, *, sync: bool = False) -> tuple[int, int]:
    """Return size and CRC-32."""
    size = crc = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            size += len(piece)
            crc = zlib.crc32(piece, crc)
        if sync:
            os.fsync(file.fileno())
    return size, crc


# --- manifests --------------------------------------------------------------------------------


def write(root: Path, manifest: Manifest) -> None:
    """Write a manifest atomically. Its files must already be on disk."""
    path = manifest_path(root, manifest.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(manifest), indent=1) + "\n"
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)


def sync_folders(folder: Path, root: Path) -> None:
    """Sync a directory and its parents, up to the root."""
    while folder != root:
        sync_folder(folder)
        folder = folder.parent
    sync_folder(root)


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def as_json(manifest: Manifest) -> dict[str, Any]:
    files = []
    for file in manifest.files:
        row = asdict(file)
        row["from"], row["to"] = row.pop("start"), row.pop("end")
        files.append(row)
    found: dict[str, Any] = {"v": VERSION, "batch": manifest.name, "files": files}
    return found | ({"replaces": list(manifest.replaces)} if manifest.replaces else {})


def parse(content: bytes, where: str) -> Manifest:
    try:
        found = json.loads(content.decode())
        if found["v"] != VERSION:
            raise Damaged(
                f"{where}: version {found['v']!r}, but this nsqcy supports version {VERSION}"
            )
        files = tuple(map(_file, found["files"]))
        return Manifest(_text(found["batch"]), files, tuple(map(_text, found.get("replaces", ()))))
    except (KeyError, RecursionError, TypeError, ValueError):
        raise Damaged(f"{where} is not a manifest") from None


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


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not a whole number")
    return value


def read_all(root: Path) -> list[Manifest]:
    """Yield manifests in name order."""
    folder = hidden(root, "manifests")
    return [parse(path.read_bytes(), str(path)) for path in sorted(folder.glob("*.json"))]


def read(root: Path) -> Contents:
    """Read the contents of the archive."""
    found = Contents()
    gone: set[str] = set()
    for manifest in read_all(root):
        if manifest.replaces and not happened(root, manifest):
            found.unfinished.append(manifest)
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
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if reading else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another job is using {root}: {' or '.join(HOLDERS[name])}") from None
        yield
