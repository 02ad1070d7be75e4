"""Daemon startup: blocked signals, the log, the service manager; and reloading the options on
SIGHUP.

Imported before all slow modules. Independent of particular options and daemons.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from nsqcy import __version__
from nsqcy.commit import commit
from nsqcy.config import loader
from nsqcy.errors import Stop
from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.process import openfiles, spawn, systemd
from nsqcy.util import standard_streams

T = TypeVar("T")


class LogOptions(Protocol):
    @property
    def log_prefix(self) -> str: ...

    @property
    def log_level(self) -> int: ...

    @property
    def log_format(self) -> str: ...


def run(daemon: str, start: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run a daemon with these arguments, or those of the process; return the exit code.

    Signals are blocked until `start` has a hub that can receive them.
    """
    standard_streams.open_closed()
    signal.pthread_sigmask(signal.SIG_BLOCK, spawn.BLOCKED)
    try:
        return start(sys.argv[1:] if argv is None else argv)
    except Stop as stop:
        return loader.report(stop, daemon)


def open_log(daemon: str, options: LogOptions) -> Log:
    """Open the log and write its first line, which contains the version."""
    log = Log(options.log_prefix, options.log_level, options.log_format, context={"daemon": daemon})
    events.started(log, loader.version_line(daemon), version=__version__, commit=commit())
    return log


def warn(log: Log, warnings: Iterable[str]) -> None:
    """Log the warnings about the configuration."""
    for warning in warnings:
        events.config_warning(log, warning)


def join_system(log: Log) -> systemd.Notifier:
    """Raise the limit of open files, and return the notifier for the service manager."""
    openfiles.raise_limit().tell(log)
    return systemd.notifier(os.environ, log)


def rereading(read: Callable[[], T], log: Log) -> Callable[[], T | None]:
    """Return a SIGHUP handler that calls `read`. If `read` raises Stop, the handler logs the error
    and returns None."""

    def reread() -> T | None:
        try:
            return read()
        except Stop as stop:
            for part in stop.parts:
                events.config_refused(log, error=str(part))
            return None

    return reread
