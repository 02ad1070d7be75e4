"""An upgrade in place: the master executes the next version of nsqd in its own process, and then
replaces its workers.

Owns the order of the steps, and what is known about the latest upgrade:

    trial     a child process of the next version reads a copy of the state
    rest      nothing is half done
    execute   the next version continues with the workers, connections and topics
    worker N  worker N has handed over to a process of the next version; one step for each worker
    done

If a step fails, nsqd continues as before: a worker that cannot be replaced serves on. The parts of
the master write and read their own state; master_state passes it on.
"""

import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gevent

from nsqcy import __version__
from nsqcy.errors import NsqError, StartError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.names import one_line
from nsqcy.nsqd import upgrade_steps
from nsqcy.nsqd.master import master_state, trial
from nsqcy.nsqd.master.master_state import Program, State
from nsqcy.nsqd.master.rest import Rest
from nsqcy.process import spawn
from nsqcy.process.ancillary import Keep
from nsqcy.process.systemd import Notifier

TRIAL, REST, EXECUTE, DONE = "trial", "rest", "execute", "done"
FAILED, REVERTED, INCOMPLETE = "failed", "reverted", "incomplete"
RESULTS = (DONE, INCOMPLETE, REVERTED, FAILED)
ATTEMPTS = 2  # to replace a worker
SIGNALS = 3  # maximum attempts to execute the next version, if signals arrive at that moment
SIGNAL_PAUSE = 0.01  # seconds in which the hub handles a signal
_SIGNALS = (*spawn.BLOCKED, signal.SIGQUIT)
"""Signals whose handlers the next version must install before it can receive them."""


class UpgradeFailed(NsqError):
    """A step failed, and nsqd continues as before; str() says why."""


class SignalArrived(UpgradeFailed):
    """A signal must be handled before the next version may be executed."""


class OldWorkers(Protocol):
    """The workers. Some of them may run the previous version."""

    def of_previous_version(self) -> list[int]:
        """Return the workers that run the previous version."""

    def replace_in_place(self, index: int) -> None:
        """Replace a running worker. Raises StartError if it serves on instead, or has died."""

    def comes_up(self, index: int) -> bool:
        """Wait until a worker is up; return False if that takes too long."""

    def has_way_back(self, index: int) -> bool:
        """Return whether the previous version follows, because this one has failed repeatedly."""

    def forget_previous_version(self) -> None:
        """Handle the end of an upgrade: all workers run this version."""

    def await_copies(self) -> None:
        """Wait for a limited time until the copies of topics on other machines have caught up."""


