"""The arbiter keeps N children alive: it spawns, reaps, kills and restarts them with backoff.

Owns the children's pids and states. Has one method per event, and acts only through the objects
passed to it. Independent of topics and sockets.

A child's exit codes are a protocol:

    0  stopped on request; everything is saved
    1  crashed with an unexpected exception
    3  could not boot
    4  could not load its topics
    5  its parent has exited; everything is saved
    6  stopped on request or without its parent, but not everything is saved
    7  handed everything over to its successor

A negative code is the signal that killed the child.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import gevent
from gevent.event import Event

from nsqcy.logging import events
from nsqcy.logging.types import Lines

CLEAN, CRASHED, NOT_BOOTED, NOT_LOADED, ORPHANED, NOT_SAVED, HANDED_OVER = 0, 1, 3, 4, 5, 6, 7

STARTING, UP, DOWN, STOPPING, GONE = "starting", "up", "down", "stopping", "gone"

SECOND = 1_000_000_000
SILENCE = 30 * SECOND  # time without a heartbeat, counting only time in which the child could run
GRACE = 5 * SECOND  # time from SIGABRT to SIGKILL
TICK = 1.0
MAX_BACKOFF = 5.0
SETTLED = 10 * SECOND  # a child that has been up this long is restarted without backoff


class Owner(Protocol):
    """The owner of the children. None of its methods may block."""

    def spawn(self, index: int) -> int:
        """Start child `index` and return its pid. After an OSError, the arbiter retries later."""

    def last_beat(self, index: int) -> int:
        """Return the CLOCK_MONOTONIC time of the last heartbeat. If the child has sent none yet,
        the time is before its start."""

    def exited(self, index: int, code: int) -> None:
        """Handle the exit of a child. It stays down until `restart` is called."""

    def left_successor(self, index: int, code: int) -> None:
        """Handle the exit of a child that has a successor, or had one. Call `promote` if the
        successor has taken over; if not, call `drop_successor`, and then `on_exit`."""

    def successor_exited(self, index: int, code: int) -> None:
        """Handle the exit of a successor that has not been promoted."""


class Child:
    """One child's state, and its predecessors' history."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = 0
        self.state = DOWN
        self.restarts = 0
        self.last_exit: int | None = None
        self.failures = 0  # consecutive failures
        self.began = 0
        self.beat = 0
        self.silent = 0  # runnable time without a heartbeat
        self.aborted = False
        self.killed = False  # whether this process killed the child
        self.has_handed_over = False  # a successor has taken over, and this process may still run
        self.watcher: Any = None

    def born(self, pid: int, now: int) -> None:
        """Describe a new process."""
        self.pid = pid
        self.state = STARTING
        self.began = now
        self.beat = self.silent = 0
        self.aborted = self.killed = False

    def dump(self) -> dict[str, Any]:
        """Return the state for the next program of this process."""
        return {name: getattr(self, name) for name in _DUMPED}

    def restore(self, dumped: dict[str, Any]) -> None:
        for name in _DUMPED:
            setattr(self, name, dumped[name])


_DUMPED = (
    *("pid", "state", "restarts", "last_exit", "failures"),
    *("began", "beat", "silent", "aborted", "killed"),
)


