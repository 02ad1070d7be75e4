"""CPUs and memory available to this process: affinity, cgroup limits and free memory.

Reads both versions of cgroups.
"""

import os
from collections.abc import Iterator

from nsqcy.util import procfs


def usable_cpus(root: str = "/") -> int:
    """Return the number of usable CPUs, at least 1. Rounds a quota up, as other runtimes do."""
    cpus = len(os.sched_getaffinity(0))
    for directory in _group_directories(root, "cpu"):
        quota = _quota(directory)
        if quota is not None:
            cpus = min(cpus, quota)
    return max(cpus, 1)


def available_memory(root: str = "/") -> int:
    """Return the bytes of memory available within all cgroup limits."""
    available = _meminfo(root)
    for directory in _group_directories(root, "memory"):
        room = _memory_room(directory)
        if room is not None:
            available = min(available, room)
    return max(available, 0)


def kills_groups(root: str = "/") -> bool:
    """Return whether the kernel kills all processes of this process's cgroup at once when the
    cgroup is out of memory."""
    directories = _group_directories(root, "memory")
    return any(procfs.number(f"{each}/memory.oom.group") == 1 for each in directories)


def _group_directories(root: str, controller: str) -> Iterator[str]:
    """Yield the visible directories of this process's cgroup and its parents.

    In a container, the path from the kernel may not exist; then the container's own root is used.
    """
    for line in procfs.read(f"{root}/proc/self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, group = fields
        if not controllers:
            mount = f"{root}/sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = f"{root}/sys/fs/cgroup/{controllers}"
            if not os.path.isdir(mount):
                mount = f"{root}/sys/fs/cgroup/{controller}"
        else:
            continue
        while group.strip("/"):
            yield mount + group
            group = group.rpartition("/")[0]
        yield mount


def _quota(directory: str) -> int | None:
    """Return a group's CPU quota, rounded up; None if there is no quota."""
    fields = procfs.read(f"{directory}/cpu.max").split()
    if not fields:
        fields = [
            procfs.read(f"{directory}/cpu.cfs_quota_us").strip(),
            procfs.read(f"{directory}/cpu.cfs_period_us").strip(),
        ]
    if len(fields) != 2 or not all(field.isdecimal() for field in fields):
        return None  # "max", or -1 in version 1
    quota, period = map(int, fields)
    return -(-quota // period) if quota and period else None


def _memory_room(directory: str) -> int | None:
    """Return the bytes that a group may still use, including its droppable page cache; None if
    there is no limit."""
    limit = _either(f"{directory}/memory.max", f"{directory}/memory.limit_in_bytes")
    if not limit:
        return None
    used = _either(f"{directory}/memory.current", f"{directory}/memory.usage_in_bytes")
    statistics = _pairs(procfs.read(f"{directory}/memory.stat"))
    cache = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    return limit - max(used - cache, 0)


def _either(newer: str, older: str) -> int:
    return procfs.number(newer) or procfs.number(older) or 0


def _meminfo(root: str) -> int:
    lines = procfs.read(f"{root}/proc/meminfo").replace(":", " ")
    kilobytes = _pairs(lines).get("MemAvailable", 0)
    return kilobytes * 1024


def _pairs(text: str) -> dict[str, int]:
    fields = (line.split() for line in text.splitlines())
    return {field[0]: int(field[1]) for field in fields if len(field) > 1 and field[1].isdecimal()}
