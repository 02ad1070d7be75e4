"""What the kernel says of processes: CPU time, memory, children. Knows no NSQ."""

import os
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields behind the command name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                children.setdefault(int(_stat(int(each.name))[1]), []).append(int(each.name))
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes, all threads."""
    return sum(int(field) for pid in pids for field in _stat(pid)[11:13]) * TICK


def memory(pids: list[int]) -> dict[str, int]:
    """Bytes resident (pages shared count in each), proportional, and private."""
    total = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, value = line.partition(":")
            if name in total:
                total[name] += int(value.split()[0]) * 1024
    return total


def listener(port: int) -> int:
    """The process that listens on a local TCP port; 0 if it cannot be told."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(fd) in inodes:
                return int(fd.parts[2])
        except OSError:
            continue
    return 0
