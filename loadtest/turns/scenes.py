"""Groups of rows, each with its own daemon and its own state, and how they are measured."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from loadtest.daemons import Nsqadmin, Nsqd
from loadtest.turns import nsqadmin, nsqd, nsqlookupd
from loadtest.turns.observed import observed
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
    "keys": nsqd.keys,
    "gone": nsqd.gone,
    "topics": nsqd.many_topics,
    "together": lambda clients, sizes: nsqd.together(clients),
}
SCENES = [*(f"nsqd:{name}" for name in NSQD), "nsqlookupd", "nsqadmin"]


def measure(scene: str, sizes: Sizes) -> Iterator[Measured]:
    """Measure the rows of a scene, one after the other."""
    daemon, _, name = scene.partition(":")
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        if daemon == "nsqd":
            loops = start(observed())
            one = start(_killed(Nsqd(mem_queue_size=10 * sizes.messages)))
            rows = NSQD[name](nsqd.Clients(one), sizes)
        elif daemon == "nsqlookupd":
            loops = start(observed())
            rows = nsqlookupd.rows(start(_killed(testing.Nsqlookupd())), sizes)
        else:
            one = start(_killed(Nsqd()))
            admin = start(_killed(Nsqadmin(nsqd_http_address=one.http_address)))
            for row in nsqadmin.rows(one, admin, sizes):
                longest = _shortest(row, lambda row=row: nsqadmin.longest_wait(admin, row))
                yield Measured(daemon, row, longest)
            return
        for row in rows:
            yield Measured(daemon, row, _shortest(row, lambda row=row: loops.longest(row.act)))


D = TypeVar("D", bound=testing.Daemon)


@contextlib.contextmanager
def _killed(daemon: D) -> Iterator[D]:
    """Start a daemon, and end it without saving its state, which would only take time."""
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()


def _shortest(row: Row, measured: Callable[[], float]) -> float:
    """Return the shortest of several measurements of a row, relative to the current speed of
    this machine: other programs may make any of them longer, but none shorter."""
    best = float("inf")
    for _ in range(TRIES):
        row.prepare()
        slowness = max(1.0, _calibration() / _REFERENCE)
        best = min(best, measured() / slowness)
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
