"""Collects facts about a host from the kernel, the file system and the installed packages.

Facts that cannot be determined stay unknown; that is not an error. Changes nothing: the file for
timing the disk is removed, and ports are bound only briefly, without listening.
"""

import ctypes
import errno
import os
import platform
import re
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version

from nsqcy.cluster.parallel import ask_all
from nsqcy.config.loader import Settings
from nsqcy.doctor.facts import Clock, ConfigFile, Disk, Host, Memory, Package, Wanted
from nsqcy.doctor.look_ports import ports
from nsqcy.process.limits import available_memory, usable_cpus
from nsqcy.util import procfs

SYNCS = 5
DISK_LIMIT = 10.0  # seconds
PIECE = 4096  # bytes per write
MODULES = (
    "nsqcy.server.transport",
    "nsqcy.server.publisher",
    "nsqcy.server.http_fastpath",
    "nsqcy.client.codec",
)
NEED = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9][0-9a-z.]*)")

# struct timex, and the state of adjtimex() for an unsynchronised clock.
TIMEX_BYTES = 208
TIME_ERROR = 5
# struct utmp, and the type of its boot record.
UTMP = struct.Struct("h2xi32s4s32s256shhiii4i20x")
BOOT_TIME = 2


def look(wanted: Wanted, settings: Settings, config: ConfigFile | None, root: str = "/") -> Host:
    """Return the facts about the host. root: parent directory of /proc, /sys and /run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    options = settings.values
    return Host(
        wanted,
        config,
        soft,
        hard,
        open_on_machine(root),
        Clock(synchronised(), stepped(root)),
        disk(str(options["data_path"] or "."), root) if "data_path" in options else None,
        look_at_memory(root),
        usable_cpus(root),
        procfs.number(f"{root}/proc/sys/net/core/somaxconn"),
        missing_calls(),
        ports(settings, root),
        sys.version_info[:3],
        list(packages()),
        list(broken_modules()),
    )


# --- clock --------------------------------------------------------------------------------------


def synchronised() -> bool | None:
    """Return whether the kernel considers its clock synchronised; None if unknown."""
    timex = ctypes.create_string_buffer(TIMEX_BYTES)  # modes is 0: read only
    try:
        state = ctypes.CDLL(None).adjtimex(timex)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


def stepped(root: str) -> float | None:
    """Return the seconds by which the clock has been stepped since boot: the difference between the
    recorded boot time and the one computed from the current clock."""
    now = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        with open(f"{root}/run/utmp", "rb") as file:
            data = file.read(UTMP.size * 1000)
    except OSError:
        return None
    whole = len(data) - len(data) % UTMP.size
    for record in UTMP.iter_unpack(data[:whole]):
        if record[0] == BOOT_TIME:
            return now - float(record[9])
    return None


# --- disk ---------------------------------------------------------------------------------------


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


def mount(path: str, mountinfo: str) -> tuple[str, frozenset[str]]:
    """Return the file system type and the mount options for a path."""
    best, found = "", ("", frozenset[str]())
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 6 or len(kind) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # The last mount at a mount point hides the others.
        if inside and len(point) >= len(best):
            best, found = point, (kind[0], frozenset(f"{fields[5]},{kind[2]}".split(",")))
    return found


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


# --- kernel and memory --------------------------------------------------------------------------


def look_at_memory(root: str) -> Memory:
    meminfo = dict(
        re.findall(r"^(\w+):\s+([0-9]+) kB", procfs.read(f"{root}/proc/meminfo"), re.MULTILINE)
    )
    return Memory(
        available_memory(root),
        procfs.number(f"{root}/proc/sys/vm/overcommit_memory") or 0,
        int(meminfo.get("CommitLimit", 0)) << 10,
        int(meminfo.get("Committed_AS", 0)) << 10,
    )


def open_on_machine(root: str) -> tuple[int, int] | None:
    fields = procfs.read(f"{root}/proc/sys/fs/file-nr").split()
    return (int(fields[0]), int(fields[2])) if len(fields) == 3 else None


def missing_calls() -> list[str]:
    """Return the system calls that workers need at startup but that are missing here, as on old
    kernels and in some sandboxes."""
    missing = []
    calls: dict[str, Callable[[], int]] = {
        "memfd_create": lambda: os.memfd_create("doctor", os.MFD_CLOEXEC),
        "eventfd": lambda: os.eventfd(0),
    }
    for name, call in calls.items():
        try:
            os.close(call())
        except OSError:
            missing.append(name)
    return missing


# --- packages -----------------------------------------------------------------------------------


def packages() -> Iterator[Package]:
    try:
        needs = requires("nsqcy") or []
    except PackageNotFoundError:
        return
    for need in needs:
        named = NEED.match(need)
        if named is None or "extra ==" in need:
            continue
        try:
            found = version(named[1])
        except PackageNotFoundError:
            found = ""
        yield Package(named[1], named[2], found)


def broken_modules() -> Iterator[str]:
    for name in MODULES:
        try:
            import_module(name)
        except ImportError as error:
            where = f"{platform.python_implementation()} {platform.python_version()}"
            yield f"{name} cannot be imported by {where}: {error}"


# --- files --------------------------------------------------------------------------------------


def reason(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return f"{os.strerror(errno.EACCES).lower()} for uid {os.geteuid()}"
    return (error.strerror or str(error)).lower()
