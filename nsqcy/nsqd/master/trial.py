"""Trial of the next version before the master executes it: a child process of that version reads a
copy of the master's state, changes nothing, and reports.

Owns both ends of the report, and the time limit. The child gets no sockets, and no end of the pipe
that shows the workers that the master runs: if it outlives the master, it must not hide that.

The report is a JSON object: `version`, the numbers of its `formats`, and the `problem`, "" if there
is none.
"""

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from nsqcy import __version__, formats
from nsqcy.errors import NsqError, Stop
from nsqcy.logging.logger import Log
from nsqcy.nsqd import upgrade_steps
from nsqcy.nsqd.master import master_state
from nsqcy.nsqd.master.master_state import Program, State
from nsqcy.process import spawn
from nsqcy.process.data_path_lock import DataPathLock

LIMIT = 30.0  # maximum seconds for the report
MAX_REPORT = 1 << 20  # bytes
_PIECE = 1 << 16
_NEEDED = ("nsqcy.nsqd.master.master", "nsqcy.nsqd.worker.main", "nsqcy.nsqd.worker.engine")
"""Modules that the new master and its workers import later."""


class Report(NamedTuple):
    """The next version's description of itself."""

    version: str
    formats: dict[str, int]
    problem: str


class TrialFailed(NsqError):
    """The next version must not be executed; str() says why."""


# -- in the master


def run(program: Program, fd: int, memory: int) -> Report:
    """Start a trial with the state in `fd` and the shared memory; wait for its report. Raises
    TrialFailed or OSError."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        environ = program.environ()
        environ |= {master_state.STATE: str(fd), master_state.TRIAL: str(writing)}
        try:
            pid = spawn.spawn(program.command, (fd, writing, memory), environ)
        finally:
            os.close(writing)
        text, code = _await(pid, reading)
    finally:
        os.close(reading)
    if code:
        raise TrialFailed(f"the trial of {program.command[0]} {_ended(code)}")
    return _parse(program, text)


def _await(pid: int, reading: int) -> tuple[bytes, int]:
    """Return the report, and the exit code."""
    import gevent
    from gevent.event import AsyncResult

    loop = gevent.get_hub().loop
    exited = AsyncResult()
    watcher = loop.child(pid)
    watcher.start(lambda: exited.set(watcher.rstatus))
    os.kill(os.getpid(), signal.SIGCHLD)  # it may have exited already
    text = b""
    try:
        deadline = time.monotonic() + LIMIT
        try:
            while piece := _read(reading, deadline):
                text += piece
                if len(text) > MAX_REPORT:
                    raise TrialFailed("the trial's report is too long")
            status = exited.get(timeout=max(0.0, deadline - time.monotonic()))
        except (gevent.Timeout, TimeoutError):
            raise TrialFailed(f"the trial has not ended within {LIMIT:g} s") from None
        finally:
            if not exited.ready():
                os.kill(pid, signal.SIGKILL)
                exited.get()
    finally:
        watcher.stop()
        watcher.close()
    return text, os.waitstatus_to_exitcode(status)


def _read(fd: int, deadline: float) -> bytes:
    """Return the next piece; empty at the end. Raises TimeoutError."""
    from gevent.socket import wait_read

    while True:
        try:
            return os.read(fd, _PIECE)
        except BlockingIOError:
            wait_read(fd, max(0.001, deadline - time.monotonic()), TimeoutError())


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def _parse(program: Program, text: bytes) -> Report:
    try:
        found = json.loads(text)
        report = Report(str(found["version"]), dict(found["formats"]), str(found["problem"]))
    except (ValueError, KeyError, TypeError):
        raise TrialFailed(f"{program.command[0]} does not report as nsqcy's nsqd does") from None
    if report.problem:
        raise TrialFailed(f"version {report.version}: {report.problem}")
    return report


# -- in the child


def main(check_settings: Callable[[State], Any]) -> int:
    """Run the trial of this version, and write the report; return the exit code.

    check_settings: reads the configuration; raises Stop
    """
    signal.alarm(int(LIMIT))  # the master may have exited
    upgrade_steps.reached("trying")
    writing = int(os.environ.pop(master_state.TRIAL))
    report = Report(__version__, formats.numbers(), _problem(check_settings))
    os.set_blocking(writing, True)
    with os.fdopen(writing, "w") as file:
        json.dump(report._asdict(), file)
    return 0


def _problem(check_settings: Callable[[State], Any]) -> str:
    try:
        state = master_state.received(os.environ)
        if state is None:
            return "there is no state"
        DataPathLock.drop_inherited(state.parts["launcher"]["lock"])
        state.check()
        options = check_settings(state)
        for name in _NEEDED:
            import_module(name)
        _restore(state.parts, options)
    except (Stop, NsqError) as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""


def _restore(parts: dict[str, Any], options: Any) -> None:
    """Restore copies of the parts that have no effect on other processes."""
    from nsqcy.ipc.core import Shared
    from nsqcy.nsqd.known_topics import KnownTopics
    from nsqcy.nsqd.master.placement import Placement
    from nsqcy.nsqd.master.policy_file import SavedPolicies
    from nsqcy.nsqd.master.worker_memory import Memfds, MemoryOfWorkers
    from nsqcy.nsqd.stats.statsd import Increases
    from nsqcy.process.arbiter import Child

    launcher = parts["launcher"]
    workers = launcher["workers"]
    Shared(launcher["common"][0], workers)
    MemoryOfWorkers(workers, Memfds(workers), Log()).restore(launcher["memory"])
    KnownTopics().restore(parts["topics"]["known_topics"])
    Placement(workers).restore(parts["topics"]["placement"])
    SavedPolicies.restore(options.data_path, parts["policies"]).values(options)
    if parts["statsd"] is not None:
        Increases().restore(parts["statsd"]["before"])
    for index, each in enumerate(parts["lifecycle"]["children"]):
        Child(index).restore(each)
