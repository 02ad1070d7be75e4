"""Descriptors that a process reserves for its own work, in case connections and files use all
other descriptors.

The kernel returns the lowest free descriptor. A descriptor in the reserve therefore means that all
others are in use. A process that receives such a descriptor accepts no more clients, and closes
idle files.
"""

import resource
import sys

MAX_RESERVE = 32  # enough for a worker's start, a page of metrics, nsqd.dat and some connections


def first_reserved() -> int:
    """Return the lowest descriptor in the reserve."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit - min(MAX_RESERVE, limit // 8)


def is_reserved(fd: int) -> bool:
    """Return whether a new descriptor is in the reserve."""
    return fd >= first_reserved()
