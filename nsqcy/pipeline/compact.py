"""`nsqcy-pipeline compact`: merge the many small files of an hour into a few.

The new files of an hour are written to a staging directory and compared row by row with the old
ones. Then the two directories are exchanged in a single system call: readers see one or the other.
The manifest of the compaction is written before the exchange and takes effect with it
(manifests.py). After a crash, the next run completes or undoes the compaction.
"""

import ctypes
import datetime
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nsqcy.errors import UsageError
from nsqcy.options.kinds import TOPIC_NAME
from nsqcy.options.option import Option
from nsqcy.pipeline import manifests, state_files
from nsqcy.pipeline.manifests import Contents, Damaged, File, Manifest
from nsqcy.pipeline.options import DURATION, PATH, POSITIVE, Options
from nsqcy.pipeline.report import Report
from nsqcy.pipeline.session import require_packages

if TYPE_CHECKING:
    import pyarrow as pa

HELP = """\
merges the small files of past hours

Rows stay unchanged, including (log_id, seq), so verify works as before. archive may run at the same
time. An hour with a damaged file is left unchanged, and the exit code is 1. Does not need java."""

OPTIONS = (
    Option("root", PATH, "archive", "archive directory"),
    Option("topic", TOPIC_NAME, None, "only this topic"),
    Option("closed-for", DURATION, 7200.0, "only hours that ended at least this long ago"),
    Option("at-least", POSITIVE, 2, "only hours with at least this number of files"),
)
PREFIX = "compact"
PIECE_ROWS = 65_536
GROUP_BYTES = 64 << 20  # maximum bytes of a row group in memory
AT_FDCWD = -100
RENAME_EXCHANGE = 2


def run(options: Options, report: Report) -> int:
    require_packages("pyarrow")
    root = Path(options["root"])
    if not root.is_dir():
        raise UsageError(f"there is no archive at {root}")
    with manifests.locked(root, manifests.COMPACTING):
        for text in recover(root):
            report.warn(text)
        contents = manifests.read(root)
        before = after = problems = 0
        chosen = list(
            hours(
                contents,
                topic=options["topic"] or "",
                closed_before=time.time() - options["closed-for"],
                at_least=options["at-least"],
            )
        )
        for number, hour in enumerate(chosen, 1):
            if not untouched(root, hour, contents):
                report.warn(f"{hour} has an unfinished batch and is skipped")
                continue
            old = files_of(contents, hour)
            try:
                new = compact(root, hour, old)
            except Damaged as error:
                report.line(f"wrong: {error}; {hour} is unchanged", problem=str(error))
                problems += 1
                continue
            before, after = before + len(old), after + len(new.files)
            report.progress(done=number, total=len(chosen), hour=hour, files=len(old))
    report.done(hours=len(chosen), files_before=before, files_after=after, problems=problems)
    return int(bool(problems))


# --- which hours ------------------------------------------------------------------------------


def hours(contents: Contents, *, topic: str, closed_before: float, at_least: int) -> Iterator[str]:
    """Return past hours that have enough files to merge."""
    by_hour: dict[str, list[File]] = {}
    for file in contents.files.values():
        by_hour.setdefault(manifests.hour_of(file.path), []).append(file)
    for hour, files in sorted(by_hour.items()):
        fewest = len({file.log_id for file in files})
        if topic and manifests.topic_of(hour) != topic:
            continue
        if end_of(hour) <= closed_before and len(files) >= max(at_least, fewest + 1):
            yield hour


def end_of(hour: str) -> float:
    """Return the end of `topic=T/dt=D/hr=H`, in seconds."""
    _, day, number = (part.partition("=")[2] for part in hour.split("/"))
    start = datetime.datetime.fromisoformat(f"{day}T{number}:00:00+00:00")
    return start.timestamp() + 3600


def files_of(contents: Contents, hour: str) -> list[File]:
    found = [file for file in contents.files.values() if manifests.hour_of(file.path) == hour]
    return sorted(found, key=lambda file: (file.log_id, file.start))


def untouched(root: Path, hour: str, contents: Contents) -> bool:
    """Return whether manifests contain all of the hour's files."""
    return manifests.on_disk(root, hour) <= set(contents.files)


# --- one hour ---------------------------------------------------------------------------------


