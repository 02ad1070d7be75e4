"""Collects facts about a host from the kernel, the file system and the installed packages.

Facts that cannot be determined stay unknown; that is not an error. Changes nothing: ports are bound
only briefly, without listening. look_disk.py examines the disks.
"""

import ctypes
import errno
import mmap
import os
import platform
import re
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version

from nsqcy.config.loader import Settings
from nsqcy.doctor import look_disk
from nsqcy.doctor.facts import Clock, ConfigFile, Host, Memory, Package, Wanted
from nsqcy.doctor.look_ports import ports
from nsqcy.process.limits import available_memory, kills_groups, usable_cpus
from nsqcy.util import procfs

MODULES = (
    "nsqcy.server.core",
    "nsqcy.server.http_fastpath",
    "nsqcy.client.codec",
)
NEED = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9][0-9a-z.]*)")

# struct timex, and the state of adjtimex() for an unsynchronised clock.
TIMEX_BYTES = 208
TIME_ERROR = 5
MADV_COLLAPSE = 25  # of Linux 6.1; Python has no name for it
HUGE = 2 << 20  # bytes of a huge page
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
        look_disk.disk(str(options["data_path"] or "."), root) if "data_path" in options else None,
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
        kills_groups(root),
        collapses(),
    )


def collapses() -> bool:
    """Return whether the kernel knows MADV_COLLAPSE, which workers use for the memory that outlives
    them."""
    with mmap.mmap(-1, 2 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as some:
        some[:] = bytes(len(some))
        try:
            some.madvise(MADV_COLLAPSE)
        except OSError as error:
            return error.errno != errno.EINVAL
    return True


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
