"""`nsqcy-pipeline verify`: verifies that an archive contains every row exactly once.

The seqs of a log are dense, so they reveal missing and duplicate rows. Manifests list the expected
files and their contents. Does not need Java.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from nsqcy.errors import UsageError
from nsqcy.options.kinds import BOOLEAN, TOPIC_NAME
from nsqcy.options.option import Option
from nsqcy.pipeline import checkpoint, manifests, seqs
from nsqcy.pipeline.manifests import Contents, File
from nsqcy.pipeline.options import PATH, POSITIVE, Options
from nsqcy.pipeline.report import Report
from nsqcy.pipeline.session import require_packages
from nsqcy.spark.offsets import Range

HELP = """\
verifies that an archive contains every row exactly once

Reads all files and checks their checksums. Checks that the seqs of each log have no gaps and no
duplicates. Exits with code 1 if something is missing, changed or duplicated. Does not need java."""

OPTIONS = (
    Option("root", PATH, "archive", "archive directory"),
    Option("topic", TOPIC_NAME, None, "only this topic"),
    Option("quick", BOOLEAN, False, "trust the manifests; compare only names and sizes"),
    Option("checkpoint", PATH, None, "the archive's checkpoint; by default inside --root"),
    Option("threads", POSITIVE, None, "number of files read in parallel; by default one per core"),
)
SHOWN = 5  # maximum number of gaps shown per log

Log = tuple[str, str]  # topic, log_id


@dataclass
class Found:
    """The contents of one file, and its errors."""

    log: Log | None = None
    runs: list[seqs.Run] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Proof:
    """Result for an archive."""

    logs: dict[Log, seqs.Coverage] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(log.rows for log in self.logs.values())


def run(options: Options, report: Report) -> int:
    require_packages("pyarrow")
    root = Path(options["root"])
    if not root.is_dir():
        raise UsageError(f"there is no archive at {root}")
    state = Path(options["checkpoint"] or manifests.hidden(root, "checkpoint"))
    with manifests.locked(root, manifests.COMPACTING, reading=True):
        archived, unreadable = committed(state)  # read first, because the job may be running
        proof = prove(
            root,
            report,
            topic=options["topic"] or "",
            quick=options["quick"],
            threads=options["threads"] or os.cpu_count() or 1,
            archived=archived,
        )
    proof.problems += unreadable
    for note in proof.notes:
        report.warn(note)
    for problem in proof.problems:
        report.line(f"wrong: {problem}", problem=problem)
    for (topic, log_id), log in sorted(proof.logs.items()):
        report.line(
            f"topic {topic!r}, log {log_id}: {log.rows:,} rows, seq {log.start} to {log.end - 1}",
            topic=topic,
            log_id=log_id,
            rows=log.rows,
            first=log.start,
            last=log.end - 1,
            missing=log.missing,
        )
    report.done(rows=proof.rows, logs=len(proof.logs), problems=len(proof.problems), root=str(root))
    return int(bool(proof.problems))


def prove(
    root: Path, report: Report, *, topic: str, quick: bool, threads: int, archived: list[Range]
) -> Proof:
    """Check the files. `archived`: rows that were written according to the checkpoint."""
    there = {path for path in manifests.on_disk(root) if wanted(path, topic)}
    contents = manifests.read(root)  # read after the files, because the job may be running
    listed = {path: file for path, file in contents.files.items() if wanted(path, topic)}
    there |= {path for path in listed if path not in there and (root / path).exists()}
    proof = Proof()
    if topic and not there and not listed:
        proof.problems.append(f"no rows of topic {topic!r}")
    if there and not contents.manifests:
        proof.notes.append("no manifests: only the files are checked")
    else:
        compare(proof, contents, listed, there)
        there &= set(listed)
    unfinished = manifests.hidden(root, manifests.STAGED)
    if unfinished.is_dir() and any(unfinished.iterdir()):
        proof.notes.append("a compaction is unfinished: run nsqcy-pipeline compact to finish it")

    def look(path: str) -> Found:
        return examine(root, path, listed.get(path), quick=quick)

    parts: dict[Log, tuple[list[seqs.Run], list[int]]] = {}
    with ThreadPoolExecutor(threads) as pool:
        for number, found in enumerate(pool.map(look, sorted(there)), 1):
            proof.problems += found.problems
            if found.log is not None:
                runs, again = parts.setdefault(found.log, ([], []))
                runs += found.runs
                again += found.again
            report.progress(done=number, total=len(there))
    for log, (runs, again) in parts.items():
        if runs:
            proof.logs[log] = seqs.coverage(runs, again)
            proof.problems += holes(log, proof.logs[log])
    archived = [*archived, *(part for each in contents.manifests for part in each.planned)]
    proof.problems += not_there(
        proof.logs, [part for part in archived if topic in ("", part.topic)]
    )
    return proof


def wanted(path: str, topic: str) -> bool:
    return not topic or manifests.topic_of(path) == topic


def compare(proof: Proof, contents: Contents, listed: dict[str, File], there: set[str]) -> None:
    """Compare the files with the manifests."""
    for path in sorted(set(listed) - there):
        file = listed[path]
        proof.problems.append(
            f"{path} is missing: {file.count} rows (seq {file.start} to {file.end - 1})"
        )
    moving = {file.path for manifest in contents.moving for file in manifest.files}
    for path in sorted(there - set(listed) - moving):
        proof.problems.append(f"{path} is not in any manifest: run nsqcy-pipeline orphans")
    for manifest in contents.moving:
        proof.notes.append(
            f"batch {manifest.name} is incomplete: archive is still writing it, or will complete "
            "it at its next start"
        )


def examine(root: Path, path: str, file: File | None, *, quick: bool) -> Found:
    """Check one file against its manifest."""
    found = Found()
    try:
        if quick and file is not None:
            look_at_size(root, file, found)
        else:
            read(root, path, file, found)
    except FileNotFoundError:
        found.problems.append(f"{path} is missing")
    except (OSError, ValueError, manifests.Damaged) as error:  # pyarrow raises some of these errors
        found.problems.append(f"{path} cannot be read: {str(error).splitlines()[0]}")
    return found


def look_at_size(root: Path, file: File, found: Found) -> None:
    size = (root / file.path).stat().st_size
    found.log = file.topic, file.log_id
    if size != file.size:
        found.problems.append(f"{file.path} has {size} bytes instead of {file.size}")
    if file.count == file.end - file.start:
        found.runs.append((file.start, file.end))
    else:  # rows in between may be in other files: only reading all files can show this
        read_seqs(root, file.path, found)


def read(root: Path, path: str, file: File | None, found: Found) -> None:
    if file is not None and (changed := manifests.difference(root, file)):
        found.problems.append(changed)
    count = read_seqs(root, path, found)
    if file is not None and count != file.count:
        found.problems.append(f"{path} has {count} rows instead of {file.count}")


def read_seqs(root: Path, path: str, found: Found) -> int:
    log_id, column = manifests.read_seqs(root, path)
    found.log = manifests.topic_of(path), log_id
    found.runs, found.again = seqs.runs(column)
    return len(column)


def holes(log: Log, found: seqs.Coverage) -> Iterator[str]:
    who = f"topic {log[0]!r}, log {log[1]}"
    for what, parts in (("missing", found.gaps), ("duplicated", found.twice)):
        for start, end in parts[:SHOWN]:
            yield f"{who}: seq {start} to {end - 1} are {what} ({end - start} rows)"
        rest = parts[SHOWN:]
        if rest:
            rows = sum(end - start for start, end in rest)
            yield f"{who}: {len(rest)} more ranges with {rows} rows are {what}"


# --- rows that the files cannot reveal -------------------------------------------------------


def committed(state: Path) -> tuple[list[Range], list[str]]:
    """Return the rows that the archive job has written, according to Spark, and problems."""
    try:
        return checkpoint.committed_rows(state), []
    except checkpoint.Unreadable as error:
        return [], [f"the checkpoint cannot be read: {error}"]


def not_there(logs: dict[Log, seqs.Coverage], archived: list[Range]) -> Iterator[str]:
    """Return archived rows before the first and after the last row of their log, where no other
    rows reveal a gap."""
    for (topic, log_id), runs in sorted(by_log(archived).items()):
        log = logs.get((topic, log_id))
        start, end = runs[0][0], runs[-1][1]
        outside = [(start, end)] if log is None else [(start, log.start), (log.end, end)]
        for first, after in outside:
            if first < after:
                yield (
                    f"topic {topic!r}, log {log_id}: seq {first} to {after - 1} "
                    f"({after - first} rows) are missing, although the checkpoint or the manifests "
                    "list them as archived"
                )


def by_log(parts: list[Range]) -> dict[Log, list[seqs.Run]]:
    found: dict[Log, list[seqs.Run]] = {}
    for part in parts:
        found.setdefault((part.topic, part.log_id), []).append((part.start, part.end))
    return {log: seqs.joined(runs) for log, runs in found.items()}
