"""Collects facts about a disk: its space, its file system, and how long a write with sync takes.

A disk that does not respond is also a fact. Leaves no changes: removes the file that it writes.
"""

import errno
import os
import tempfile
import time

from nsqcy.cluster.parallel import ask_all
from nsqcy.doctor.facts import Disk
from nsqcy.util import procfs
from nsqcy.util.mounts import mount

SYNCS = 5
DISK_LIMIT = 10.0  # seconds
PIECE = 4096  # bytes per write


def disk(path: str, root: str = "/") -> Disk:
    """Return the facts about a disk; an error if the disk does not respond in time."""
    outcome = ask_all([path], lambda path: look_at_disk(path, root), DISK_LIMIT)
    hangs = Disk(path, f"{path} did not respond within {DISK_LIMIT:.0f} s")
    return outcome.values.get(path, hangs)


def look_at_disk(path: str, root: str = "/") -> Disk:
    try:
        space = os.statvfs(path)
        if not os.path.isdir(path):
            return Disk(path, f"{path} is not a directory")
    except OSError as error:
        return Disk(path, f"{path}: {reason(error)}")
    kind, options = mount(os.path.realpath(path), procfs.read(f"{root}/proc/self/mountinfo"))
    syncs, write_error = timed_syncs(path)
    return Disk(
        path,
        kind=kind,
        mount_options=options,
        bytes_free=space.f_bavail * space.f_frsize,
        bytes_all=space.f_blocks * space.f_frsize,
        files_free=space.f_favail,
        files_all=space.f_files,
        write_error=write_error,
        syncs=syncs,
    )


def timed_syncs(path: str) -> tuple[list[float], str]:
    """Return the durations of several writes with sync, or the error."""
    times = []
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".doctor.", buffering=0) as file:
            for _ in range(SYNCS):
                begun = time.perf_counter()
                file.write(bytes(PIECE))
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - begun)
    except OSError as error:
        return [], reason(error)
    return times, ""


def reason(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return f"{os.strerror(errno.EACCES).lower()} for uid {os.geteuid()}"
    return (error.strerror or str(error)).lower()
