"""Command line of `nsqcy copies repair`: accepts an etcd that was restored from a backup.

A node changes nothing while etcd is older than what the node has seen. This command lets it accept
etcd's values. Because these may be outdated, no copy on the node counts as complete afterwards: the
members of each group compare their copies, and the most recent one is used.
"""

from collections.abc import Sequence
from pathlib import Path

from nsqcy.errors import StartError, UsageError
from nsqcy.logging.logger import write
from nsqcy.nsqd.copies.copy_files import FOLDER, distrust_copies
from nsqcy.nsqd.copies.node import forget_revision
from nsqcy.process import datapath

USAGE = """\
Usage: nsqcy copies repair DATA_PATH

Let a stopped nsqd accept an etcd that was restored from a backup. Stop all nsqds in the cluster,
run this command for each of them, and start them again. The most recent copy of each group is then
used.
"""


def run(words: Sequence[str]) -> int:
    """Repair a data path; return the exit code. Raises Stop."""
    if list(words) in (["-h"], ["-help"], ["--help"]):
        write(1, USAGE)
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError(f"expected DATA_PATH as the only argument\n{USAGE}")
    data_path = Path(words[0])
    root = data_path / FOLDER
    if not root.is_dir():
        raise StartError(f"{data_path} has no copies")
    try:
        lock = datapath.lock_data_path(str(data_path), orphans_wait=0)
    except datapath.DataPathError as error:
        raise StartError(str(error)) from None
    with lock:
        try:
            forget_revision(root)
            count = distrust_copies(data_path)
        except OSError as error:
            raise StartError(f"{root}: {error.strerror}") from None
    write(1, f"{data_path}: {count} copies will be compared with those of other nodes\n")
    return 0
