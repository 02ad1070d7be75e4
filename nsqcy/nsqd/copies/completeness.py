"""Missing files in the copies of a stopped nsqd, as far as its own disk shows them.

Other members may have later changes; only a running nsqd can compare with them.
"""

from collections.abc import Iterator
from pathlib import Path

from nsqcy.copies.ports import Unreadable
from nsqcy.nsqd.copies.copy_files import FACTS, FOLDER, lacking_files, root_of
from nsqcy.nsqd.copies.node import memberships


def faults(data_path: Path) -> Iterator[str]:
    """Yield a line for each file or directory that is missing or too short, or cannot be read.
    Blocks."""
    folder = data_path / FOLDER
    for worker, group_id in memberships(folder):
        root = root_of(data_path, worker) / group_id
        if not root.is_dir():
            yield f"{root} is missing"
    for root in sorted(folder.glob("*/*/")):
        try:
            if not (root / FACTS).exists():
                yield f"{root / FACTS} is missing"
            for file in lacking_files(root):
                yield f"{root / file} is missing or too short"
        except (OSError, Unreadable) as error:
            yield f"{root} cannot be read: {str(error).lower()}"
