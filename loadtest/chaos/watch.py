"""Resources of processes over their lifetimes (memory, descriptors, threads), and whether they
grow.

Owns samples from /proc. The caller names the processes.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from loadtest.bench import procfs

WARM = 120.0  # seconds to skip, at most a fifth of a process's lifetime
FLOOR = 30.0  # seconds; only the minimum memory of each interval counts: the rest is backlog
LONG_ENOUGH = 1200.0  # further seconds that are required to judge a slope
MAX_SHARE, MAX_BYTES = 0.05, 20 << 20  # limits on growth per hour; the larger one applies
SLACK = {"fds": 8, "threads": 2}  # allowed increase at the end


ENDED = (OSError, ValueError, IndexError)  # raised for a process whose files are gone or empty


class Sample(NamedTuple):
    at: float  # seconds of the run
    rss: int  # bytes, including shared memory
    pss: int
    fds: int
    threads: int

    @classmethod
    def of(cls, pid: int, at: float) -> Self:
        """Raises errors in ENDED."""
        memory = procfs.memory([pid])
        status = Path(f"/proc/{pid}/status").read_text()
        threads = int(status.partition("\nThreads:")[2].split(None, 1)[0])
        return cls(at, memory["Rss"], memory["Pss"], len(os.listdir(f"/proc/{pid}/fd")), threads)


@dataclass
class Life:
    """One process."""

    name: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.samples[-1].at - self.samples[0].at if self.samples else 0.0


class Watch:
    """`lives` are keyed by process id and start time, because ids are reused."""

    def __init__(self) -> None:
        self.lives: dict[tuple[int, int], Life] = {}
        self.begun = time.monotonic()

    def look(self, processes: Mapping[int, str]) -> None:
        at = time.monotonic() - self.begun
        for pid, name in processes.items():
            with contextlib.suppress(*ENDED):
                key = pid, procfs.started(pid)
                sample = Sample.of(pid, at)
                self.lives.setdefault(key, Life(name, pid)).samples.append(sample)


# --- judging ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slope:
    """Growth of a process's memory."""

    name: str
    pid: int
    seconds: float  # time span used for the slope
    first: int  # bytes, at the beginning
    an_hour: float  # growth in bytes
    judged: bool

    @property
    def grows(self) -> bool:
        """Return whether the growth exceeds the limit."""
        allowed = max(MAX_BYTES, MAX_SHARE * self.first)
        return self.judged and self.an_hour > allowed


def slope(life: Life) -> Slope | None:
    """Compute the slope by least squares from the minimum memory in each FLOOR seconds after the
    warm-up. Return None if the process did not live long enough."""
    warm = life.samples[0].at + min(WARM, life.seconds / 5)
    points = floors([(each.at, each.rss) for each in life.samples if each.at >= warm])
    if len(points) < 3:
        return None
    seconds = points[-1][0] - points[0][0]
    found = statistics.linear_regression(*zip(*points, strict=True))
    first = int(found.intercept + found.slope * points[0][0])
    judged = seconds >= LONG_ENOUGH
    return Slope(life.name, life.pid, seconds, first, found.slope * 3600, judged)


def floors(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the minimum in each FLOOR seconds, with its time."""
    minimum: dict[int, tuple[float, int]] = {}
    for at, value in points:
        span = int(at // FLOOR)
        if span not in minimum or value < minimum[span][1]:
            minimum[span] = at, value
    return list(minimum.values())


def samples(processes: Iterable[int]) -> dict[int, Sample]:
    """Sample the current processes."""
    found = {}
    for pid in processes:
        with contextlib.suppress(*ENDED):
            found[pid] = Sample.of(pid, 0.0)
    return found


def left_behind(before: Iterable[Life], after: Mapping[int, Sample]) -> list[str]:
    """Return processes with more descriptors or threads at the end than before the load, if they
    existed at both times."""
    told = []
    for life in before:
        last = after.get(life.pid)
        if last is None:
            continue
        first = life.samples[0]
        for name, slack in SLACK.items():
            had, has = getattr(first, name), getattr(last, name)
            if has > had + slack:
                told.append(f"{life.name} {life.pid} had {had} {name} and has {has}")
    return told
