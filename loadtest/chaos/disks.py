"""Disks with faults: slowed by a library in front of libc, or filled up.

Each fault needs a compiler or the privilege to mount; without it, the fault is skipped. Only this
process and its children see the mounts, which disappear with them.
"""

import ctypes
import errno
import mmap
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("slow_disk.c")
SMALL = "256m"  # size of a disk that a fault fills
CLONE_NEWNS = 0x00020000


def slow_library(folder: Path) -> Path | None:
    """Compile the library; return None if there is no compiler."""
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        return None
    library = folder / "slow_disk.so"
    words = ["-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run([*compiler, *words], check=True)
    return library


class SlowDisk:
    """Disk delay for processes that are started with `environ`."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(4))
        loaded = [*os.environ.get("LD_PRELOAD", "").split(), str(library)]
        self.environ = {"LD_PRELOAD": " ".join(loaded), "CHAOS_SLOW_DISK": str(control)}
        with control.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4)

    def delay(self, milliseconds: int) -> None:
        """Set the delay of every write and sync from now on."""
        self._page[:] = milliseconds.to_bytes(4, "little")


def own_mounts() -> bool:
    """Hide this process's mounts from other processes; return False if that is not allowed. Call it
    before any thread is started."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) < 0:
        return False
    return _run("mount", "--make-rprivate", "/")


def small_disk(path: Path) -> bool:
    """Mount a disk of size SMALL on the directory; return whether this was possible."""
    return _run("mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(path))


def unmount(path: Path) -> None:
    _run("umount", "--lazy", str(path))


def _run(*words: str) -> bool:
    try:
        return subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


def fill(path: Path) -> None:
    """Fill all free space in a directory's file system. A repeated call fills space freed since."""
    with (path / "filling").open("ab") as file:
        while free := os.statvfs(path).f_bavail * os.statvfs(path).f_frsize:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def empty(path: Path) -> None:
    """Free it."""
    (path / "filling").unlink(missing_ok=True)