def compact(root: Path, hour: str, old: list[File]) -> Manifest:
    """Replace these files with new files; return their manifest. Raises Damaged."""
    for file in old:
        manifests.check(root, file)
    name = next_name(root)
    stage = manifests.hidden(root, manifests.STAGED) / name
    folder = stage / f"batch={name}"
    folder.mkdir(parents=True)
    files = []
    for number, group in enumerate(groups(root, old)):
        path = folder / f"part-{number:05}.zstd.parquet"
        merge(root, group, path)
        check_same(root, group, path)
        files.append(staged(root, path, hour, name))
    state_files.sync_folders(folder, root)
    manifest = Manifest(name, tuple(files), tuple(sorted(file.path for file in old)))
    if manifest.rows != sum(file.count for file in old):
        raise Damaged(f"{hour}: its files differ from their manifests; run nsqcy-pipeline verify")
    manifests.write(root, manifest)
    exchange(root / hour, stage)
    state_files.sync_folder((root / hour).parent)
    finish(root, hour, manifest, stage)
    return manifest


def next_name(root: Path) -> str:
    names = [path.stem for path in manifests.hidden(root, "manifests").glob(f"{PREFIX}-*.json")]
    return f"{PREFIX}-{int(max(names).partition('-')[2]) + 1 if names else 1:08}"


def groups(root: Path, files: Iterable[File]) -> list[list[File]]:
    """Group files that can be merged: files from one log with the same columns."""
    import pyarrow.parquet as pq

    found: dict[tuple[str, bytes], list[File]] = {}
    for file in files:
        schema = pq.read_schema(root / file.path).serialize().to_pybytes()
        found.setdefault((file.log_id, schema), []).append(file)
    return list(found.values())


def pieces(root: Path, files: Iterable[File]) -> Iterator["pa.RecordBatch"]:
    """Yield the rows of these files, in file order."""
    import pyarrow.parquet as pq

    for file in files:
        with pq.ParquetFile(root / file.path) as parquet:
            yield from parquet.iter_batches(PIECE_ROWS)


def merge(root: Path, files: list[File], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(root / files[0].path)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        gathered: list[pa.RecordBatch] = []
        size = 0
        for piece in pieces(root, files):
            gathered.append(piece)
            size += piece.nbytes
            if size >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(gathered))
                gathered, size = [], 0
        if gathered:
            writer.write_table(pa.Table.from_batches(gathered))


def check_same(root: Path, files: list[File], path: Path) -> None:
    """Check that the new file has the rows of the old ones, in the same order. Raises Damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        new = parquet.iter_batches(PIECE_ROWS)
        rest: pa.RecordBatch | None = None
        for piece in pieces(root, files):
            while piece.num_rows:
                if rest is None or not rest.num_rows:
                    rest = next(new, None)
                    if rest is None:
                        raise Damaged(f"{path} has fewer rows than the files it was merged from")
                count = min(piece.num_rows, rest.num_rows)
                if not piece.slice(0, count).equals(rest.slice(0, count)):
                    raise Damaged(f"{path} does not have the rows of the files it was merged from")
                piece, rest = piece.slice(count), rest.slice(count)
        if (rest is not None and rest.num_rows) or next(new, None) is not None:
            raise Damaged(f"{path} has more rows than the files it was merged from")


def staged(root: Path, path: Path, hour: str, name: str) -> File:
    """Return a file's manifest entry, with its future name."""
    final = f"{hour}/batch={name}/{path.name}"
    found = manifests.describe(root, str(path.relative_to(root)))
    return replace(found, path=final, topic=manifests.topic_of(final))


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two directories."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(
            number,
            f"{one}: this file system cannot exchange directories ({os.strerror(number)}); use "
            "ext4, xfs, btrfs or tmpfs",
        )


def finish(root: Path, hour: str, manifest: Manifest, stage: Path) -> None:
    """Finish after the exchange: move files that arrived late in the old directory to the
    new one, and remove the old files."""
    replaced = {manifests.batch_of(path) for path in manifest.replaces}
    for folder in stage.glob("batch=*"):
        if folder.name.removeprefix("batch=") in replaced:
            continue
        place = root / hour / folder.name
        if not place.exists():
            folder.rename(place)
    shutil.rmtree(stage)


def recover(root: Path) -> Iterator[str]:
    """Complete or undo compactions that a crash left unfinished."""
    contents = manifests.read(root)
    counting = {manifest.name: manifest for manifest in contents.manifests}
    stages = manifests.hidden(root, manifests.STAGED)
    for stage in sorted(stages.iterdir()) if stages.is_dir() else ():
        manifest = counting.get(stage.name)
        if manifest is None:
            shutil.rmtree(stage)
            yield f"{stage.name} was unfinished and has been undone"
        else:
            finish(root, manifests.hour_of(manifest.files[0].path), manifest, stage)
            yield f"{stage.name} was unfinished and has been completed"
    for manifest in contents.unfinished:
        manifests.manifest_path(root, manifest.name).unlink()