class Upgrade:
    """The upgrades of this nsqd."""

    def __init__(
        self,
        argv: Sequence[str] | None,
        shared_memory: int,
        rest: Rest,
        dump: Callable[[Keep], dict[str, Any]],
        count_pumps: Callable[[], int],
        notifier: Notifier,
        log: Lines,
    ) -> None:
        """argv: nsqd's arguments. dump: returns the state of all parts. count_pumps: returns the
        number of replaced workers that stay for their encrypted connections."""
        self._argv = argv
        self._shared_memory = shared_memory
        self._rest = rest
        self._dump_parts = dump
        self._count_pumps = count_pumps
        self._notifier = notifier
        self._log = log
        self._greenlet: gevent.Greenlet | None = None
        self.results = dict.fromkeys(RESULTS, 0)
        """Number of upgrades of this process, by result."""
        self._steps: list[str] = []
        self._error = ""
        self._before = ""  # the previous version
        self._executed_at = 0  # CLOCK_MONOTONIC, ns

    def begin(self, python: str = "") -> None:
        """Start an upgrade to the version that a Python interpreter imports; by default, the one of
        this process. Does nothing while an upgrade is under way."""
        if self._greenlet is None:
            self._steps, self._error = [], ""
            self._greenlet = gevent.spawn(self._run, python)

    def state(self) -> dict[str, Any]:
        """Return the /upgrade object."""
        return {
            "version": __version__,
            "python": sys.executable,
            "upgrades": self.results[DONE] + self.results[INCOMPLETE],
            "under_way": self._greenlet is not None,
            "steps": self._steps,
            "pumps": self._count_pumps(),
            "error": one_line(self._error),
        }

    # -- the next version

    def dump(self) -> dict[str, Any]:
        """Return the state for the next version."""
        return {"results": self.results, "steps": self._steps, "executed_at": time.monotonic_ns()}

    def restore(self, dumped: dict[str, Any], state: State) -> None:
        """Continue with the state of the previous version; or with this version's own, if the next
        one could not take over."""
        self._error = state.failure
        self.results |= dumped["results"]
        self._steps = dumped["steps"]
        self._before = state.version
        self._executed_at = dumped["executed_at"]

    def resume(self, workers: OldWorkers) -> None:
        """Report what has happened, and replace the workers."""
        if self._error:
            self.results[REVERTED] += 1
            events.upgrade_reverted(self._log, error=self._error)
        else:
            away = (time.monotonic_ns() - self._executed_at) // 1_000_000
            events.upgraded(self._log, away, version=__version__, before=self._before)
            self._greenlet = gevent.spawn(self._replace, workers)

    # -- the steps

    def _run(self, python: str) -> None:
        try:
            if self._argv is None:
                raise UpgradeFailed("this nsqd cannot be upgraded in place")
            if python:
                check_program(python)
            program = Program.of(python or sys.executable, self._argv)
            self._step(TRIAL)
            self._try(program)
            self._step(REST)
            self._execute_between_signals(program)
        except (NsqError, OSError) as error:
            self._error = str(error)
            self.results[FAILED] += 1
            events.upgrade_failed(self._log, error=self._error)
        finally:
            self._greenlet = None

    def _replace(self, workers: OldWorkers) -> None:
        """Replace the workers that run the previous version, one after the other."""
        failures = []
        for index in workers.of_previous_version():
            upgrade_steps.reached(f"replacing {index}")
            failure = self._replace_worker(workers, index)
            if failure:
                failures.append(failure)
            else:
                self._step(f"worker {index}")
        workers.await_copies()  # so that another machine can be upgraded next
        self.results[INCOMPLETE if failures else DONE] += 1
        if failures:
            self._error = "; ".join(failures)
            events.upgrade_incomplete(self._log, before=self._before, error=self._error)
        else:
            workers.forget_previous_version()
            self._step(DONE)
        self._greenlet = None

    def _replace_worker(self, workers: OldWorkers, index: int) -> str:
        """Return why a worker still runs the previous version, or ""."""
        failure = ""
        for _ in range(ATTEMPTS):
            if not workers.comes_up(index):
                break
            if index not in workers.of_previous_version():
                return ""  # it has died, and was started again
            workers.await_copies()
            try:
                workers.replace_in_place(index)
            except StartError as error:
                failure = str(error)
            else:
                return ""
            if workers.has_way_back(index):
                break
        if not workers.comes_up(index):
            return failure or f"worker {index} is not up"
        return failure if index in workers.of_previous_version() else ""

    def _step(self, name: str) -> None:
        self._steps.append(name)

    def _try(self, program: Program) -> None:
        events.upgrade_tried(self._log, program.command[0])
        fd, _ = self._write()
        try:
            report = trial.run(program, fd, self._shared_memory)
        finally:
            os.close(fd)
        events.upgrade_possible(self._log, version=report.version)

    def _execute_between_signals(self, program: Program) -> None:
        for _ in range(SIGNALS - 1):
            with contextlib.suppress(SignalArrived):
                return self._execute(program)
            gevent.sleep(SIGNAL_PAUSE)
        self._execute(program)

    def _execute(self, program: Program) -> None:
        reason = self._rest.settle()
        if reason:
            raise UpgradeFailed(reason)
        try:
            reason = self._rest.begin()
            if reason:
                raise UpgradeFailed(reason)
            if EXECUTE not in self._steps:
                self._step(EXECUTE)
            self._notifier.reloading()
            self._execute_now(program)
        finally:
            self._rest.end()

    def _execute_now(self, program: Program) -> None:
        """Does not let the hub run: nothing may change any more."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            fd, fds = self._write()
            try:
                upgrade_steps.reached("executing")
                master_state.execute(program, fd, fds, self._notifier.environ(), _check_signals)
            finally:
                os.close(fd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _write(self) -> tuple[int, list[int]]:
        way_back = Program.of(sys.executable, self._argv or ())
        return master_state.write(self._dump_parts, way_back, self._notifier.environ())


def _check_signals() -> None:
    """Raise SignalArrived if another thread, which does not block signals, has received one that
    the hub has not handled: execve would lose it."""
    if gevent.get_hub().loop.sig_pending:
        raise SignalArrived("signals keep arriving")


def check_program(python: str) -> None:
    """Raise UpgradeFailed unless only root and the user that runs nsqd can have created or changed
    an interpreter: a client names it over HTTP."""
    path = os.path.realpath(python)
    if not os.path.isabs(python) or not os.path.basename(path).startswith("python"):
        raise UpgradeFailed(f"{python} is not the absolute path of a Python interpreter")
    for each in (path, os.path.dirname(path), os.path.dirname(os.path.abspath(python))):
        try:
            found = os.stat(each)
        except OSError as error:
            raise UpgradeFailed(f"{each}: {(error.strerror or '').lower()}") from None
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UpgradeFailed(
                f"{each}: other users can change it; only root and nsqd's own user may"
            )
