"""Whether one syncfs(2) may replace the syncs of many files, and whether it is cheaper.

syncfs(2) writes all unwritten data of the file system, including that of other programs.
"""

import os
import re

from nsqcy.util import procfs
from nsqcy.util.mounts import mount

KERNEL = (5, 17)
"""Earlier kernels do not report every error: those of file data since 5.8, those of a file
system's own log since 5.17."""
FILE_SYSTEMS = frozenset({"btrfs", "ext4", "xfs"})
"""These report write-back errors to syncfs(2); others, such as overlayfs, do not."""
MIN_COUNT = 64
BYTES_PER_SYNC = 1 << 20  # syncing one file takes about as long as writing this number of bytes
MAX_BYTES = 1 << 30  # of unwritten data: a sync of more might exceed --hung-disk-timeout at an exit


def is_reliable(data_path: str, root: str = "/", release: str = os.uname().release) -> bool:
    """Return whether syncfs(2) reports the same errors as the syncs of single files."""
    found = re.match(r"([0-9]+)\.([0-9]+)", release)
    kind, _ = mount(os.path.realpath(data_path), procfs.read(f"{root}/proc/self/mountinfo"))
    return found is not None and (int(found[1]), int(found[2])) >= KERNEL and kind in FILE_SYSTEMS


def count(root: str = "/") -> int:
    """Return the minimum number of files for which one sync of the file system is cheaper than a
    sync of each file; 0 if a sync of the file system may take too long."""
    unwritten = _unwritten(procfs.read(f"{root}/proc/meminfo"))
    return 0 if unwritten > MAX_BYTES else max(MIN_COUNT, unwritten // BYTES_PER_SYNC)


def _unwritten(meminfo: str) -> int:
    """Return the bytes that the kernel has not written to disks yet."""
    found = re.findall(r"^(?:Dirty|Writeback):\s+([0-9]+) kB", meminfo, re.MULTILINE)
    return sum(map(int, found)) << 10
