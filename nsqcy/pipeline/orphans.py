"""`nsqcy-pipeline orphans`: lists and removes files that are in no manifest.

A reader that does not use the manifests also reads such files. Does not need Java.
"""

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from nsqcy.errors import UsageError
from nsqcy.options.kinds import BOOLEAN
from nsqcy.options.option import Option
from nsqcy.pipeline import manifests, seqs
from nsqcy.pipeline.options import PATH, Options
from nsqcy.pipeline.report import Report
from nsqcy.pipeline.session import require_packages
from nsqcy.spark.offsets import Range

HELP = """\
lists files in an archive's directories that are not part of the archive

An earlier version of nsqcy left such files if it was killed and then lost Spark's state. Other
Parquet readers read their rows twice. With --remove, removes the files whose rows the archive also
has. Exits with code 1 if files remain. Does not need java."""

OPTIONS = (
    Option("root", PATH, "archive", "archive directory"),
    Option("remove", BOOLEAN, False, "remove the files whose rows the archive also has"),
)


def run(options: Options, report: Report) -> int:
    require_packages("pyarrow")
    root = Path(options["root"])
    if not root.is_dir():
        raise UsageError(f"there is no archive at {root}")
    with ExitStack() as locks:
        for name in (manifests.WRITING, manifests.COMPACTING):
            locks.enter_context(manifests.locked(root, name, reading=not options["remove"]))
        contents = manifests.read(root)
        files = contents.files.values()
        found = {path: only_there(root, path, files) for path in orphans(root, contents)}
        removed = 0
        for path, only in found.items():
            if options["remove"] and only == 0:
                (root / path).unlink()
                removed += 1
            report.line(f"{path}: {told(only, options['remove'])}", path=path, only_there=only)
    report.done(orphans=len(found), removed=removed)
    return int(removed < len(found))


def orphans(root: Path, contents: manifests.Contents) -> list[str]:
    """Return the files that are not in any manifest."""
    there = manifests.on_disk(root)
    if there and not contents.manifests:
        text = f"{root} has no manifests: it is not an archive, or the manifests are lost"
        raise UsageError(text)
    moving = {file.path for manifest in contents.moving for file in manifest.files}
    return sorted(there - set(contents.files) - moving)


def only_there(root: Path, path: str, files: Collection[manifests.File]) -> int | None:
    """Return the number of the file's rows that the archive, which consists of `files`, does not
    have; None if the file cannot be read. Raises Damaged if a file of the archive that has some of
    these rows has changed."""
    try:
        log_id, column = manifests.read_seqs(root, path)
    except (OSError, ValueError, manifests.Damaged):  # pyarrow raises some of these errors
        return None
    topic = manifests.topic_of(path)
    parts = [Range(topic, log_id, *run) for run in seqs.runs(column)[0]]
    for file in files:
        if any(manifests.overlap(file, part) for part in parts):
            manifests.check(root, file)
    return sum(row.rows for part in parts for row in manifests.not_in(root, part, files))


def told(only: int | None, remove: bool) -> str:
    if only is None:
        return "the file cannot be read, so it is kept"
    if only:
        return f"the archive lacks {only} of its rows, so the file is kept; run archive first"
    if remove:
        return "removed"
    return "the archive has all of its rows; use --remove to delete this file"
