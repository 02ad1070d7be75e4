"""Garbage collections of bounded length.

A full collection visits every object that is not frozen, and holds the process for that time: 20 ms
with 10,000 topics. Objects that survive a collection are therefore frozen, so that the next one
visits only newer objects. A frozen object is freed as usual when its last reference is removed;
only a frozen cycle is never freed. The daemons' connections, topics and requests leave no cycles
behind.
"""

import contextlib
import gc
from collections.abc import Iterator

FULL = 2  # generation
DUE = 10_000  # new objects
FULL_EVERY = 2  # collections of generation 1; about 23,000 new objects, which take 4 ms


@contextlib.contextmanager
def bounded(first: int = gc.get_threshold()[0]) -> Iterator[None]:
    """Freeze the objects that exist now, and later those that survive a full collection. first:
    number of new objects before the interpreter collects garbage on its own."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(first, thresholds[1], FULL_EVERY)
    gc.callbacks.append(_freeze_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze_survivors)
        gc.set_threshold(*thresholds)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage while many long-lived objects are created, and freeze them afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_if_due() -> None:
    """Collect garbage now if there are many new objects: the process is idle, and
    there may be many more objects later."""
    if gc.get_count()[0] > DUE:
        gc.collect()


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == FULL:
        gc.freeze()
