"""Groups of rows, each with its own daemon and its own state, and how they are measured."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from loadtest.nsqd import Nsqd
from loadtest.turns import nsqd, nsqlookupd
from loadtest.turns.observed import Loops, observed
from loadtest.turns.rows import Row, Sizes
from nsqcy import testing

LIMIT = 10.0  # ms
TRIES = 5  # a busy machine can only add to the time

_REFERENCE = 7.5  # ms for _calibration() on the machine that LIMIT was chosen for
_LOOP = 300_000


class Measured(NamedTuple):
    """A row with the CPU time of the longest iteration, in ms."""

    daemon: str
    row: Row
    longest: float

    @property
    def is_short(self) -> bool:
        return self.longest <= LIMIT


Build = Callable[[nsqd.Clients, Sizes], Iterator[Row]]

NSQD: dict[str, Build] = {
    "publishing": lambda clients, sizes: nsqd.publishing(clients),
    "consuming": lambda clients, sizes: nsqd.consuming(clients),
    "first": lambda clients, sizes: nsqd.first_commands(clients),
    "heads": lambda clients, sizes: nsqd.heads(clients),
    "log": nsqd.log_commands,
    "deferred": nsqd.deferred,
    "gone": nsqd.gone,
    "topics": nsqd.many_topics,
    "together": lambda clients, sizes: nsqd.together(clients),
}
SCENES = [*(f"nsqd:{name}" for name in NSQD), "nsqlookupd"]


def measure(scene: str, sizes: Sizes) -> Iterator[Measured]:
    """Measure the rows of a scene, one after the other."""
    daemon, _, name = scene.partition(":")
    with observed() as loops:
        if daemon == "nsqd":
            with _killed(Nsqd(mem_queue_size=10 * sizes.messages)) as one:
                rows = NSQD[name](nsqd.Clients(one), sizes)
                yield from (Measured(daemon, row, _longest(loops, row)) for row in rows)
        else:
            with _killed(testing.Nsqlookupd()) as lookupd:
                found = nsqlookupd.rows(lookupd, sizes)
                yield from (Measured(daemon, row, _longest(loops, row)) for row in found)


D = TypeVar("D", bound=testing.Daemon)


@contextlib.contextmanager
def _killed(daemon: D) -> Iterator[D]:
    """Start a daemon; saving its state at the end would only take time."""
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()


def _longest(loops: Loops, row: Row) -> float:
    """Return the shortest of several measurements, relative to the speed of this machine now: what
    else runs here may make any of them longer, but none shorter."""
    best = float("inf")
    for _ in range(TRIES):
        row.prepare()
        slowness = max(1.0, _calibration() / _REFERENCE)
        best = min(best, loops.longest(row.act) / slowness)
        if best <= LIMIT:
            break
    return best


def _calibration() -> float:
    """Return the CPU time of a known loop, in ms."""
    began = time.thread_time_ns()
    total = 0
    for number in range(_LOOP):
        total += number
    return (time.thread_time_ns() - began) / 1e6