class Arbiter:
    """Keeps `count` children alive, on the hub of this process."""

    def __init__(
        self,
        count: int,
        owner: Owner,
        log: Lines,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        kill: Callable[[int, int], None] = os.kill,
        is_stopped: Callable[[int], bool] | None = None,
        silence: int = SILENCE,
    ) -> None:
        self.children = [Child(index) for index in range(count)]
        self._successors: dict[int, Child] = {}
        self._retired: list[Child] = []  # used no more, and not reaped yet
        self._owner = owner
        self._log = log
        self._clock = clock
        self._kill = kill
        self._is_stopped = is_stopped or stopped
        self._silence = silence
        self._halting = False
        self._all_gone = Event()
        self._pumps_gone = Event()
        self._last_tick = clock()
        self._loop = gevent.get_hub().loop
        self._timer = self._loop.timer(TICK, TICK)
        self._loop.install_sigchld()

    def start(self) -> None:
        """Start the periodic checks."""
        self._last_tick = self._clock()
        self._timer.start(self.on_tick)

    # -- births

    def spawn(self, index: int) -> None:
        """Start a child."""
        child = self.children[index]
        try:
            pid = self._owner.spawn(index)
        except OSError as error:
            events.worker_not_started(self._log, worker=index, error=str(error))
            child.failures += 1
            self.restart(index)
            return
        self.born(index, pid)

    def born(self, index: int, pid: int) -> None:
        """Register a started child. If `spawn` does not call this, call it before the hub runs
        again."""
        child = self.children[index]
        child.born(pid, self._clock())
        self._watch(child)

    def _watch(self, child: Child) -> None:
        child.watcher = self._loop.child(child.pid)
        child.watcher.start(self._reap, child)

    def dump(self) -> list[dict[str, Any]]:
        """Return the state of the children for the next program of this process, whose children
        they stay."""
        return [child.dump() for child in self.children]

    def restore(self, dumped: Iterable[dict[str, Any]]) -> None:
        """Continue with these children. Call it before the hub runs, then `check_early_deaths`: a
        child may have exited in the meantime. A child that is down is restarted."""
        for child, each in zip(self.children, dumped, strict=True):
            child.restore(each)
            if child.pid:
                self._watch(child)
            else:
                gevent.spawn_later(backoff(child.failures), self._on_backoff, child.index)

    def successor_born(self, index: int, pid: int) -> None:
        """Register a started process that may take over from a running child."""
        child = self._successors[index] = Child(index)
        child.born(pid, self._clock())
        self._watch(child)

    def promote(self, index: int) -> None:
        """Handle a successor that has taken over: it is the child from now on."""
        child, successor = self.children[index], self._successors.pop(index)
        self.retire(index)
        child.born(successor.pid, self._clock())
        self._rewatch(successor, child)

    def retire(self, index: int) -> None:
        """Handle a child that has handed over. It may still run, as a pump for the connections that
        its successor cannot decode: it is reaped, and nothing else."""
        child = self.children[index]
        if child.pid:
            old = self._pump(index, child.pid)
            self._rewatch(child, old)
            child.pid = 0

    def _pump(self, index: int, pid: int) -> Child:
        child = Child(index)
        child.born(pid, self._clock())
        child.has_handed_over = True
        self._retired.append(child)
        return child

    @property
    def pumps(self) -> list[Child]:
        """The children that have handed over, and still run."""
        return [child for child in self._retired if child.has_handed_over]

    def dump_pumps(self) -> list[list[int]]:
        """Return the pumps for the next program of this process."""
        return [[child.index, child.pid] for child in self.pumps]

    def restore_pumps(self, dumped: Iterable[tuple[int, int]]) -> None:
        """Continue with these pumps; see `restore`."""
        for index, pid in dumped:
            self._watch(self._pump(index, pid))

    def end_pumps(self, signum: int, timeout: float) -> bool:
        """Send a signal to the pumps, and wait until they have exited; return False on timeout."""
        for child in self.pumps:
            self._signal(child, signum)
        self._check_all_gone()
        return bool(self._pumps_gone.wait(timeout))

    def _rewatch(self, child: Child, other: Child) -> None:
        """Report the exit of a child's process as the exit of another child."""
        other.watcher, child.watcher = child.watcher, None
        other.watcher.stop()
        other.watcher.start(self._reap, other)

    def dismiss_successor(self, index: int) -> None:
        """Kill a successor that has not been promoted."""
        self._signal(self._successors[index], signal.SIGKILL)

    def drop_successor(self, index: int) -> None:
        """Forget a successor that has not been promoted; normally, it has exited."""
        successor = self._successors.pop(index)
        if successor.pid:
            self._retired.append(successor)

    def check_early_deaths(self) -> None:
        """Make the hub find children that exited before it handled SIGCHLD."""
        os.kill(os.getpid(), signal.SIGCHLD)

    def on_up(self, index: int) -> None:
        """Handle a child's report that it has begun to work."""
        child = self.children[index]
        if child.state == STARTING:
            child.state = UP

    # -- deaths

    def _reap(self, child: Child) -> None:
        status = child.watcher.rstatus
        child.watcher.stop()
        child.watcher.close()
        self._reaped(child, os.waitstatus_to_exitcode(status))

    def _reaped(self, child: Child, code: int) -> None:
        index = child.index
        if child in self._retired:
            self._retired.remove(child)
        elif child is self._successors.get(index):
            child.pid = 0
            self._owner.successor_exited(index, code)
        elif index in self._successors:
            child.pid = 0
            self._owner.left_successor(index, code)
        else:
            self.on_exit(index, code)
        self._check_all_gone()

    def on_exit(self, index: int, code: int) -> None:
        """Handle the exit of a child."""
        child = self.children[index]
        child.pid = 0
        child.last_exit = code
        settled = child.state == UP and self._clock() - child.began >= SETTLED
        child.failures = 0 if settled else child.failures + 1
        child.state = GONE if self._halting else DOWN
        if not self._halting or (code != CLEAN and not child.killed):
            events.worker_died(self._log, describe(code), worker=index, code=code)
        self._owner.exited(index, code)  # called first, because it reads the child's last messages
        self._check_all_gone()

    def restart(self, index: int) -> None:
        """Restart a child that is down: immediately the first time, then with growing delays."""
        child = self.children[index]
        if self._halting or child.pid:
            return
        child.restarts += 1
        delay = backoff(child.failures)
        events.worker_restarting(self._log, worker=index, delay=delay)
        gevent.spawn_later(delay, self._on_backoff, index)

    def _on_backoff(self, index: int) -> None:
        if not self._halting and not self.children[index].pid:
            self.spawn(index)

    # -- time

    def on_tick(self) -> None:
        """Add up each child's silence; abort, then kill, a child that is silent too long.

        A stopping child may be silent: saving takes as long as its disk needs, and the owner sets
        the limit.
        """
        now = self._clock()
        # If this process did not run for a while, the children may not have run either.
        elapsed = min(now - self._last_tick, 2 * int(TICK * SECOND))
        self._last_tick = now
        for child in self.children:
            if child.pid and child.state != STOPPING:
                self._listen(child, elapsed)

    def _listen(self, child: Child, elapsed: int) -> None:
        beat = self._owner.last_beat(child.index)
        if beat != child.beat:
            child.beat = beat
            child.silent = 0
            child.aborted = False
            return
        if self._is_stopped(child.pid):
            return
        child.silent += elapsed
        if child.silent >= self._silence + GRACE:
            self.murder(child, signal.SIGKILL)
        elif child.silent >= self._silence and not child.aborted:
            child.aborted = True
            self.murder(child, signal.SIGABRT)

    def unheard(self, limit: int) -> list[int]:
        """Return the children that have sent no heartbeat for more than `limit` ns, except those
        that are stopping."""
        now = self._clock()
        return [
            child.index
            for child in self.children
            if child.pid
            and child.state != STOPPING
            and now - max(self._owner.last_beat(child.index), child.began) > limit
        ]

    def murder(self, child: Child, signum: int) -> None:
        """Kill a child that hangs. SIGABRT comes first, because it dumps the stacks."""
        silent = child.silent // SECOND
        name = signal.Signals(signum).name
        events.worker_silent(self._log, worker=child.index, seconds=silent, signal=name)
        self._signal(child, signum)

    def dismiss(self, index: int) -> None:
        """Kill a child that can no longer be used. It is reaped and restarted as usual."""
        self._signal(self.children[index], signal.SIGKILL)

    # -- the end

    def halt(self) -> None:
        """Stop restarting children."""
        self._halting = True
        for child in self.children:
            child.state = STOPPING if child.pid else GONE
        self._check_all_gone()

    def revive(self, index: int) -> bool:
        """Start a child once more after `halt`; return whether this succeeded. It is aborted if it
        is silent, until `stopping` is called."""
        child = self.children[index]
        child.restarts += 1
        self._all_gone.clear()
        self.spawn(index)
        self._check_all_gone()
        return bool(child.pid)

    def expect_heartbeats(self, index: int) -> None:
        """Abort a child if it is silent, although it is about to stop, until `stopping` is
        called."""
        child = self.children[index]
        if child.pid:
            child.state = UP

    def stopping(self, index: int) -> None:
        """Permit a child to be silent from now on, because it stops."""
        child = self.children[index]
        if child.pid:
            child.state = STOPPING

    def wait(self, timeout: float) -> bool:
        """Wait until all children have exited, except pumps; return False on timeout."""
        return bool(self._all_gone.wait(timeout))

    def signal_all(self, signum: int) -> None:
        """Send a signal to all running children."""
        for child in self._all():
            self._signal(child, signum)

    def close(self) -> None:
        """Stop the periodic checks."""
        self._timer.stop()
        self._timer.close()

    def _all(self) -> Iterable[Child]:
        """Return the children, and their successors and predecessors that have not exited."""
        return (*self.children, *self._successors.values(), *self._retired)

    def _check_all_gone(self) -> None:
        if self.pumps:
            self._pumps_gone.clear()
        else:
            self._pumps_gone.set()
        left = (child for child in self._all() if not child.has_handed_over)
        if self._halting and not any(child.pid for child in left):
            self._all_gone.set()

    def _signal(self, child: Child, signum: int) -> None:
        if not child.pid:
            return
        child.killed = child.killed or signum == signal.SIGKILL
        try:
            self._kill(child.pid, signum)
        except ProcessLookupError:
            pass


def backoff(failures: int) -> float:
    """Return the seconds to wait before a restart after this many consecutive failures."""
    if failures <= 1:
        return 0.0
    return min(MAX_BACKOFF, 0.1 * 2.0 ** min(failures - 2, 16))


def describe(code: int) -> str:
    """Describe an exit code."""
    if code < 0:
        return f"killed by signal {-code} ({signal.strsignal(-code)})"
    reasons = {
        CLEAN: "stopped",
        CRASHED: "crashed",
        NOT_BOOTED: "could not boot",
        NOT_LOADED: "could not load its topics",
        ORPHANED: "lost the master",
        NOT_SAVED: "did not save everything",
        HANDED_OVER: "handed over to its successor",
    }
    return f"exited with status {code}: {reasons.get(code, 'unknown')}"


def stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP, debugger), so that it sends no heartbeat."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b") ")[2][:1] in (b"T", b"t")
