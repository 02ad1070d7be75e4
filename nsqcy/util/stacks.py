"""The stacks of this process's threads and greenlets, for /debug/pprof/goroutine.

gevent finds greenlets by visiting every object of the process. This module registers them instead,
from the moment it is imported, and formats a few in each event-loop iteration.
"""

import functools
import sys
import threading
import traceback
import weakref
from collections import defaultdict
from typing import Any

import gevent

from nsqcy.util.slices import Slices, Turns

MAX_GREENLETS = 1000
_SLICE = 4  # greenlets in an iteration; one takes up to 1 ms
_LINE = "*" * 80
_DETAILS = {"running_stacks": True, "running_stack_limit": None}

_known: "weakref.WeakSet[gevent.Greenlet]" = weakref.WeakSet()
gevent.Greenlet.add_spawn_callback(_known.add)


def stacks() -> str:
    """Return the stacks of all threads and greenlets. Blocks the calling greenlet, not the hub."""
    lines = [_LINE, "* Threads"]
    _add_threads(lines)
    lines += [_LINE, "* Greenlets", _LINE]
    _add_greenlets(lines)
    return "\n".join(lines) + "\n"


def _add_threads(lines: list[str]) -> None:
    from gevent.util import is_idle_threadpool_worker

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        is_idle = ident not in names and is_idle_threadpool_worker(frame)
        name = "idle threadpool worker" if is_idle else names.get(ident)
        current = ") (CURRENT" if ident == threading.get_ident() else ""
        lines += [_LINE, f"Thread 0x{ident:x} ({name}{current})\n"]
        if not is_idle:
            lines.append("".join(traceback.format_stack(frame)))


def _add_greenlets(lines: list[str]) -> None:
    """Add the greenlets as a tree: each below its parent, the greenlet that spawned it."""
    from gevent.util import GreenletTree  # imported on first use, because few processes need it

    main = gevent.get_hub().parent
    spawned = _by_spawner(main)
    slices = Slices(_turns().wait, _SLICE)
    below = [(main, 0)]
    added = 0
    while below and added < MAX_GREENLETS:
        greenlet, depth = below.pop()
        slices.step()
        indent = "     " * depth
        first, *others = GreenletTree(greenlet).format_lines(_DETAILS)
        lines.append(f"{indent[:-5]} +--- {first}" if depth else first)
        lines += [indent + each for each in others]
        below += [(each, depth + 1) for each in reversed(spawned.pop(greenlet, []))]
        added += 1
    if below:
        lines.append(f"... greenlets not shown: {len(below) + sum(map(len, spawned.values()))}")


def _by_spawner(main: Any) -> dict[Any, list[Any]]:
    """Return the greenlets by the greenlet that spawned them, or by the main one if that has
    ended."""
    known = sorted(_known, key=lambda each: int(each.minimal_ident))
    spawners = {main, gevent.get_hub(), *known}
    found: dict[Any, list[Any]] = defaultdict(list)
    found[main].append(gevent.get_hub())
    for each in known:
        spawner = each.spawning_greenlet() if each.spawning_greenlet is not None else None
        found[spawner if spawner in spawners else main].append(each)
    return found


@functools.cache
def _turns() -> Turns:
    return Turns()
