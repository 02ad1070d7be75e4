"""Makes a process drop what it has in common with other processes, without running any of its
finalisers.

Owns the system calls. After this, objects that used the descriptors or the memory must not be used
or freed: the caller neither returns to the code that owns them nor lets it run in another way.
"""

import ctypes
import gc
import os
import re
from collections.abc import Iterable

_PROT_NONE = 0
_FLAGS = 0x02 | 0x10 | 0x20 | 0x4000  # MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE
_SHARED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ...s ")


def shed(keep: Iterable[int]) -> None:
    """Close all descriptors except the standard ones and these, and drop all shared memory. Nothing
    that exists now is ever freed."""
    gc.freeze()
    _unmap_shared()
    kept = {0, 1, 2, *keep}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            _close(int(name))
    ctypes.CDLL(None).malloc_trim(0)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # the descriptor of the listing


def _unmap_shared() -> None:
    """Reserve the addresses of shared memory instead of freeing them, so that nothing else gets
    them."""
    libc = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    with open("/proc/self/maps", encoding="utf-8") as file:
        found = [_SHARED.match(line) for line in file]
    for each in filter(None, found):
        begin, end = (int(text, 16) for text in each.groups())
        if libc.mmap(begin, end - begin, _PROT_NONE, _FLAGS, -1, 0) != begin:
            raise OSError(ctypes.get_errno(), "cannot drop shared memory")
