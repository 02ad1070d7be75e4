"""The state that the master passes to its next version, when it executes that in its process.

Owns the memfd with the state, the descriptors that stay open, the environment variables that
announce them, and the two calls of execve: to the next version, and back. Independent of the parts
of the state: each part of the master writes and reads its own.

The state is a JSON object:

    formats   the numbers of all formats of the version that wrote it
    version   that version
    name      the process's name, which execve would change
    way_back  how that version was run: its command, and its PYTHONPATH
    service   variables of the service manager
    fds       all descriptors that stay open
    parts     the state of each part

The memfd itself stays open until the next version has taken over, so that the previous version can
continue with the same state.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

from nsqcy import __version__, formats
from nsqcy.names import one_line
from nsqcy.process import spawn
from nsqcy.process.ancillary import Keep
from nsqcy.util import procfs

STATE = "NSQCY_MASTER_STATE"
"""Descriptor of the state's memfd."""
TRIAL = "NSQCY_MASTER_TRIAL"
"""Descriptor for the report of a trial, which only reads the state."""
FAILED = "NSQCY_MASTER_FAILED"
"""Why the next version could not take over, for the previous version."""
MODULE = "nsqcy.nsqd.main"
MAX_REASON = 1000  # characters
_PYTHONPATH = "PYTHONPATH"
_NAME = "/proc/self/comm"


class Program(NamedTuple):
    """A version of nsqd: its command, and the PYTHONPATH with which it finds its package."""

    command: list[str]
    pythonpath: str | None

    @classmethod
    def of(cls, python: str, argv: Iterable[str]) -> "Program":
        """Return the version that a Python interpreter imports. argv: nsqd's arguments"""
        environ = spawn.environment() if python == sys.executable else os.environ
        return cls([python, "-P", "-m", MODULE, *argv], environ.get(_PYTHONPATH))

    def is_same(self, other: "Program") -> bool:
        """Return whether another program runs the same interpreter with the same packages."""
        return self.command[0] == other.command[0] and self.pythonpath == other.pythonpath

    def run(self, module: str, *args: str) -> list[str]:
        """Return the command that runs another module of this version."""
        return spawn.python(module, *args, interpreter=self.command[0])

    def environ(self) -> dict[str, str]:
        """Return the environment in which this version runs."""
        found = {name: value for name, value in os.environ.items() if name != _PYTHONPATH}
        return found if self.pythonpath is None else found | {_PYTHONPATH: self.pythonpath}


class State(NamedTuple):
    """A state that was received."""

    fd: int
    formats: dict[str, object]
    failure: str
    """Why the next version could not take over; empty if this is the next version."""
    version: str
    name: str
    parts: dict[str, Any]
    way_back: Program
    service: dict[str, str]
    fds: list[int]

    def check(self) -> None:
        """Raise FormatError unless this version reads all formats of the previous version."""
        formats.check_numbers(self.formats, "the running master")

    def take_over(self) -> None:
        """Close the state, and its descriptors for programs that this process starts. Restore the
        process's name."""
        for fd in self.fds:
            os.set_inheritable(fd, False)
        os.close(self.fd)
        with contextlib.suppress(OSError), open(_NAME, "w", encoding="utf-8") as file:
            file.write(self.name)

    def go_back(self, reason: str) -> None:
        """Execute the previous version, which continues with the same state. Returns if this one is
        that version. Raises OSError."""
        if self.failure:
            return
        for fd in (self.fd, *self.fds):
            os.set_inheritable(fd, True)
        named = {STATE: str(self.fd), FAILED: one_line(reason)[:MAX_REASON]}
        _execute(self.way_back, self.service | named)


def write(
    parts: Callable[[Keep], dict[str, Any]], way_back: Program, service: Mapping[str, str]
) -> tuple[int, list[int]]:
    """Return the descriptor of a new state, and those that must stay open with it. Raises
    OSError."""
    fds: list[int] = []

    def keep(fd: int) -> int:
        fds.append(fd)
        return fd

    state = {
        "formats": formats.numbers(),
        "version": __version__,
        "name": procfs.read(_NAME).strip(),
        "way_back": way_back,
        "service": service,
        "parts": parts(keep),
        "fds": fds,
    }
    return spawn.pack(state), fds


def execute(
    program: Program,
    fd: int,
    fds: list[int],
    service: Mapping[str, str],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Execute the next version in this process. Raises OSError if that is not possible, or what
    `check` raises, which is called last; then the descriptors are as before."""
    changed = [each for each in (fd, *fds) if not os.get_inheritable(each)]
    for each in changed:
        os.set_inheritable(each, True)
    try:
        _execute(program, {**service, STATE: str(fd)}, check)
    finally:
        for each in changed:
            os.set_inheritable(each, False)


def received(environ: MutableMapping[str, str]) -> State | None:
    """Return the state that this process received, if any. Removes its variables. Raises ValueError
    if it cannot be read."""
    fd = environ.pop(STATE, "")
    failure = environ.pop(FAILED, "")
    return read(int(fd), failure) if fd.isdecimal() else None


def read(fd: int, failure: str = "") -> State:
    """Read a state. Raises ValueError."""
    found = spawn.peek(fd)
    return State(
        fd,
        found["formats"],
        failure,
        found["version"],
        found["name"],
        found["parts"],
        Program(*found["way_back"]),
        found["service"],
        found["fds"],
    )


def _execute(
    program: Program, variables: Mapping[str, str], check: Callable[[], None] = lambda: None
) -> None:
    environ = program.environ() | dict(variables)
    check()
    os.execve(program.command[0], program.command, environ)
