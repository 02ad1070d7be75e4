"""CPU time, memory and children of processes, from the kernel; and killing processes. Independent
of NSQ."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

ESTABLISHED, LISTEN = "01", "0A"
CLOCK_OF_PROCESS = 2  # selects the process's scheduler clock, which has nanosecond resolution


def _stat(pid: int) -> list[str]:
    """Return the fields after the command name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def started(pid: int) -> int:
    """Return the start time of a process, in ticks since boot. It distinguishes processes with the
    same, reused id."""
    return int(_stat(pid)[19])


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
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


def end(pids: Iterable[int]) -> None:
    """Kill processes, and wait until none of them is running: a process that is still writing would
    leave a file in a removed directory."""
    descriptors = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptors.append(os.pidfd_open(pid))
            signal.pidfd_send_signal(descriptors[-1], signal.SIGKILL)
    for each in descriptors:
        gone = select.poll()
        gone.register(each, select.POLLIN)
        gone.poll()
        os.close(each)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, including all its threads."""
    return time.clock_gettime(~pid << 3 | CLOCK_OF_PROCESS)


def memory(pids: list[int]) -> dict[str, int]:
    """Return memory in bytes: resident (shared pages count in each process), proportional,
    private."""
    total = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, value = line.partition(":")
            if name in total:
                total[name] += int(value.split()[0]) * 1024
    return total


def kernel_memory() -> int:
    """Return the bytes that the kernel uses for its objects, such as sockets."""
    found = Path("/proc/meminfo").read_text().partition("SUnreclaim:")[2]
    return int(found.split()[0]) * 1024


def _sockets(column: int, port: int, state: str) -> set[str]:
    """Return the kernel's names for TCP sockets in the given state that have that port as their
    local (1) or remote (2) port."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and int(fields[column].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _holder(sockets: set[str], pids: str) -> int:
    for fd in Path("/proc").glob(f"{pids}/fd/*"):
        try:
            if os.readlink(fd) in sockets:
                return int(fd.parts[2])
        except OSError:
            continue
    return 0


def listener(port: int) -> int:
    """Return the process that listens on a local TCP port; 0 if unknown."""
    return _holder(_sockets(1, port, LISTEN), "[0-9]*")


def holder(pids: list[int], port: int) -> int:
    """Return the process at the other end of a connection from a local port; 0 if there is none."""
    sockets = _sockets(2, port, ESTABLISHED)
    return next((pid for pid in pids if _holder(sockets, str(pid))), 0)
